//! The part `retrieval` of the plugin configuration.

use foreword_similarity::SimilarityConfig;
use serde_json::{Map, Value};

use crate::config::{ConfigError, header_name, invalid, object, switch};

/// The configuration of retrieval, for chats that bring no documents.
#[derive(Clone)]
pub(crate) struct RetrievalConfig {
    pub(crate) retriever: Peer,
    /// Number of documents to retrieve.
    pub(crate) k: u16,
    /// Longest question that is searched for, in bytes.
    pub(crate) max_question_bytes: usize,
    pub(crate) on_failure: OnNothing,
    /// Field of the documents' metadata that must hold the tenant's name; `None`: all tenants share the documents.
    pub(crate) tenant_filter: Option<String>,
    pub(crate) embedding: Embedding,
    /// The similarity cache; `None`: every chat is searched for.
    pub(crate) similarity: Option<SimilarityConfig>,
    /// Most bytes of all documents that the similarity cache's entries name.
    pub(crate) max_document_bytes: usize,
    pub(crate) warm_up: Option<WarmUp>,
    /// The text before and after the documents, as between the quotes of a JSON string.
    pub(crate) wrapper: [String; 2],
}

/// A server that the filter calls.
#[derive(Clone)]
pub(crate) struct Peer {
    /// Name of Envoy's cluster.
    pub(crate) cluster: String,
    pub(crate) path: String,
    /// Bearer token for the server. Never logged.
    pub(crate) token: Option<String>,
    pub(crate) timeout_ms: u64,
    pub(crate) max_answer_bytes: usize,
}

/// What happens to a chat for which no documents could be retrieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnNothing {
    /// The chat goes on without documents.
    Continue,
    /// The chat is answered with an error.
    Fail,
}

/// The source of a question's vector; the client's own vector comes first.
#[derive(Clone)]
pub(crate) struct Embedding {
    /// Name of the header in which a client may send the vector. Always removed.
    pub(crate) header: Option<String>,
    /// The embedder to call otherwise; `None`: the retriever gets the question alone.
    pub(crate) embedder: Option<Peer>,
    pub(crate) model: Option<String>,
}

/// The warm-up, which computes the prompt's beginning while documents are searched.
#[derive(Clone)]
pub(crate) struct WarmUp {
    pub(crate) engine: Peer,
    /// Most warm-ups at once, of one worker (of all workers, in the dynamic module).
    pub(crate) max_in_flight: u32,
}

impl RetrievalConfig {
    pub(crate) fn from_json(value: &Value) -> Result<Self, ConfigError> {
        let fields = Fields::of("retrieval", value, &FIELDS)?;
        let cluster = fields.cluster("retrieval.cluster")?;
        let cluster = cluster.ok_or_else(|| {
            let limit = format!("the name of an Envoy cluster, at most {MAX_CLUSTER_BYTES} bytes");
            invalid("retrieval.cluster", &Value::Null, limit)
        })?;
        let retriever = Peer {
            cluster,
            path: (fields.path("retrieval.path")?).unwrap_or_else(|| "/v1/retrieve".to_owned()),
            token: fields.token()?,
            timeout_ms: fields.number("retrieval.timeout_ms", 1, 600_000, 1_000)?,
            max_answer_bytes: fields.size("retrieval.max_answer_bytes", 1, 16 << 20, 1 << 20)?,
        };
        Ok(Self {
            k: u16::try_from(fields.number("retrieval.k", 1, 200, 5)?).unwrap_or(5),
            max_question_bytes: fields.size("retrieval.max_question_bytes", 1, 65_536, 16_384)?,
            on_failure: fields.on_failure()?,
            tenant_filter: fields.text("retrieval.tenant_filter", 1)?,
            embedding: Embedding::from_json(fields.get("embedding"), &retriever)?,
            similarity: match fields.get("similarity") {
                None | Some(Value::Null) => None,
                Some(value) => Some(similarity(value)?),
            },
            max_document_bytes: fields.size(
                "retrieval.max_document_bytes",
                0,
                256 << 20,
                16 << 20,
            )?,
            warm_up: match fields.get("warm_up") {
                None | Some(Value::Null) => None,
                Some(value) => Some(WarmUp::from_json(value, &retriever)?),
            },
            wrapper: wrapper(fields.get("wrapper"))?,
            retriever,
        })
    }

    /// Returns whether documents stay in a chat that goes on, unless `ordering.conversation.pin` says otherwise.
    pub(crate) fn keeps(value: &Value) -> Result<bool, ConfigError> {
        let keep = value.get("keep");
        keep.map_or(Ok(true), |keep| switch("retrieval.keep", keep))
    }
}

impl Embedding {
    fn from_json(value: Option<&Value>, retriever: &Peer) -> Result<Self, ConfigError> {
        let nothing = Value::Object(Map::new());
        let known = ["cluster", "path", "model", "header"];
        let fields = Fields::of("retrieval.embedding", value.unwrap_or(&nothing), &known)?;
        let cluster = fields.cluster("retrieval.embedding.cluster")?;
        let path = match fields.get("path") {
            Some(Value::Null) => None,
            _ => Some(
                fields
                    .path("retrieval.embedding.path")?
                    .unwrap_or_else(|| "/v1/embeddings".to_owned()),
            ),
        };
        Ok(Self {
            header: match fields.get("header") {
                None | Some(Value::Null) => None,
                Some(name) => Some(own_header("retrieval.embedding.header", name)?),
            },
            embedder: path.map(|path| Peer {
                cluster: cluster.unwrap_or_else(|| retriever.cluster.clone()),
                path,
                ..retriever.clone()
            }),
            model: fields.text("retrieval.embedding.model", 1)?,
        })
    }
}

impl WarmUp {
    fn from_json(value: &Value, retriever: &Peer) -> Result<Self, ConfigError> {
        let known = ["cluster", "path", "timeout_ms", "max_in_flight"];
        let fields = Fields::of("retrieval.warm_up", value, &known)?;
        let cluster = fields.cluster("retrieval.warm_up.cluster")?;
        let path = fields.path("retrieval.warm_up.path")?;
        let timeout_ms = fields.number("retrieval.warm_up.timeout_ms", 1, 600_000, 10_000)?;
        let max_in_flight = fields.number("retrieval.warm_up.max_in_flight", 1, 1_024, 8)?;
        Ok(Self {
            engine: Peer {
                cluster: cluster.unwrap_or_else(|| retriever.cluster.clone()),
                path: path.unwrap_or_else(|| "/v1/prefill".to_owned()),
                timeout_ms,
                ..retriever.clone()
            },
            max_in_flight: u32::try_from(max_in_flight).unwrap_or(1),
        })
    }
}

/// Checks the core's part, and the room that it may take in a VM.
fn similarity(value: &Value) -> Result<SimilarityConfig, ConfigError> {
    const TOLERANCE: &str = "similarity.tolerance";
    let refused = |error| match error {
        // The limits depend on the metric.
        foreword_ordering::ConfigError::Value {
            field: TOLERANCE, ..
        } => ConfigError::Conflict {
            field: "retrieval.similarity.tolerance",
            rule: "it must be from 0 to 2 for cosine, from 0 for l2, and at most 1e37 either way for inner-product",
        },
        error => ConfigError::Retrieval(error.to_string()),
    };
    if !value.is_object() {
        let limit = "an object with the fields of a similarity cache, or null";
        return Err(invalid("retrieval.similarity", value, limit));
    }
    let config = SimilarityConfig::from_json(value.to_string().as_bytes()).map_err(refused)?;
    if config.max_bytes() > MAX_SIMILARITY_BYTES {
        return Err(ConfigError::Conflict {
            field: "retrieval.similarity",
            rule: "all caches together may take 512 MiB: lower capacity, max_documents, max_id_bytes or max_caches",
        });
    }
    Ok(config)
}

fn wrapper(value: Option<&Value>) -> Result<[String; 2], ConfigError> {
    let nothing = Value::Object(Map::new());
    let fields = Fields::of(
        "retrieval.wrapper",
        value.unwrap_or(&nothing),
        &["before", "after"],
    )?;
    let quoted = |field| -> Result<String, ConfigError> {
        let text = Value::from(fields.text(field, 0)?.unwrap_or_default()).to_string();
        let inner = text
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'));
        Ok(inner.unwrap_or_default().to_owned())
    };
    Ok([
        quoted("retrieval.wrapper.before")?,
        quoted("retrieval.wrapper.after")?,
    ])
}

/// Checks the name of a header of the filter's own, which is removed from requests.
fn own_header(field: &'static str, value: &Value) -> Result<String, ConfigError> {
    let name = header_name(field, value)?;
    if name.starts_with("x-") {
        return Ok(name);
    }
    Err(invalid(field, value, r#"a name that begins with "x-""#))
}

/// An object of known fields. A field's name is the last part of its path.
struct Fields<'v>(&'v Map<String, Value>);

impl<'v> Fields<'v> {
    fn of(field: &'static str, value: &'v Value, known: &[&str]) -> Result<Self, ConfigError> {
        // The value may contain a token.
        let shown = Value::from("…");
        object(field, value, known).map(Self).map_err(|_| {
            invalid(
                field,
                &shown,
                format!("an object with the fields {}", known.join(", ")),
            )
        })
    }

    fn get(&self, name: &str) -> Option<&'v Value> {
        self.0.get(name)
    }

    fn at(&self, path: &str) -> Option<&'v Value> {
        let name = path.rsplit('.').next().unwrap_or_default();
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn number(
        &self,
        field: &'static str,
        low: u64,
        high: u64,
        default: u64,
    ) -> Result<u64, ConfigError> {
        let name = field.rsplit('.').next().unwrap_or_default();
        let Some(value) = self.0.get(name) else {
            return Ok(default);
        };
        let number = value
            .as_u64()
            .filter(|number| (low..=high).contains(number));
        number.ok_or_else(|| invalid(field, value, format!("a whole number from {low} to {high}")))
    }

    fn size(
        &self,
        field: &'static str,
        low: u64,
        high: u64,
        default: u64,
    ) -> Result<usize, ConfigError> {
        let size = self.number(field, low, high, default)?;
        Ok(usize::try_from(size).unwrap_or(usize::MAX))
    }

    /// Returns a text of `least` to [`MAX_TEXT_BYTES`] bytes; null counts as absent.
    fn text(&self, field: &'static str, least: usize) -> Result<Option<String>, ConfigError> {
        let Some(value) = self.at(field) else {
            return Ok(None);
        };
        let text = value
            .as_str()
            .filter(|text| (least..=MAX_TEXT_CHARS).contains(&text.chars().count()));
        let text = text.ok_or_else(|| {
            invalid(
                field,
                value,
                format!("a text of {least} to {MAX_TEXT_CHARS} characters"),
            )
        })?;
        Ok(Some(text.to_owned()))
    }

    fn cluster(&self, field: &'static str) -> Result<Option<String>, ConfigError> {
        let Some(value) = self.at(field) else {
            return Ok(None);
        };
        let is_name = |name: &&str| {
            (1..=MAX_CLUSTER_BYTES).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let name = value.as_str().filter(is_name).ok_or_else(|| {
            let limit = format!(
                "the name of an Envoy cluster, 1 to {MAX_CLUSTER_BYTES} visible ASCII characters"
            );
            invalid(field, value, limit)
        })?;
        Ok(Some(name.to_owned()))
    }

    fn path(&self, field: &'static str) -> Result<Option<String>, ConfigError> {
        let name = field.rsplit('.').next().unwrap_or_default();
        let Some(value) = self.0.get(name) else {
            return Ok(None);
        };
        let is_path = |path: &&str| {
            path.starts_with('/')
                && path.len() <= MAX_PATH_BYTES
                && path.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let path = value.as_str().filter(is_path).ok_or_else(|| {
            let limit = format!(
                "a path of at most {MAX_PATH_BYTES} visible ASCII characters that begins with \"/\""
            );
            invalid(field, value, limit)
        })?;
        Ok(Some(path.to_owned()))
    }

    /// The value is a secret, so the error does not quote it.
    fn token(&self) -> Result<Option<String>, ConfigError> {
        const FIELD: &str = "retrieval.token";
        let Some(value) = self.at(FIELD) else {
            return Ok(None);
        };
        let is_token = |token: &&str| {
            (1..=MAX_TOKEN_BYTES).contains(&token.len())
                && token.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let token = value.as_str().filter(is_token).ok_or_else(|| {
            let limit = format!("1 to {MAX_TOKEN_BYTES} visible ASCII characters");
            invalid(FIELD, &Value::from("…"), limit)
        })?;
        Ok(Some(token.to_owned()))
    }

    fn on_failure(&self) -> Result<OnNothing, ConfigError> {
        match self.0.get("on_failure") {
            None => Ok(OnNothing::Continue),
            Some(value) => match value.as_str() {
                Some("continue") => Ok(OnNothing::Continue),
                Some("fail") => Ok(OnNothing::Fail),
                _ => Err(invalid(
                    "retrieval.on_failure",
                    value,
                    r#""continue" or "fail""#,
                )),
            },
        }
    }
}

const FIELDS: [&str; 15] = [
    "cluster",
    "path",
    "token",
    "timeout_ms",
    "max_answer_bytes",
    "max_question_bytes",
    "k",
    "on_failure",
    "tenant_filter",
    "keep",
    "embedding",
    "similarity",
    "max_document_bytes",
    "warm_up",
    "wrapper",
];
const MAX_CLUSTER_BYTES: usize = 256;
const MAX_TOKEN_BYTES: usize = 4096;
const MAX_PATH_BYTES: usize = 256;
const MAX_TEXT_CHARS: usize = 1024;
/// Most bytes of all similarity caches; a worker's VM ends near 1 GiB.
const MAX_SIMILARITY_BYTES: u64 = 512 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error(value: &Value) -> String {
        let config = RetrievalConfig::from_json(value);
        config.err().unwrap().to_string()
    }

    #[test]
    fn a_cluster_is_all_that_is_needed() {
        let config = RetrievalConfig::from_json(&json!({"cluster": "host"})).unwrap();
        let embedder = config.embedding.embedder.unwrap();
        assert_eq!(
            (&*config.retriever.path, &*embedder.path, &*embedder.cluster),
            ("/v1/retrieve", "/v1/embeddings", "host")
        );
        assert_eq!((config.k, config.on_failure), (5, OnNothing::Continue));
        assert!(config.similarity.is_none() && config.warm_up.is_none());
        assert_eq!(config.wrapper, ["", ""]);
    }

    #[test]
    fn peers_of_their_own_keep_the_retrievers_token() {
        let config = RetrievalConfig::from_json(&json!({
            "cluster": "host", "token": "secret", "wrapper": {"before": "\"<\n"},
            "embedding": {"cluster": "embedder", "path": "/e", "header": "X-Embedding"},
            "warm_up": {"cluster": "engine", "timeout_ms": 7},
        }))
        .unwrap();
        let embedder = config.embedding.embedder.unwrap();
        assert_eq!((&*embedder.cluster, &*embedder.path), ("embedder", "/e"));
        assert_eq!(embedder.token.as_deref(), Some("secret"));
        assert_eq!(config.embedding.header.as_deref(), Some("x-embedding"));
        let engine = config.warm_up.unwrap().engine;
        assert_eq!((&*engine.cluster, engine.timeout_ms), ("engine", 7));
        assert_eq!(config.wrapper, [r#"\"<\n"#, ""]);
    }

    #[test]
    fn a_wrong_value_is_named_with_its_limit_and_a_secret_is_not() {
        for (value, words) in [
            (json!({}), ["retrieval.cluster: null", "Envoy cluster"]),
            (
                json!({"cluster": "c", "k": 0}),
                ["retrieval.k: 0", "1 to 200"],
            ),
            (
                json!({"cluster": "c", "on_failure": "pass"}),
                ["retrieval.on_failure: \"pass\"", "\"continue\" or \"fail\""],
            ),
            (
                json!({"cluster": "c", "path": "retrieve"}),
                ["retrieval.path: \"retrieve\"", "begins with \"/\""],
            ),
            (
                json!({"cluster": "c", "embedding": {"header": "host"}}),
                ["retrieval.embedding.header: \"host\"", "x-"],
            ),
            (
                json!({"cluster": "c", "similarity": {"tolerance": 3}}),
                ["retrieval.similarity.tolerance", "0 to 2"],
            ),
            (
                json!({"cluster": "c", "similarity": {"capacity": 0}}),
                ["retrieval: similarity.capacity: 0", "1 to 10000000"],
            ),
            (
                json!({"cluster": "c", "similarity": {"capacity": 1_000_000}}),
                ["retrieval.similarity", "512 MiB"],
            ),
            (
                json!({"cluster": "c", "warm_up": {"max_in_flight": 0}}),
                ["retrieval.warm_up.max_in_flight: 0", "1 to 1024"],
            ),
            (
                json!({"cluster": "c", "token": "secret\n"}),
                ["retrieval.token", "visible"],
            ),
            (
                json!({"cluster": "c", "tokens": "secret"}),
                ["retrieval: \"…\"", "token"],
            ),
        ] {
            let error = error(&value);
            for word in words {
                assert!(error.contains(word), "{error} lacks {word}");
            }
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
