//! `/v1/files`: input and output files of batches, as in OpenAI's API ([`crate::batches`]).
//!
//! An upload is written to disk as it arrives, at the minimum rate of any body; memory holds only a chunk of it.

use super::App;
use crate::batches::{Batches, FileRecord, Store, Upload, now};
use crate::failure::{Failure, clip};
use crate::http::body::{self, Bounds};
use crate::kv::query::pairs;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use multer::{Field, Multipart};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the store of files and batches.
///
/// # Errors
/// Returns 400 if the server was started without `--batch-dir`.
pub(super) fn store(app: &App) -> Result<&Arc<Store>, Failure> {
    let batches = app.batches.as_ref().map(Batches::store);
    batches.ok_or_else(|| {
        Failure::invalid_body(
            "this server takes no files and no batches: start it with --batch-dir",
        )
    })
}

/// Returns the name of the API key in `headers`, by which files and batches belong to a client; empty if no keys are
/// configured.
pub(super) fn owner(app: &App, headers: &HeaderMap) -> String {
    let keys = app.keys.as_ref();
    keys.and_then(|keys| keys.name(headers)).unwrap_or_default()
}

/// Calls `ask` with the store of files and batches on a blocking thread, since the store may be writing to disk.
/// Returns the result of `ask`.
pub(super) async fn asked<T: Send + 'static>(
    app: &App,
    ask: impl FnOnce(&Store) -> T + Send + 'static,
) -> Result<T, Failure> {
    let store = Arc::clone(store(app)?);
    let asked = tokio::task::spawn_blocking(move || ask(&store));
    asked.await.map_err(Failure::internal)
}

/// Calls `ask` with the store of files and batches, the client's name that [`owner`] returns for `headers`, and `id`,
/// on a blocking thread. Returns the result of `ask`.
pub(super) async fn asked_of<T: Send + 'static>(
    app: &App,
    headers: &HeaderMap,
    id: &str,
    ask: impl FnOnce(&Store, &str, &str) -> T + Send + 'static,
) -> Result<T, Failure> {
    let (owner, id) = (owner(app, headers), id.to_owned());
    asked(app, move |store| ask(store, &owner, &id)).await
}

/// `POST /v1/files`: stores an uploaded input file of a batch.
pub(super) async fn upload(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, Failure> {
    let asked = (|| Ok((Arc::clone(store(&app)?), boundary(request.headers())?)))();
    let owner = owner(&app, request.headers());
    let ready = async {
        let (store, boundary) = asked?;
        let ours = Arc::clone(&store);
        let begin = move || ours.upload(&owner, PURPOSE, now());
        let begun = tokio::task::spawn_blocking(begin).await;
        Ok((store, boundary, begun.map_err(Failure::internal)??))
    };
    let (store, boundary, mut upload) = match ready.await {
        Ok(ready) => ready,
        Err(failure) => {
            body::discard(request).await;
            return Err(failure);
        }
    };
    let bounds = Bounds {
        max_bytes: store.bounds().bytes + FORM_BYTES,
        time: UPLOAD_TIME.max(app.limits.body_time),
    };
    let mut fields = Form::default();
    let held = Arc::clone(&fields.held);
    // Counted because the form parser buffers a part's headers until they are complete, however long they are.
    let (pieces, rest) = body::paced(request, bounds);
    let pieces = gathered(pieces).map(move |piece| {
        let piece = piece?;
        let bytes = piece.len() as u64;
        if held.fetch_add(bytes, Ordering::Relaxed) + bytes > HELD_BYTES {
            let message = format!("more than {HELD_BYTES} bytes of the form are no part's content");
            return Err(Failure::invalid_body(message));
        }
        Ok(piece)
    });
    let mut form = Multipart::new(pieces, boundary);
    let read = async {
        while let Some(field) = form.next_field().await.map_err(failed)? {
            upload = fields.take(field, upload).await?;
        }
        Ok((fields, upload))
    };
    let (fields, upload) = match read.await {
        Ok(read) => read,
        Err(failure) => {
            // The form may be waiting for the body's next chunk.
            drop(form);
            if !matches!(
                failure,
                Failure::BodyTimeout { .. } | Failure::BodySlow { .. }
            ) {
                rest.discard().await;
            }
            return Err(failure);
        }
    };
    let (filename, seconds) = fields.checked(store.bounds().time.as_secs())?;
    let kept = app
        .blocking(0, move || upload.finish(&filename, seconds))
        .await?;
    Ok(Json(kept.object()))
}

/// The fields of an upload's form that have been read so far.
#[derive(Default)]
struct Form {
    /// Bytes received that are not, or not yet read as, content of a part of the form.
    held: Arc<AtomicU64>,
    filename: Option<String>,
    purpose: Option<String>,
    anchor: Option<String>,
    seconds: Option<String>,
}

impl Form {
    async fn take(&mut self, mut field: Field<'_>, mut upload: Upload) -> Result<Upload, Failure> {
        let name = field.name().unwrap_or_default().to_owned();
        if name == "file" {
            if self.filename.is_some() {
                return Err(Failure::invalid("file", "file must be given once"));
            }
            self.filename = Some(field.file_name().unwrap_or("file.jsonl").to_owned());
            while let Some(piece) = self.chunk(&mut field).await? {
                let written =
                    tokio::task::spawn_blocking(move || upload.write(&piece).map(|()| upload));
                upload = written.await.map_err(Failure::internal)??;
            }
            return Ok(upload);
        }
        let mut text = Vec::new();
        while let Some(piece) = self.chunk(&mut field).await? {
            text.extend_from_slice(&piece);
            if text.len() as u64 > FIELD_BYTES {
                let message = format!("{} has more than {FIELD_BYTES} bytes", clip(&name));
                return Err(Failure::invalid(clip(&name), message));
            }
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        match name.as_str() {
            "purpose" => self.purpose = Some(text),
            "expires_after[anchor]" => self.anchor = Some(text),
            "expires_after[seconds]" => self.seconds = Some(text),
            _ => {
                let message = format!("{} is not known for a file", clip(&name));
                return Err(Failure::invalid(clip(&name), message));
            }
        }
        Ok(upload)
    }

    /// Returns the next chunk of the content of a part of the form; `None` at its end.
    async fn chunk(&self, field: &mut Field<'_>) -> Result<Option<Bytes>, Failure> {
        let piece = field.chunk().await.map_err(failed)?;
        let bytes = piece.as_ref().map_or(0, Bytes::len) as u64;
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        Ok(piece)
    }

    /// Validates the form's fields. Returns the file's name and, if given, its lifetime in seconds, which must be at
    /// most `most`.
    fn checked(self, most: u64) -> Result<(String, Option<u64>), Failure> {
        let message = "file must be given, with a file name";
        let filename = self
            .filename
            .ok_or_else(|| Failure::invalid("file", message))?;
        match self.purpose.as_deref() {
            Some(PURPOSE) => {}
            other => {
                let message = match other {
                    Some(other) => format!("purpose must be `{PURPOSE}`, got `{}`", clip(other)),
                    None => format!("purpose must be `{PURPOSE}`"),
                };
                return Err(Failure::invalid("purpose", message));
            }
        }
        if self
            .anchor
            .as_deref()
            .is_some_and(|anchor| anchor != "created_at")
        {
            let message = "expires_after[anchor] must be `created_at`";
            return Err(Failure::invalid("expires_after[anchor]", message));
        }
        let seconds = self.seconds.map(|seconds| {
            let seconds = seconds
                .parse()
                .ok()
                .filter(|seconds| (1..=most).contains(seconds));
            seconds.ok_or_else(|| {
                let message = format!("expires_after[seconds] must be a number from 1 to {most}");
                Failure::invalid("expires_after[seconds]", message)
            })
        });
        Ok((filename, seconds.transpose()?))
    }
}

/// `GET /v1/files/{id}`: returns the file's record, if it belongs to the client's API key.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    let ask = |store: &Store, owner: &str, id: &str| store.file(owner, id, now());
    let found = asked_of(&app, &headers, &id, ask).await?;
    Ok(Json(
        found
            .ok_or_else(|| Failure::not_stored("file", &id, None))?
            .object(),
    ))
}

/// `GET /v1/files`: returns the records of the client's files, latest first unless the query has `order=asc`.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    let page = Page::parse(query.as_deref(), 10_000, 10_000, &["order", "purpose"])?;
    let owner = owner(&app, &headers);
    let mut files = asked(&app, move |store| store.files(&owner, now())).await?;
    files.retain(|file| {
        page.purpose
            .as_ref()
            .is_none_or(|asked| *asked == file.purpose)
    });
    if page.is_ascending {
        files.reverse();
    }
    page.of(files.iter().map(FileRecord::object).collect())
        .map(Json)
}

/// `DELETE /v1/files/{id}`: removes the file, if it belongs to the client's API key.
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    let ask = |store: &Store, owner: &str, id: &str| store.remove(owner, id, now());
    if !asked_of(&app, &headers, &id, ask).await?? {
        return Err(Failure::not_stored("file", &id, None));
    }
    Ok(Json(json!({"id": id, "object": "file", "deleted": true})))
}

/// `GET /v1/files/{id}/content`: returns the file's content, if it belongs to the client's API key.
pub(super) async fn content(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let open = |store: &Store, owner: &str, id: &str| {
        let record = store.file(owner, id, now())?;
        Some(store.content(&record.id).map(|file| (record, file)))
    };
    let found = asked_of(&app, &headers, &id, open).await?;
    let (record, file) = found.ok_or_else(|| Failure::not_stored("file", &id, None))??;
    let pieces = stream::try_unfold(file, |file| async move {
        tokio::task::spawn_blocking(move || piece(file))
            .await
            .map_err(std::io::Error::other)?
    });
    let headers = [
        (header::CONTENT_TYPE, "application/jsonl".to_owned()),
        (header::CONTENT_LENGTH, record.bytes.to_string()),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// Reads the next chunk of a file, and returns it with the file; `None` at the end.
fn piece(mut file: File) -> std::io::Result<Option<(Bytes, File)>> {
    let mut piece = vec![0; PIECE_BYTES];
    let read = file.read(&mut piece)?;
    piece.truncate(read);
    Ok((read > 0).then(|| (Bytes::from(piece), file)))
}

/// The page of a list that a client requested: up to `limit` objects after the one with the id `after`.
pub(super) struct Page {
    limit: usize,
    after: Option<String>,
    pub(super) is_ascending: bool,
    pub(super) purpose: Option<String>,
}

impl Page {
    /// Parses a query. `limit` is the page's default length and `most` its maximum; `more` names parameters allowed in
    /// addition to `limit` and `after`.
    ///
    /// # Errors
    /// Returns 400 for an unknown parameter or an invalid value.
    pub(super) fn parse(
        query: Option<&str>,
        limit: usize,
        most: usize,
        more: &[&str],
    ) -> Result<Self, Failure> {
        let mut page = Self {
            limit,
            after: None,
            is_ascending: false,
            purpose: None,
        };
        for (name, value) in pairs(query) {
            match name {
                "limit" => {
                    let limit = value
                        .parse()
                        .ok()
                        .filter(|limit| (1..=most).contains(limit));
                    page.limit = limit.ok_or_else(|| {
                        let message = format!("limit must be a number from 1 to {most}");
                        Failure::invalid("limit", message)
                    })?;
                }
                "after" => page.after = Some(value.to_owned()),
                "order" if more.contains(&"order") => {
                    page.is_ascending = match value {
                        "asc" => true,
                        "desc" => false,
                        _ => {
                            let message = "order must be `asc` or `desc`";
                            return Err(Failure::invalid("order", message));
                        }
                    }
                }
                // Nothing that could be included is stored.
                "include" | "include[]" | "include%5B%5D" if more.contains(&"include") => {}
                "purpose" if more.contains(&"purpose") => page.purpose = Some(value.to_owned()),
                _ => {
                    let message = format!("{} is not known for this list", clip(name));
                    return Err(Failure::invalid(clip(name), message));
                }
            }
        }
        Ok(page)
    }

    /// Returns the requested page of `objects`, which is the whole list, as OpenAI's list object.
    ///
    /// # Errors
    /// Returns 400 if no object has the id `after`.
    pub(super) fn of(&self, mut objects: Vec<Value>) -> Result<Value, Failure> {
        if let Some(after) = &self.after {
            let at = objects.iter().position(|object| object["id"] == **after);
            let at = at.ok_or_else(|| {
                Failure::invalid(
                    "after",
                    format!("after is not in the list: `{}`", clip(after)),
                )
            })?;
            objects.drain(..=at);
        }
        let has_more = objects.len() > self.limit;
        objects.truncate(self.limit);
        let id = |object: Option<&Value>| object.map(|object| object["id"].clone());
        Ok(json!({
            "object": "list",
            "first_id": id(objects.first()),
            "last_id": id(objects.last()),
            "has_more": has_more,
            "data": objects,
        }))
    }
}

/// Joins small pieces of a body: the form parser's work at each piece is proportional to the boundary's length, and to
/// that of part headers that are not complete yet.
fn gathered(
    pieces: impl Stream<Item = Result<Bytes, Failure>> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, Failure>> + Send + 'static {
    let pieces = Box::pin(pieces.fuse());
    stream::try_unfold(pieces, async |mut pieces| {
        let mut gathered = Vec::new();
        while gathered.len() < GATHERED_BYTES
            && let Some(piece) = pieces.try_next().await?
        {
            gathered.extend_from_slice(&piece);
        }
        Ok((!gathered.is_empty()).then(|| (Bytes::from(gathered), pieces)))
    })
}

fn boundary(headers: &HeaderMap) -> Result<String, Failure> {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.map(|value| String::from_utf8_lossy(value.as_bytes()));
    let boundary = value.as_deref().map(multer::parse_boundary);
    let boundary = boundary.and_then(Result::ok);
    let boundary = boundary.filter(|boundary| boundary.len() <= BOUNDARY_BYTES);
    boundary.ok_or_else(|| {
        let found = value.as_deref().map_or("none".to_owned(), clip);
        Failure::invalid_body(format!(
            "the content type must be `multipart/form-data` with a boundary of at most {BOUNDARY_BYTES} bytes, got `{found}`"
        ))
    })
}

/// Returns the failure for an error of the form parser. An error in reading the body keeps the failure that it already
/// has.
fn failed(error: multer::Error) -> Failure {
    match error {
        multer::Error::StreamReadFailed(error) => match error.downcast::<Failure>() {
            Ok(failure) => *failure,
            Err(error) => Failure::invalid_body(format!("the body could not be read: {error}")),
        },
        error => Failure::invalid_body(format!("the form cannot be read: {error}")),
    }
}

const PURPOSE: &str = "batch";
/// Maximum number of bytes of an upload's form in addition to its file.
const FORM_BYTES: u64 = 1 << 16;
/// Maximum length of a form's boundary, as in RFC 2046.
const BOUNDARY_BYTES: usize = 70;
/// Length of a body that the form parser receives at once, except at the end.
const GATHERED_BYTES: usize = 16 << 10;
/// Maximum number of buffered bytes of an upload's form that are not content of a part.
const HELD_BYTES: u64 = 1 << 20;
/// Maximum length in bytes of a field of an upload's form other than the file.
const FIELD_BYTES: u64 = 1 << 10;
/// Time limit for an upload, unless the time limit for bodies is longer. The minimum rate of all bodies applies too.
const UPLOAD_TIME: std::time::Duration = std::time::Duration::from_secs(3_600);
const PIECE_BYTES: usize = 1 << 16;
