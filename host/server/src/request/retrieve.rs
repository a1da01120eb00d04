//! The fields of a search for documents: of `POST /v1/retrieve`, and of the field `retrieval` in a chat request.

use super::fields::{Fields, wrong_type, wrong_value};
use crate::failure::Failure;
use foreword_retrieval::{Ask, has_words};
use serde_json::{Map, Value};

/// A search for documents by a question, by its embedding, or by both.
#[derive(Clone, Debug, Default)]
pub struct SearchQuery {
    /// The question; `None` if only an embedding was given.
    pub query: Option<String>,
    /// The parameters of the search. Its `vector` is empty if the question must still be embedded.
    pub ask: Ask,
}

/// A validated request `POST /v1/retrieve`, for the documents that answer a question.
#[derive(Debug)]
pub struct Retrieve {
    /// The search for documents.
    pub asked: SearchQuery,
    /// True if the documents are returned in the order that reuses most of the engine's cache; false if best first.
    pub order: bool,
    /// The `cache_salt` of the tenant for whom the order reuses cached documents; empty if the request has none.
    pub cache_salt: String,
}

/// A chat request whose documents must be retrieved before it is answered (field `retrieval`).
#[derive(Debug)]
pub struct Retrieving {
    /// The chat request as JSON, without `retrieval` and `documents`. It is text, since a parsed value may take many times
    /// the memory of a body.
    pub body: String,
    /// The search for the chat's documents.
    pub asked: SearchQuery,
    /// True if the chat is answered without documents when retrieval is unavailable; false if it then fails.
    pub is_optional: bool,
    /// True if there is nothing to search for, since the question, which is the last user message, has no letter or
    /// digit.
    pub is_wordless: bool,
}

impl Retrieve {
    /// Parses the body of a request `POST /v1/retrieve`.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid field.
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let mut fields = Fields::parse(body)?;
        let asked = take_asked(&mut fields)?;
        if asked.query.is_none() && asked.ask.vector.is_empty() {
            let message = "query is missing: a question, or its embedding";
            return Err(Failure::invalid("query", message));
        }
        Ok(Self {
            asked,
            order: fields.boolean("order")?,
            cache_salt: fields.string("cache_salt")?.unwrap_or_default(),
        })
    }
}

impl Retrieving {
    /// Returns whether a chat request's body may ask for a retrieval. A search of the text, much faster than parsing it.
    #[must_use]
    pub fn may_be_in(body: &[u8]) -> bool {
        body.windows(FIELD.len()).any(|bytes| bytes == FIELD)
    }

    /// Names the fields of a failed search as they stand in a chat request.
    #[must_use]
    pub fn renamed(failure: Failure) -> Failure {
        failure.renamed(&FIELD_PATHS)
    }

    /// Returns the retrieval that a chat request's body asks for; `None` if it has no field `retrieval`, or is not
    /// valid JSON. The question is the one in `retrieval`, or else the text of the last user message.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid field, or if there is neither a question nor an embedding.
    pub fn take(body: &[u8]) -> Result<Option<Self>, Failure> {
        if !Self::may_be_in(body) {
            return Ok(None);
        }
        let Ok(Value::Object(mut body)) = serde_json::from_slice(body) else {
            // The chat's own parser reports the error.
            return Ok(None);
        };
        let mut fields = match body.shift_remove("retrieval") {
            None | Some(Value::Null | Value::Bool(false)) => return Ok(None),
            Some(Value::Bool(true)) => Fields::of(Map::new()),
            Some(Value::Object(fields)) => Fields::of(fields),
            Some(other) => return Err(wrong_type("retrieval", "an object or a boolean", &other)),
        };
        let documents = body.shift_remove("documents");
        if documents.is_some_and(|documents| !documents.is_null()) {
            let message = "retrieval and documents exclude each other";
            return Err(Failure::invalid("retrieval", message));
        }
        let inside = Self::renamed;
        let mut asked = take_asked(&mut fields).map_err(inside)?;
        let mut is_wordless = false;
        if asked.query.is_none() {
            asked.query = last_question(&body);
            is_wordless = asked.ask.vector.is_empty()
                && (asked.query.as_ref()).is_some_and(|question| !has_words(question));
        }
        if asked.query.is_none() && asked.ask.vector.is_empty() {
            let message = "query is missing, and there is no user message with text";
            return Err(inside(Failure::invalid("query", message)));
        }
        if asked.ask.words.is_some() {
            asked.ask.words.clone_from(&asked.query);
        }
        let is_optional = match fields.string("on_failure").map_err(inside)?.as_deref() {
            None | Some("answer") => true,
            Some("fail") => false,
            Some(other) => {
                let wanted = "\"answer\" or \"fail\"";
                return Err(inside(wrong_value("on_failure", wanted, &other.into())));
            }
        };
        Ok(Some(Self {
            body: Value::Object(body).to_string(),
            asked,
            is_optional,
            is_wordless,
        }))
    }
}

const FIELD: &[u8] = b"\"retrieval\"";

/// The paths in a chat request of the fields in `retrieval`, for errors.
const FIELD_PATHS: [(&str, &str); 6] = [
    ("query", "retrieval.query"),
    ("embedding", "retrieval.embedding"),
    ("filters", "retrieval.filters"),
    ("words", "retrieval.words"),
    ("k", "retrieval.k"),
    ("on_failure", "retrieval.on_failure"),
];

/// Default number of documents to retrieve for one question.
const DEFAULT_K: i64 = 5;
const MAX_K: i64 = 200;
const MAX_QUERY_BYTES: usize = 64 << 10;
const MAX_DIMENSIONS: usize = 65_536;
const MAX_FILTERS: usize = 16;
/// Maximum number of values in all `filters` of one search together.
const MAX_FILTER_VALUES: usize = 256;

/// Removes and validates the fields that describe a search.
fn take_asked(fields: &mut Fields) -> Result<SearchQuery, Failure> {
    let invalid = |name: &str, message: String| Err(Failure::invalid(name, message));
    let query = fields.string("query")?;
    match query.as_deref().map(str::len) {
        Some(0) => return invalid("query", "query must not be empty".to_owned()),
        Some(bytes) if bytes > MAX_QUERY_BYTES => {
            let message =
                format!("query has {bytes} bytes, more than the limit of {MAX_QUERY_BYTES}");
            return invalid("query", message);
        }
        _ => {}
    }
    let vector = match fields.take("embedding") {
        None => Vec::new(),
        Some(Value::Array(numbers)) if numbers.len() <= MAX_DIMENSIONS => {
            let numbers: Option<Vec<f32>> = (numbers.iter())
                .map(|number| number.as_f64().map(|number| number as f32))
                .collect();
            match numbers {
                Some(numbers) if !numbers.is_empty() => numbers,
                _ => {
                    return invalid(
                        "embedding",
                        "embedding must hold numbers alone, and some".to_owned(),
                    );
                }
            }
        }
        Some(Value::Array(numbers)) => {
            let found = numbers.len();
            let message =
                format!("embedding has {found} numbers, more than the limit of {MAX_DIMENSIONS}");
            return invalid("embedding", message);
        }
        Some(other) => {
            return Err(wrong_type("embedding", "an array", &other));
        }
    };
    let filters = match fields.take("filters") {
        None => Map::new(),
        Some(Value::Object(filters)) if filters.len() <= MAX_FILTERS => filters,
        Some(Value::Object(filters)) => {
            let found = filters.len();
            let message =
                format!("filters has {found} fields, more than the limit of {MAX_FILTERS}");
            return invalid("filters", message);
        }
        Some(other) => return Err(wrong_type("filters", "an object", &other)),
    };
    let values = filters
        .values()
        .map(|wanted| wanted.as_array().map_or(1, Vec::len));
    let found: usize = values.sum();
    if found > MAX_FILTER_VALUES {
        let message =
            format!("filters has {found} values, more than the limit of {MAX_FILTER_VALUES}");
        return invalid("filters", message);
    }
    let by_words = match fields.take("words") {
        None | Some(Value::Bool(true)) => true,
        Some(Value::Bool(false)) => false,
        Some(other) => return Err(wrong_type("words", "a boolean", &other)),
    };
    let k = fields.integer("k", 1..=MAX_K)?.unwrap_or(DEFAULT_K);
    Ok(SearchQuery {
        ask: Ask {
            vector,
            words: by_words.then(|| query.clone().unwrap_or_default()),
            k: usize::try_from(k).unwrap_or_default(),
            filters,
            caller: None,
        },
        query,
    })
}

/// Returns the text of the last user message in a chat request, at most its first [`MAX_QUERY_BYTES`] bytes; `None` if
/// there is no user message, or the last one has no text.
fn last_question(body: &Map<String, Value>) -> Option<String> {
    let messages = body.get("messages")?.as_array()?;
    let is_users = |message: &&Value| message.get("role").and_then(Value::as_str) == Some("user");
    let mut text = match messages.iter().rev().find(is_users)?.get("content")? {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => return None,
    };
    text.truncate(text.floor_char_boundary(MAX_QUERY_BYTES));
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message<T>(result: Result<T, Failure>) -> String {
        result
            .err()
            .map(|failure| failure.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn the_last_user_message_is_the_question_unless_there_is_another() {
        let chat = |retrieval: Value| {
            let body = json!({"messages": [
                {"role": "user", "content": "first"}, {"role": "assistant", "content": "no"},
                {"role": "user", "content": [{"type": "text", "text": "second"}]}
            ], "retrieval": retrieval, "seed": 1});
            Retrieving::take(body.to_string().as_bytes()).unwrap()
        };
        let wanted = chat(json!(true)).unwrap();
        assert_eq!(wanted.asked.query.as_deref(), Some("second"));
        assert_eq!((wanted.asked.ask.k, wanted.is_optional), (5, true));
        assert_eq!(wanted.asked.ask.words.as_deref(), Some("second"));
        assert!(!wanted.body.contains("\"retrieval\"") && wanted.body.ends_with(",\"seed\":1}"));
        let wanted = chat(json!({"query": "other", "k": 2, "words": false, "on_failure": "fail"}));
        let wanted = wanted.unwrap();
        assert_eq!(wanted.asked.query.as_deref(), Some("other"));
        assert_eq!((wanted.asked.ask.k, wanted.is_optional), (2, false));
        assert_eq!(wanted.asked.ask.words, None);
        assert!(chat(json!(false)).is_none() && chat(Value::Null).is_none());
        assert!(
            Retrieving::take(b"{\"metadata\": \"retrieval\"}")
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_long_message_is_cut_and_one_without_words_is_no_question() {
        let take = |content: &str, retrieval: Value| {
            let body =
                json!({"messages": [{"role": "user", "content": content}], "retrieval": retrieval});
            Retrieving::take(body.to_string().as_bytes())
                .unwrap()
                .unwrap()
        };
        let long = take(&format!("a{}", "é".repeat(MAX_QUERY_BYTES)), json!(true));
        let question = long.asked.query.unwrap();
        assert_eq!(question.len(), MAX_QUERY_BYTES - 1);
        assert_eq!(long.asked.ask.words, Some(question));
        assert!(!long.is_wordless);
        assert!(take("\u{1f44d}", json!(true)).is_wordless);
        assert!(!take("\u{1f44d}", json!({"query": "?!"})).is_wordless);
        assert!(!take("\u{1f44d}", json!({"embedding": [1]})).is_wordless);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let chat = |retrieval: Value| {
            let body =
                json!({"messages": [{"role": "user", "content": "q"}], "retrieval": retrieval});
            message(Retrieving::take(body.to_string().as_bytes()))
        };
        assert_eq!(
            chat(json!(3)),
            "retrieval must be an object or a boolean, got a number"
        );
        assert_eq!(
            chat(json!({"k": 0})),
            "retrieval.k must be an integer from 1 to 200, got 0"
        );
        assert!(chat(json!({"on_failure": "cry"})).starts_with("retrieval.on_failure"));
        assert!(chat(json!({"query": 3})).starts_with("retrieval.query must be"));
        assert!(chat(json!({"embedding": [1, "x"]})).contains("numbers alone"));
        let both = json!({"documents": [{}], "retrieval": true});
        let both = message(Retrieving::take(both.to_string().as_bytes()));
        assert_eq!(both, "retrieval and documents exclude each other");
        assert!(message(Retrieve::parse(b"{}")).starts_with("query is missing"));
    }
}
