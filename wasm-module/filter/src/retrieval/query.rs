//! The query to the retriever for one chat's question, from the body, a header and the configuration.
//!
//! A client may send `retrieval` in the body, in our host's format: `false` for no documents, `true`, which is the
//! default, or an object with `embedding` (numbers, or base64), `query`, `k`, `filters`, `words`.

use foreword_ordering::{Parsed, Question, question};
use serde_json::{Map, Value, json};

use super::reason::Reason;
use super::vector;
use crate::config::RetrievalConfig;

/// The query to the retriever for the question of one chat.
#[derive(Debug)]
pub(super) struct RetrievalQuery {
    /// The text to search for: the client's `query`, or else the last user message.
    pub(super) question: String,
    /// The embedding vector that the client sent; `None` if it sent none.
    pub(super) vector: Option<Vec<f32>>,
    /// The fields of the retriever's request other than the question and its vector.
    pub(super) fields: Map<String, Value>,
    /// The maximum number of documents that the retriever may return.
    pub(super) limit: usize,
    /// True if the client sets no options (`query`, `k`, `filters`, `words`), so that the cached result of a similar
    /// question may be returned.
    pub(super) is_cacheable: bool,
    /// The body of a warm-up request, which has the engine prefill the chat's first system messages; `None` if it has
    /// none.
    pub(super) opening: Option<String>,
}

/// The contents of the field `retrieval` in a client's request.
#[derive(Debug, Default)]
struct Field {
    off: bool,
    vector: Option<Vec<f32>>,
    query: Option<String>,
    k: Option<u64>,
    special: Map<String, Value>,
}

impl RetrievalQuery {
    /// Reads the query for a chat's question. `header` is the embedding vector from the client's header. `None` if the
    /// chat has documents, wants none, or has no question. Returns an error if the field `retrieval` or `header` is
    /// invalid, or the question is too long.
    pub(super) fn read(
        config: &RetrievalConfig,
        parsed: &Parsed<'_>,
        header: Option<&[u8]>,
        tenant: &str,
        salt: Option<&str>,
    ) -> Result<Option<Self>, Reason> {
        if parsed.has_documents() {
            return Ok(None);
        }
        let Ok(question) = question(parsed) else {
            return Ok(None);
        };
        let Field {
            off,
            vector,
            query,
            k,
            special,
        } = Field::read(parsed.retrieval()).ok_or(Reason::BadRequest)?;
        let Some(text) = question.text.as_deref().filter(|_| !off) else {
            return Ok(None);
        };
        let is_cacheable = query.is_none() && k.is_none() && special.is_empty();
        let text = query.as_deref().unwrap_or(text);
        if text.len() > config.max_question_bytes {
            return Err(Reason::LongQuestion);
        }
        let vector = match (vector, header) {
            (Some(vector), _) => Some(vector),
            (None, Some(header)) => Some(vector::from_header(header).ok_or(Reason::BadRequest)?),
            (None, None) => None,
        };
        let k = k.unwrap_or(config.k.into());
        let mut fields = special;
        fields.insert("k".to_owned(), k.into());
        if let Some(name) = &config.tenant_filter {
            let filters = fields.entry("filters").or_insert_with(|| json!({}));
            // The client's own value of the tenant's field is overwritten.
            let filters = filters.as_object_mut().ok_or(Reason::BadRequest)?;
            filters.insert(name.clone(), tenant.into());
        }
        Ok(Some(Self {
            question: text.to_owned(),
            vector,
            fields,
            limit: usize::try_from(k).unwrap_or(usize::MAX),
            is_cacheable,
            opening: opening(&question, salt),
        }))
    }

    /// Returns the JSON body of the request to the retriever, with `vector` as the question's embedding if given.
    pub(super) fn body(&self, vector: Option<&[f32]>) -> Vec<u8> {
        let mut fields = self.fields.clone();
        fields.insert("query".to_owned(), self.question.as_str().into());
        if let Some(vector) = vector {
            fields.insert("embedding".to_owned(), json!(vector));
        }
        Value::Object(fields).to_string().into_bytes()
    }
}

impl Field {
    fn read(raw: Option<&str>) -> Option<Self> {
        let mut field = Self::default();
        let value = raw.map_or(Ok(Value::Null), serde_json::from_str).ok()?;
        let fields = match value {
            Value::Null | Value::Bool(true) => return Some(field),
            Value::Bool(false) => {
                field.off = true;
                return Some(field);
            }
            Value::Object(fields) => fields,
            _ => return None,
        };
        for (name, value) in fields {
            match (name.as_str(), value) {
                (_, Value::Null) => {}
                ("embedding", value) => field.vector = Some(vector::from_json(&value)?),
                ("query", Value::String(query)) if !query.trim_ascii().is_empty() => {
                    field.query = Some(query);
                }
                ("k", value) => field.k = Some(value.as_u64().filter(|k| (1..=MAX_K).contains(k))?),
                ("filters", value @ Value::Object(_)) if values(&value) <= MAX_FILTER_VALUES => {
                    field.special.insert(name, value);
                }
                ("words", value @ Value::Bool(_)) => {
                    field.special.insert(name, value);
                }
                _ => return None,
            }
        }
        Some(field)
    }
}

/// Counts the values in a JSON value that are neither lists nor objects, at any depth.
fn values(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.iter().map(values).sum(),
        Value::Object(fields) => fields.values().map(values).sum(),
        _ => 1,
    }
}

/// The maximum number of values in a client's `filters` in one request, since a retriever compares each of them with
/// each passage.
const MAX_FILTER_VALUES: usize = 256;

/// Returns the body for the warm-up request `POST /v1/prefill`, with the tenant's cache salt. `None` if the chat has no
/// system messages at its beginning.
fn opening(question: &Question<'_>, salt: Option<&str>) -> Option<String> {
    let opening = &question.opening;
    if opening.messages.is_empty() {
        return None;
    }
    let mut fields = vec![format!("\"messages\":[{}]", opening.messages.join(","))];
    let given = opening.fields.iter();
    let given = given.filter(|(name, _)| salt.is_none() || *name != "cache_salt");
    fields.extend(given.map(|(name, value)| format!("\"{name}\":{value}")));
    fields.extend(salt.map(|salt| format!("\"cache_salt\":{}", Value::from(salt))));
    Some(format!("{{{}}}", fields.join(",")))
}

const MAX_K: u64 = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::{Config, parse};

    fn read(
        config: Value,
        body: &Value,
        header: Option<&[u8]>,
    ) -> Result<Option<RetrievalQuery>, Reason> {
        let config = RetrievalConfig::from_json(&config).unwrap();
        let body = body.to_string();
        let parsed = parse(body.as_bytes(), &Config::default()).unwrap();
        RetrievalQuery::read(&config, &parsed, header, "red", None)
    }

    fn chat(retrieval: Value) -> Value {
        json!({"messages": [{"role": "user", "content": "Why?"}], "retrieval": retrieval})
    }

    fn asked(wanted: &RetrievalQuery) -> Value {
        serde_json::from_slice(&wanted.body(wanted.vector.as_deref())).unwrap()
    }

    #[test]
    fn a_chat_that_says_nothing_asks_its_question() {
        for field in [json!(null), json!(true), json!({})] {
            let wanted = read(json!({"cluster": "c"}), &chat(field), None)
                .unwrap()
                .unwrap();
            assert_eq!(asked(&wanted), json!({"query": "Why?", "k": 5}));
            assert!(wanted.is_cacheable && wanted.opening.is_none());
        }
        assert!(
            read(json!({"cluster": "c"}), &chat(json!(false)), None)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn what_a_client_asks_for_is_asked_for_and_is_nobody_elses_answer() {
        for (field, expected) in [
            (json!({"k": 2}), json!({"query": "Why?", "k": 2})),
            (json!({"query": "How?"}), json!({"query": "How?", "k": 5})),
            (
                json!({"filters": {"id": vec![7; 256]}}),
                json!({"query": "Why?", "k": 5, "filters": {"id": vec![7; 256]}}),
            ),
            (
                json!({"filters": {"year": 1}, "words": false}),
                json!({"query": "Why?", "k": 5, "filters": {"year": 1}, "words": false}),
            ),
        ] {
            let wanted = read(json!({"cluster": "c"}), &chat(field), None)
                .unwrap()
                .unwrap();
            assert_eq!(asked(&wanted), expected);
            assert!(!wanted.is_cacheable);
        }
        let vector = chat(json!({"embedding": [0.5, 1]}));
        let wanted = read(json!({"cluster": "c"}), &vector, Some(b"!"))
            .unwrap()
            .unwrap();
        assert!(wanted.is_cacheable);
        assert_eq!(asked(&wanted)["embedding"], json!([0.5, 1.0]));
        let header = Some(b"AACAPwAAAL8=".as_slice());
        let wanted = read(json!({"cluster": "c"}), &chat(json!(true)), header)
            .unwrap()
            .unwrap();
        assert_eq!(wanted.vector, Some(vec![1.0, -0.5]));
    }

    #[test]
    fn a_tenants_filter_cannot_be_talked_away() {
        let config = json!({"cluster": "c", "tenant_filter": "tenant"});
        let field = json!({"filters": {"tenant": "blue", "year": 1}});
        let wanted = read(config, &chat(field), None).unwrap().unwrap();
        assert_eq!(
            asked(&wanted)["filters"],
            json!({"tenant": "red", "year": 1})
        );
    }

    #[test]
    fn what_makes_no_sense_is_a_bad_request() {
        for field in [
            json!(7),
            json!("yes"),
            json!({"k": 0}),
            json!({"k": 201}),
            json!({"query": ""}),
            json!({"query": 1}),
            json!({"filters": []}),
            json!({"filters": {"id": vec![7; 257]}}),
            json!({"filters": {"a": vec![7; 200], "b": {"in": vec!["x"; 57]}}}),
            json!({"embedding": "!"}),
            json!({"embedding": [1e300]}),
            json!({"embeding": [1]}),
        ] {
            let read = read(json!({"cluster": "c"}), &chat(field.clone()), None);
            assert_eq!(read.err(), Some(Reason::BadRequest), "{field}");
        }
        let header = read(json!({"cluster": "c"}), &chat(json!(true)), Some(b"\xff"));
        assert_eq!(header.err(), Some(Reason::BadRequest));
        let short = json!({"cluster": "c", "max_question_bytes": 3});
        assert_eq!(
            read(short, &chat(json!(true)), None).err(),
            Some(Reason::LongQuestion)
        );
        // An invalid field does not matter if the client brings documents.
        let mut own = chat(json!(7));
        own["documents"] = json!(["mine"]);
        assert!(read(json!({"cluster": "c"}), &own, None).unwrap().is_none());
    }

    #[test]
    fn the_warm_ups_body_opens_as_the_chat_will() {
        let body = json!({"model": "m", "cache_salt": "mine", "tools": [1], "messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": "u"}]});
        let body = body.to_string();
        let parsed = parse(body.as_bytes(), &Config::default()).unwrap();
        let question = question(&parsed).unwrap();
        let read =
            |salt| -> Value { serde_json::from_str(&opening(&question, salt).unwrap()).unwrap() };
        let expected = json!({"model": "m", "cache_salt": "mine", "tools": [1],
            "messages": [{"role": "system", "content": "s"}]});
        assert_eq!(read(None), expected);
        assert_eq!(read(Some("ours"))["cache_salt"], "ours");
    }
}
