//! Qdrant as a store, over its REST API (`POST /collections/{name}/points/query`, Qdrant 1.10 and later).
//!
//! A point's payload is the document: `id`, `title` and `text`; all other fields are metadata. A point without an `id`
//! in its payload uses its own id. The whole search is one stage, without words.

use super::{Ask, Stage, Store, StoreError, StoreUrlError};
use crate::Document;
use crate::collection::ScoredDocument;
use crate::index::Metric;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use ureq::{Agent, RequestBuilder};

/// A collection of a Qdrant server, as a store of documents.
pub struct Qdrant {
    agent: Agent,
    /// URL of the collection, without a trailing slash.
    url: String,
    api_key: Option<String>,
    /// The collection's distance, in Qdrant's words: `Cosine`, say. Unknown before the first search.
    distance: OnceLock<String>,
}

/// Time limit of a request, connecting included.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest response accepted, in bytes.
const MAX_BYTES: u64 = 64 << 20;

#[derive(Deserialize)]
struct Answer<T> {
    result: T,
}

#[derive(Deserialize)]
struct Points {
    points: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    id: Value,
    score: f32,
    #[serde(default)]
    payload: Option<Map<String, Value>>,
}

impl Qdrant {
    /// Returns a store for the collection at `url`, such as `http://localhost:6333/collections/handbook`.
    ///
    /// # Errors
    /// Returns [`StoreUrlError::Qdrant`] when `url` is not a collection's.
    pub fn new(url: &str, api_key: Option<String>) -> Result<Self, StoreUrlError> {
        let url = url.trim_end_matches('/');
        let host = (url.strip_prefix("http://")).or_else(|| url.strip_prefix("https://"));
        if !host.is_some_and(|host| host.contains("/collections/")) {
            return Err(StoreUrlError::Qdrant(url.to_owned()));
        }
        let config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .build();
        Ok(Self {
            agent: config.into(),
            url: url.to_owned(),
            api_key,
            distance: OnceLock::new(),
        })
    }

    fn distance(&self) -> Result<&str, StoreError> {
        if let Some(known) = self.distance.get() {
            return Ok(known);
        }
        let about: Value = self.call("", None)?;
        let distance = about["config"]["params"]["vectors"]["distance"].as_str();
        let distance = distance.unwrap_or_default().to_owned();
        Ok(self.distance.get_or_init(|| distance))
    }

    fn with_key<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match self.api_key.as_deref() {
            Some(key) => request.header("api-key", key),
            None => request,
        }
    }

    /// Posts `body` to the collection's `path`, or sends a GET request if there is no body.
    fn call<T: for<'de> Deserialize<'de>>(
        &self,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, StoreError> {
        let away = |reason: String| StoreError::Unavailable(format!("{}: {reason}", self.url));
        let url = format!("{}{path}", self.url);
        let sent = match body {
            Some(body) => {
                let request = self.with_key(self.agent.post(&url));
                let request = request.header("content-type", "application/json");
                request.send(body.to_string())
            }
            None => self.with_key(self.agent.get(&url)).call(),
        };
        let mut response = sent.map_err(|error| away(error.to_string()))?;
        let status = response.status();
        let read = response
            .body_mut()
            .with_config()
            .limit(MAX_BYTES)
            .read_to_string();
        let text = read.map_err(|error| away(error.to_string()))?;
        if status.as_u16() == 400 || status.as_u16() == 422 {
            let error: Value = serde_json::from_str(&text).unwrap_or_default();
            let message = error["status"]["error"]
                .as_str()
                .unwrap_or("the query was refused");
            return Err(StoreError::Refused(message.to_owned()));
        }
        if !status.is_success() {
            return Err(away(format!("it answered {status}")));
        }
        let answer: Answer<T> =
            serde_json::from_str(&text).map_err(|error| away(format!("its answer: {error}")))?;
        Ok(answer.result)
    }
}

impl Store for Qdrant {
    fn search(&self, ask: &Ask, stage: &mut Stage<'_>) -> Result<Vec<ScoredDocument>, StoreError> {
        let mut body = json!({"query": ask.vector, "limit": ask.k, "with_payload": true});
        if !ask.filters.is_empty() {
            let conditions = ask.filters.iter().map(|(key, wanted)| match wanted {
                Value::Array(any) => json!({"key": key, "match": {"any": any}}),
                wanted => json!({"key": key, "match": {"value": wanted}}),
            });
            body["filter"] = json!({"must": conditions.collect::<Vec<_>>()});
        }
        let Points { points } = self.call("/points/query", Some(&body))?;
        // A key or a proxy may allow queries alone. Of distances, the smallest is the best.
        let sign = match self.distance() {
            Ok("Euclid" | "Manhattan") => -1.0,
            _ => 1.0,
        };
        let found = points.into_iter().map(Point::found);
        let found = found.map(|found| ScoredDocument {
            score: sign * found.score,
            ..found
        });
        let found: Vec<ScoredDocument> = found.collect();
        // The search is complete, so the result of `stage` does not matter.
        let _ = stage(&found);
        Ok(found)
    }

    /// Returns the numbers of points and of segments: Qdrant reports no other sign of changes.
    fn version(&self) -> Result<String, StoreError> {
        let about: Value = self.call("", None)?;
        Ok(format!(
            "{}-{}",
            about["points_count"], about["segments_count"]
        ))
    }

    fn embedder(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    fn metric(&self) -> Option<Metric> {
        match self.distance.get().map(String::as_str) {
            Some("Cosine") => Some(Metric::Cosine),
            Some("Dot") => Some(Metric::InnerProduct),
            Some("Euclid") => Some(Metric::L2),
            _ => None,
        }
    }
}

impl Point {
    fn found(self) -> ScoredDocument {
        let mut payload = self.payload.unwrap_or_default();
        let mut take = |name: &str| match payload.remove(name) {
            Some(Value::String(text)) => Some(text),
            Some(Value::Null) | None => None,
            Some(other) => Some(other.to_string()),
        };
        let own = || match &self.id {
            Value::String(id) => id.clone(),
            id => id.to_string(),
        };
        ScoredDocument {
            score: self.score,
            document: Arc::new(Document {
                id: take("id").unwrap_or_else(own),
                title: take("title").unwrap_or_default(),
                text: take("text").unwrap_or_default(),
                metadata: payload,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::ops::ControlFlow;
    use std::thread::JoinHandle;

    /// Starts a server that gives this response to one request and returns the request's body.
    fn server(status: &'static str, answer: Value) -> (SocketAddr, JoinHandle<(String, Value)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer = answer.to_string();
            let response = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
                answer.len()
            );
            reader.into_inner().write_all(response.as_bytes()).unwrap();
            (head, serde_json::from_slice(&body).unwrap_or_default())
        });
        (address, asked)
    }

    fn ask() -> Ask {
        let filters = json!({"kind": ["a", "b"], "year": 2024});
        Ask {
            vector: vec![0.5, -1.0],
            k: 2,
            filters: filters.as_object().unwrap().clone(),
            ..Ask::default()
        }
    }

    fn qdrant(address: SocketAddr) -> Qdrant {
        let url = format!("http://{address}/collections/c/");
        Qdrant::new(&url, Some("secret".to_owned())).unwrap()
    }

    fn search(address: SocketAddr) -> Result<Vec<ScoredDocument>, StoreError> {
        let qdrant = qdrant(address);
        qdrant.distance.set("Cosine".to_owned()).unwrap();
        qdrant.search(&ask(), &mut |_| ControlFlow::Continue(()))
    }

    #[test]
    fn the_largest_score_is_the_best_whatever_the_collections_distance() {
        for (distance, sign, metric) in [
            ("Cosine", 1.0, Some(Metric::Cosine)),
            ("Euclid", -1.0, Some(Metric::L2)),
            ("Manhattan", -1.0, None),
        ] {
            let about = json!({"result": {"config": {"params": {"vectors": {"size": 2, "distance": distance}}}}});
            let (address, asked) = server("200 OK", about);
            let told = qdrant(address).distance().unwrap().to_owned();
            let (head, _) = asked.join().unwrap();
            assert!(
                head.starts_with("GET /collections/c HTTP/1.1\r\n"),
                "{head}"
            );
            let points = json!({"result": {"points": [{"id": 7, "score": 0.75, "payload": {"text": "body"}}]}});
            let (address, asked) = server("200 OK", points);
            let qdrant = qdrant(address);
            qdrant.distance.set(told).unwrap();
            let found = qdrant.search(&ask(), &mut |_| ControlFlow::Continue(()));
            assert_eq!(found.unwrap()[0].score, sign * 0.75, "{distance}");
            assert_eq!(qdrant.metric(), metric, "{distance}");
            asked.join().unwrap();
        }
    }

    #[test]
    fn a_url_that_is_no_collections_is_named() {
        for url in [
            "localhost:6333",
            "http://localhost:6333",
            "ftp://a/collections/b",
        ] {
            let error = Qdrant::new(url, None).err().unwrap();
            assert!(error.to_string().contains(url), "{error}");
        }
    }

    #[test]
    fn a_query_is_written_and_its_points_read_as_documented() {
        let (address, asked) = server(
            "200 OK",
            json!({
                "time": 0.001, "status": "ok", "result": {"points": [
                    {"id": 7, "version": 1, "score": 0.75, "payload": {"title": "T", "text": "body", "year": 2024}},
                    {"id": "9a", "version": 1, "score": 0.5, "payload": {"id": "own", "text": "other"}},
                ]},
            }),
        );
        let found = search(address).unwrap();
        let (head, body) = asked.join().unwrap();
        assert!(
            head.starts_with("POST /collections/c/points/query HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(head.to_ascii_lowercase().contains("api-key: secret"));
        assert_eq!(
            body,
            json!({
                "query": [0.5, -1.0], "limit": 2, "with_payload": true,
                "filter": {"must": [
                    {"key": "kind", "match": {"any": ["a", "b"]}},
                    {"key": "year", "match": {"value": 2024}},
                ]},
            })
        );
        let ids: Vec<&str> = found.iter().map(|found| &*found.document.id).collect();
        assert_eq!(ids, ["7", "own"]);
        assert_eq!((found[0].score, &*found[0].document.title), (0.75, "T"));
        assert_eq!(found[0].document.metadata["year"], 2024);
    }

    #[test]
    fn what_it_refuses_is_told_from_what_it_cannot_do() {
        let wrong =
            json!({"status": {"error": "Wrong input: Vector dimension error"}, "time": 0.0});
        let (address, _asked) = server("400 Bad Request", wrong);
        let refused = search(address).unwrap_err();
        assert!(matches!(&refused, StoreError::Refused(reason) if reason.contains("dimension")));
        let (address, _asked) = server("500 Internal Server Error", json!({}));
        assert!(matches!(
            search(address).unwrap_err(),
            StoreError::Unavailable(_)
        ));
        let (address, _asked) = server("200 OK", json!({"result": 3}));
        assert!(matches!(
            search(address).unwrap_err(),
            StoreError::Unavailable(_)
        ));
        let nobody = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        assert!(matches!(
            search(nobody).unwrap_err(),
            StoreError::Unavailable(_)
        ));
    }

    #[test]
    fn the_version_follows_the_number_of_points() {
        let about = json!({"result": {"status": "green", "points_count": 12, "segments_count": 3}});
        let (address, asked) = server("200 OK", about);
        let qdrant = Qdrant::new(&format!("http://{address}/collections/c"), None).unwrap();
        assert_eq!(qdrant.version().unwrap(), "12-3");
        assert!(
            asked
                .join()
                .unwrap()
                .0
                .starts_with("GET /collections/c HTTP/1.1")
        );
    }
}
