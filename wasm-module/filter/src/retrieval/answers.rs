//! Parses and validates the responses of the embedder and the retriever.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::reason::Reason;
use super::vector;
use crate::host::CallResponse;
use foreword_similarity::Metric;

/// The documents in a retriever's response, best first.
#[derive(Debug, Clone, Default)]
pub(super) struct RetrieverAnswer {
    pub(super) documents: Vec<Document>,
    /// The version that the retriever states, which changes whenever its results may change; empty if it states none.
    pub(super) version: String,
    /// The measure by which the retriever compares vectors; `None` if it does not say, or has another one.
    pub(super) metric: Option<Metric>,
}

/// A retrieved document in the form in which it is stored and forwarded.
#[derive(Debug, Clone)]
pub(super) struct Document {
    /// The document's id; empty if it has none. A result with such a document is not stored in the similarity cache.
    pub(super) id: String,
    /// JSON of the document as an element of a request's `documents`, with only id, title and text, so it is the same
    /// for every question.
    pub(super) element: Arc<str>,
}

/// Returns the body of a response with status 200; otherwise the reason why there is no body to use.
fn good(answer: CallResponse<'_>) -> Result<&[u8], Reason> {
    match (answer.status, answer.body) {
        // Envoy's own statuses for a time-out and an unreachable cluster.
        (Some(504), _) => Err(Reason::Timeout),
        (None | Some(502 | 503), _) => Err(Reason::Unreachable),
        (Some(200), Some(body)) => Ok(body),
        (Some(200), None) => Err(Reason::TooLarge),
        (Some(_), _) => Err(Reason::Status),
    }
}

/// Reads the vector of the first text in a response to OpenAI's `POST /v1/embeddings`. Returns the reason if the
/// response cannot be used.
pub(super) fn embedding(answer: CallResponse<'_>) -> Result<Vec<f32>, Reason> {
    #[derive(Deserialize)]
    struct Embeddings {
        data: Vec<Embedding>,
    }
    #[derive(Deserialize)]
    struct Embedding {
        embedding: Value,
    }
    let body = good(answer)?;
    let read: Embeddings = serde_json::from_slice(body).map_err(|_| Reason::BadAnswer)?;
    let first = read.data.into_iter().next().ok_or(Reason::BadAnswer)?;
    vector::from_json(&first.embedding).ok_or(Reason::BadEmbedding)
}

/// Reads the documents in a response to our host's `POST /v1/retrieve`, or a compatible one. Returns the reason if the
/// response cannot be used, as when there are more than `limit` documents.
pub(super) fn found(answer: CallResponse<'_>, limit: usize) -> Result<RetrieverAnswer, Reason> {
    #[derive(Deserialize)]
    struct Answered<'a> {
        #[serde(borrow)]
        data: Vec<Element<'a>>,
        #[serde(default)]
        version: Option<String>,
        #[serde(borrow, default)]
        metric: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Element<'a> {
        #[serde(borrow, default)]
        id: Option<&'a RawValue>,
        #[serde(borrow, default)]
        title: Option<&'a RawValue>,
        #[serde(borrow)]
        text: &'a RawValue,
    }
    let text = str::from_utf8(good(answer)?).map_err(|_| Reason::BadAnswer)?;
    let read: Answered<'_> = serde_json::from_str(text).map_err(|_| Reason::BadAnswer)?;
    if read.data.len() > limit {
        return Err(Reason::BadAnswer);
    }
    let is_text = |raw: &RawValue| raw.get().starts_with('"');
    let mut documents = Vec::with_capacity(read.data.len());
    for Element { id, title, text } in read.data {
        if !is_text(text) || id.is_some_and(|id| !is_text(id)) {
            return Err(Reason::BadAnswer);
        }
        // The fields are copied with their escapes, so the same document has the same bytes.
        let fields = [
            ("id", id),
            ("title", title.filter(|title| is_text(title))),
            ("text", Some(text)),
        ];
        let fields = fields.into_iter();
        let fields = fields.filter_map(|(name, raw)| Some(format!("\"{name}\":{}", raw?.get())));
        let element = format!("{{{}}}", fields.collect::<Vec<_>>().join(","));
        let id = id.and_then(|id| serde_json::from_str(id.get()).ok());
        documents.push(Document {
            id: id.unwrap_or_default(),
            element: element.into(),
        });
    }
    let metric = read
        .metric
        .and_then(|raw| raw.get().strip_prefix('"')?.strip_suffix('"'));
    Ok(RetrieverAnswer {
        documents,
        version: read.version.unwrap_or_default(),
        metric: metric.and_then(Metric::by_name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str) -> CallResponse<'_> {
        CallResponse {
            status: Some(200),
            body: Some(body.as_bytes()),
        }
    }

    #[test]
    fn a_document_is_its_id_title_and_text_and_nothing_of_the_search() {
        let body = r#"{"object": "list", "version": "7", "data": [
            {"id": "a\u0062", "title": "T", "text": "x\n", "metadata": {"year": 1}, "score": 0.5, "rank": 0},
            {"text": "bare", "title": null}]}"#;
        let found = found(answer(body), 2).unwrap();
        assert_eq!(found.version, "7");
        assert_eq!(&*found.documents[0].id, "ab");
        assert_eq!(
            &*found.documents[0].element,
            r#"{"id":"a\u0062","title":"T","text":"x\n"}"#
        );
        assert_eq!(&*found.documents[1].element, r#"{"text":"bare"}"#);
        assert_eq!(found.documents[1].id, "");
    }

    #[test]
    fn what_no_retriever_says_is_a_bad_answer() {
        for body in [
            "",
            "null",
            "[]",
            "{}",
            r#"{"data": {}}"#,
            r#"{"data": [{"id": "a"}]}"#,
            r#"{"data": [{"id": 7, "text": "x"}]}"#,
            r#"{"data": [{"id": "a", "text": 7}]}"#,
            r#"{"data": [{"id": "a", "text": "x"}, {"id": "b", "text": "x"}]}"#,
            r#"{"data": [{"id": "a", "text": "x"}"#,
            "<html>",
        ] {
            assert_eq!(
                found(answer(body), 1).err(),
                Some(Reason::BadAnswer),
                "{body}"
            );
        }
        let binary = CallResponse {
            status: Some(200),
            body: Some(b"{\"data\": [], \"version\": \"\xff\"}"),
        };
        assert_eq!(found(binary, 1).err(), Some(Reason::BadAnswer));
        assert!(
            found(answer(r#"{"data": []}"#), 1)
                .unwrap()
                .documents
                .is_empty()
        );
    }

    #[test]
    fn every_way_to_fail_has_its_reason() {
        let failed = |status, body| embedding(CallResponse { status, body }).err();
        let good = Some(b"{\"data\": [{\"embedding\": [1]}]}".as_slice());
        assert_eq!(failed(Some(200), good), None);
        assert_eq!(failed(None, None), Some(Reason::Unreachable));
        assert_eq!(failed(Some(503), good), Some(Reason::Unreachable));
        assert_eq!(failed(Some(504), good), Some(Reason::Timeout));
        assert_eq!(failed(Some(500), good), Some(Reason::Status));
        assert_eq!(failed(Some(404), good), Some(Reason::Status));
        assert_eq!(failed(Some(200), None), Some(Reason::TooLarge));
        for bad in [r#"{"data": []}"#, "{}", "NaN"] {
            assert_eq!(
                embedding(answer(bad)).err(),
                Some(Reason::BadAnswer),
                "{bad}"
            );
        }
        for bad in [
            r#"{"data": [{"embedding": []}]}"#,
            r#"{"data": [{"embedding": ["NaN"]}]}"#,
        ] {
            assert_eq!(
                embedding(answer(bad)).err(),
                Some(Reason::BadEmbedding),
                "{bad}"
            );
        }
    }
}
