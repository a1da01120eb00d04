//! The part `retrieval` of the plugin configuration.

use foreword_similarity::SimilarityConfig;
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::fields::{Fields, invalid};
use super::{ConfigError, OnFailure};

/// The configuration of retrieval: the gateway searches for documents for chats that have none.
#[derive(Clone)]
pub(crate) struct RetrievalConfig {
    pub(crate) retriever: Peer,
    /// Number of documents to retrieve for one question, unless the client asks for another number.
    pub(crate) k: u16,
    /// The maximum length in bytes of a question that is searched for. A chat with a longer one gets no documents.
    pub(crate) max_question_bytes: usize,
    /// The treatment of a chat whose retrieval fails: forwarded without documents, or refused.
    pub(crate) on_failure: OnFailure,
    /// True if retrieved documents stay in the chat's later requests. This is the default of
    /// `ordering.conversation.pin`.
    pub(crate) keep: bool,
    /// Name of a metadata field: only documents in which it equals the tenant's name are retrieved. `None` if all
    /// tenants share the documents.
    pub(crate) tenant_filter: Option<String>,
    pub(crate) embedding: Embedding,
    /// The configuration of the similarity cache, which returns the documents of similar earlier questions; `None` to
    /// call the retriever for every question.
    pub(crate) similarity: Option<SimilarityConfig>,
    /// Number of results in the ring buffer through which Wasm VMs share retrieval results; 0 disables sharing.
    pub(crate) shared_results: u32,
    /// A hash of the whole part `retrieval`. Only plugins with equal hashes share results.
    pub(crate) identity: u64,
    /// The maximum number of bytes of all document texts stored for the similarity cache of one plugin; in Wasm, of
    /// each worker.
    pub(crate) max_document_bytes: usize,
    pub(crate) warm_up: Option<WarmUp>,
    /// Texts that the gateway writes before and after the retrieved documents, escaped as in a JSON string.
    pub(crate) wrapper: [String; 2],
}

/// A server that the filter calls: the retriever, the embedder, or the engine for a warm-up.
#[derive(Clone)]
pub(crate) struct Peer {
    /// Name of the Envoy cluster through which the server is called.
    pub(crate) cluster: String,
    pub(crate) path: String,
    /// Bearer token for the server. Never logged.
    pub(crate) token: Option<String>,
    pub(crate) timeout_ms: u64,
    pub(crate) max_answer_bytes: usize,
}

/// The sources of a question's embedding vector: a header that the client may send, and an embedder that the gateway
/// calls.
#[derive(Clone)]
pub(crate) struct Embedding {
    /// Name of the request header in which a client may send the vector; `None` if it may not. The filter removes the
    /// header from requests.
    pub(crate) header: Option<String>,
    /// The embedder to call; `None` if the gateway sends the retriever only the text of the question.
    pub(crate) embedder: Option<Peer>,
    pub(crate) model: Option<String>,
}

/// The configuration of warm-ups: during a search, the gateway asks the engine to prefill the chat's first system
/// messages.
#[derive(Clone)]
pub(crate) struct WarmUp {
    pub(crate) engine: Peer,
    /// The maximum number of warm-ups in flight, for one worker in Wasm or for all workers in the dynamic module.
    pub(crate) max_in_flight: u32,
}

impl RetrievalConfig {
    pub(crate) fn from_json(value: &Value) -> Result<Self, ConfigError> {
        // The value may hold a token, so errors do not quote it.
        let fields = Fields::secret("retrieval", value, &FIELDS)?;
        let retriever = Peer {
            cluster: fields.required_cluster("retrieval.cluster")?,
            path: (fields.path("retrieval.path")?).unwrap_or_else(|| "/v1/retrieve".to_owned()),
            token: fields.token("retrieval.token")?,
            timeout_ms: fields.number("retrieval.timeout_ms", 1..=600_000, 1_000)?,
            max_answer_bytes: fields.number("retrieval.max_answer_bytes", 1..=16 << 20, 1 << 20)?,
        };
        let documents = 0..=256 << 20;
        let k = fields.number("retrieval.k", 1..=200, 5)?;
        let similarity = fields.given("similarity").map(similarity).transpose()?;
        if similarity
            .as_ref()
            .is_some_and(|similarity| similarity.max_documents() < u32::from(k))
        {
            return Err(ConfigError::Conflict {
                field: "retrieval.similarity.max_documents",
                rule: "it must be at least retrieval.k, or no result is ever kept",
            });
        }
        Ok(Self {
            k,
            max_question_bytes: fields.number(
                "retrieval.max_question_bytes",
                1..=65_536,
                16_384,
            )?,
            on_failure: on_failure(&fields)?,
            keep: fields.switch("retrieval.keep", true)?,
            tenant_filter: fields.text("retrieval.tenant_filter", 1)?,
            embedding: Embedding::read(fields.get("embedding"), &retriever)?,
            similarity,
            shared_results: fields.number(
                "retrieval.shared_results",
                0..=MAX_SHARED_RESULTS,
                256,
            )?,
            identity: {
                let mut hasher = DefaultHasher::new();
                value.to_string().hash(&mut hasher);
                hasher.finish()
            },
            max_document_bytes: fields.number(
                "retrieval.max_document_bytes",
                documents,
                16 << 20,
            )?,
            warm_up: (fields.given("warm_up"))
                .map(|value| WarmUp::read(value, &retriever))
                .transpose()?,
            wrapper: wrapper(fields.get("wrapper"))?,
            retriever,
        })
    }
}

/// Reads `retrieval.on_failure`. The words `continue` and `fail` are accepted as synonyms of `pass` and `refuse`.
fn on_failure(fields: &Fields<'_>) -> Result<OnFailure, ConfigError> {
    const FIELD: &str = "retrieval.on_failure";
    match fields.get(FIELD).and_then(Value::as_str) {
        Some("continue") => Ok(OnFailure::Pass),
        Some("fail") => Ok(OnFailure::Refuse),
        _ => fields.one_of(FIELD, OnFailure::WORDS),
    }
}

impl Embedding {
    fn read(value: Option<&Value>, retriever: &Peer) -> Result<Self, ConfigError> {
        let known = ["cluster", "path", "model", "header"];
        let fields = Fields::of("retrieval.embedding", value, &known)?;
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
            header: fields.own_header("retrieval.embedding.header", None)?,
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
    fn read(value: &Value, retriever: &Peer) -> Result<Self, ConfigError> {
        let known = ["cluster", "path", "timeout_ms", "max_in_flight"];
        let fields = Fields::of("retrieval.warm_up", Some(value), &known)?;
        let cluster = fields.cluster("retrieval.warm_up.cluster")?;
        let path = fields.path("retrieval.warm_up.path")?;
        Ok(Self {
            max_in_flight: fields.number("retrieval.warm_up.max_in_flight", 1..=1_024, 8)?,
            engine: Peer {
                cluster: cluster.unwrap_or_else(|| retriever.cluster.clone()),
                path: path.unwrap_or_else(|| "/v1/prefill".to_owned()),
                timeout_ms: fields.number("retrieval.warm_up.timeout_ms", 1..=600_000, 10_000)?,
                ..retriever.clone()
            },
        })
    }
}

/// Reads and validates the part `retrieval.similarity`. Returns an error if its caches might need more than
/// [`MAX_SIMILARITY_BYTES`].
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
    let config = SimilarityConfig::from_value(value).map_err(refused)?;
    if config.max_bytes() > MAX_SIMILARITY_BYTES {
        return Err(ConfigError::Conflict {
            field: "retrieval.similarity",
            rule: "all caches together may take 512 MiB: lower capacity, max_documents, max_id_bytes or max_caches",
        });
    }
    Ok(config)
}

fn wrapper(value: Option<&Value>) -> Result<[String; 2], ConfigError> {
    let fields = Fields::of("retrieval.wrapper", value, &["before", "after"])?;
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

const FIELDS: [&str; 16] = [
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
    "shared_results",
    "max_document_bytes",
    "warm_up",
    "wrapper",
];
/// The maximum number of retrieval results in the ring buffer that workers share. Each takes up to 64 KiB of the
/// proxy's memory.
const MAX_SHARED_RESULTS: u32 = 4_096;
/// The maximum number of bytes of all similarity caches of one plugin in a VM, whose memory is limited to about 1 GiB.
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
        assert_eq!((config.k, config.on_failure), (5, OnFailure::Pass));
        let older = |word| {
            let value = json!({"cluster": "c", "on_failure": word});
            RetrievalConfig::from_json(&value).unwrap().on_failure
        };
        assert_eq!(
            [older("continue"), older("fail")],
            [OnFailure::Pass, OnFailure::Refuse]
        );
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
                json!({"cluster": "c", "on_failure": "drop"}),
                ["retrieval.on_failure: \"drop\"", "\"pass\" or \"refuse\""],
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
