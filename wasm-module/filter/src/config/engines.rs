//! The part `engines` of the plugin configuration.

use std::net::SocketAddr;

use foreword_ordering::MAX_ENGINES;
use foreword_ordering::cuts::CacheKind;
use serde_json::Value;

use super::fields::{Fields, invalid, name, number};
use super::{ConfigError, SaltKey};

/// The configuration of one engine behind the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EngineConfig {
    /// The engine's unique name, used in logs and in keys of shared data.
    pub(crate) name: String,
    /// The address to which Envoy sends requests; `None` if there is only one engine and its address is not configured.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) feed: Option<FeedConfig>,
    /// Number of tokens in a block of the engine's cache; `None` if not configured.
    pub(crate) block_tokens: Option<u32>,
    /// The kind of the engine's cache, which decides whether prompts for the engine get cache markers.
    pub(crate) cache: CacheKind,
    /// Routes on which the engine separates tenants' caches by `cache_salt`; `None` for [`SALTED_ROUTES`].
    pub(super) salts: Option<Vec<String>>,
}

impl EngineConfig {
    /// Returns whether the engine separates caches by the `cache_salt` of requests on this route. By default it does on
    /// routes where the request models of both vLLM and SGLang have the field. On `/v1/messages` only vLLM has it
    /// (since vllm#49498).
    pub(super) fn keeps_salts(&self, route: &str) -> bool {
        match &self.salts {
            Some(routes) => routes.iter().any(|salted| salted == route),
            None => SALTED_ROUTES.iter().any(|salted| route.ends_with(salted)),
        }
    }
}

/// The configuration of an engine's feed, from which the gateway reads the events of the engine's cache.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FeedConfig {
    /// Name of the Envoy cluster through which the feed's server is called.
    pub(crate) cluster: String,
    /// Bearer token for the feed's server. Never logged.
    pub(crate) token: Option<String>,
    /// The key that the feed must be sealed (encrypted) with; `None` if it must be unsealed.
    pub(crate) key: Option<SaltKey>,
}

impl std::fmt::Debug for FeedConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FeedConfig")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

/// Reads the list `engines`, in order. If it is absent, returns one engine with default settings. Returns an error if
/// the list's length or an engine is invalid, or if two engines have the same name or address.
pub(crate) fn engines(value: Option<&Value>) -> Result<Vec<EngineConfig>, ConfigError> {
    let Some(value) = value else {
        return Ok(vec![EngineConfig {
            name: "engine".to_owned(),
            address: None,
            feed: None,
            block_tokens: None,
            cache: CacheKind::default(),
            salts: None,
        }]);
    };
    let list = value
        .as_array()
        .filter(|list| (1..=usize::from(MAX_ENGINES)).contains(&list.len()));
    let list = list.ok_or_else(|| {
        let limit = format!("a list of 1 to {MAX_ENGINES} engines");
        invalid("engines", value, limit)
    })?;
    let mut engines = Vec::with_capacity(list.len());
    for value in list {
        let engine = engine(value)?;
        if list.len() > 1 && engine.address.is_none() {
            return Err(invalid(
                "engines",
                value,
                "an engine with an address, as there are several",
            ));
        }
        let is_known = |known: &EngineConfig| {
            known.name == engine.name
                || (known.address.is_some() && known.address == engine.address)
        };
        if engines.iter().any(is_known) {
            return Err(invalid(
                "engines",
                value,
                "an engine of its own name and address",
            ));
        }
        engines.push(engine);
    }
    Ok(engines)
}

fn engine(value: &Value) -> Result<EngineConfig, ConfigError> {
    let known = ["name", "address", "feed", "block_tokens", "cache", "salts"];
    // The value may hold a feed's token.
    let fields = Fields::secret("engines", value, &known)?;
    let address = fields.given("engines.address").map(address).transpose()?;
    let block_tokens = fields.given("engines.block_tokens").map(|value| {
        let range = 1..=MAX_BLOCK_TOKENS;
        number("engines.block_tokens", value, range)
    });
    let block_tokens = block_tokens.transpose()?;
    let cache = fields.get("engines.cache").map(cache).transpose()?;
    let cache = cache.unwrap_or_default();
    if cache == CacheKind::Units && block_tokens.is_none() {
        return Err(ConfigError::Conflict {
            field: "engines.cache",
            rule: "\"units\" are stored in the size that `block_tokens` states, so it needs `block_tokens`",
        });
    }
    let salts = fields.given("engines.salts");
    let salts = salts.map(|_| fields.paths("engines.salts", 0, Vec::new));
    Ok(EngineConfig {
        salts: salts.transpose()?,
        name: name(
            "engines.name",
            fields.get("engines.name").unwrap_or(&Value::Null),
        )?,
        address,
        feed: fields.given("engines.feed").map(feed).transpose()?,
        block_tokens,
        cache,
    })
}

fn cache(value: &Value) -> Result<CacheKind, ConfigError> {
    let kind = value.as_str().and_then(CacheKind::by_name);
    kind.ok_or_else(|| {
        let names = CacheKind::ALL.map(|kind| format!("\"{}\"", kind.name()));
        invalid(
            "engines.cache",
            value,
            format!("one of {}", names.join(", ")),
        )
    })
}

fn address(value: &Value) -> Result<SocketAddr, ConfigError> {
    let address = value.as_str().and_then(|address| address.parse().ok());
    address.ok_or_else(|| {
        let limit = "an IP address with a port, as in \"10.0.0.1:8000\"";
        invalid("engines.address", value, limit)
    })
}

fn feed(value: &Value) -> Result<FeedConfig, ConfigError> {
    let known = ["cluster", "token", "key", "key_env"];
    let fields = Fields::secret("engines.feed", value, &known)?;
    let names = ["engines.feed.key", "engines.feed.key_env"];
    if names.iter().all(|name| fields.given(name).is_some()) {
        return Err(ConfigError::Conflict {
            field: "engines.feed",
            rule: "it takes either `key` or `key_env`",
        });
    }
    Ok(FeedConfig {
        cluster: fields.required_cluster("engines.feed.cluster")?,
        token: fields.token("engines.feed.token")?,
        key: fields.key(names).transpose()?,
    })
}

/// The ends of the routes on which an engine is assumed to separate tenants' caches by `cache_salt`, unless its field
/// `salts` lists others.
const SALTED_ROUTES: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/responses"];
const MAX_BLOCK_TOKENS: u32 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn engines_are_read_in_their_order() {
        let value = json!([
            {"name": "a", "address": "10.0.0.1:8000", "feed": {"cluster": "feed-a", "token": "secret"}},
            {"name": "b", "address": "[::1]:8000", "feed": null},
        ]);
        let engines = engines(Some(&value)).unwrap();
        assert_eq!(engines[0].address, Some("10.0.0.1:8000".parse().unwrap()));
        let feed = engines[0].feed.as_ref().unwrap();
        assert_eq!(
            (&*feed.cluster, feed.token.as_deref()),
            ("feed-a", Some("secret"))
        );
        assert!(!format!("{engines:?}").contains("secret"));
        assert_eq!((&*engines[1].name, &engines[1].feed), ("b", &None));
    }

    #[test]
    fn a_feeds_key_is_given_or_named() {
        let feed = |mut fields: Value| {
            fields["cluster"] = json!("c");
            let value = json!([{"name": "a", "feed": fields}]);
            engines(Some(&value)).unwrap().remove(0).feed.unwrap().key
        };
        let digits = "5a".repeat(32);
        assert_eq!(
            feed(json!({"key": digits})),
            Some(SaltKey::Bytes(vec![0x5a; 32]))
        );
        assert_eq!(
            feed(json!({"key_env": "FEED_KEY", "key": null})),
            Some(SaltKey::Environment("FEED_KEY".into()))
        );
        assert_eq!(feed(json!({})), None);
    }

    #[test]
    fn one_engine_needs_no_address_and_is_there_without_being_named() {
        let value = json!([{"name": "a"}]);
        assert_eq!(engines(Some(&value)).unwrap()[0].address, None);
        assert_eq!(engines(None).unwrap().len(), 1);
    }

    #[test]
    fn salts_are_kept_on_the_routes_of_openai_unless_the_engine_says_where() {
        let keeps =
            |fields: Value, route| engines(Some(&json!([fields]))).unwrap()[0].keeps_salts(route);
        let chat = "/openai/v1/chat/completions";
        for fields in [json!({"name": "a"}), json!({"name": "a", "salts": null})] {
            assert!(keeps(fields.clone(), chat) && keeps(fields.clone(), "/v1/responses"));
            assert!(!keeps(fields.clone(), "/v1/messages") && !keeps(fields, "/v2/chat"));
        }
        let own = json!({"name": "a", "salts": ["/v1/messages"]});
        assert!(keeps(own.clone(), "/v1/messages") && !keeps(own, chat));
        assert!(!keeps(json!({"name": "a", "salts": []}), chat));
    }

    #[test]
    fn caches_are_told_apart_and_units_need_their_size() {
        let cache = |fields: Value| engines(Some(&json!([fields]))).map(|engines| engines[0].cache);
        let of = |fields| cache(fields).unwrap();
        assert_eq!(of(json!({"name": "a"})), CacheKind::Prefix);
        assert!(cache(json!({"name": "a", "cache": null})).is_err());
        assert_eq!(
            of(json!({"name": "a", "cache": "anthropic"})),
            CacheKind::Anthropic
        );
        assert_eq!(
            of(json!({"name": "a", "cache": "units", "block_tokens": 528})),
            CacheKind::Units
        );
        let error = cache(json!({"name": "a", "cache": "units"})).unwrap_err();
        assert!(error.to_string().contains("block_tokens"));
    }

    #[test]
    fn a_wrong_value_is_named_with_its_limit_and_a_secret_is_not() {
        let one = json!({"name": "a", "address": "10.0.0.1:1"});
        let many: Vec<Value> = (0..257).map(|_| one.clone()).collect();
        for (value, words) in [
            (json!({}), ["engines: {}", "a list of 1 to 256"]),
            (json!([]), ["engines: []", "a list of 1 to 256"]),
            (json!(many), ["engines: [", "a list of 1 to 256"]),
            (
                json!([{"name": "a", "adress": "x"}]),
                ["engines: ", "name, address, feed"],
            ),
            (
                json!([{"address": "10.0.0.1:1"}]),
                ["engines.name: null", "1 to 64"],
            ),
            (
                json!([{"name": "a b"}]),
                ["engines.name: \"a b\"", "1 to 64"],
            ),
            (
                json!([{"name": "a", "address": "host:1"}]),
                ["engines.address: \"host:1\"", "IP address"],
            ),
            (
                json!([{"name": "a", "salts": ["v1"]}]),
                ["engines.salts: \"v1\"", "begins with \"/\""],
            ),
            (
                json!([{"name": "a", "cache": "claude"}]),
                ["engines.cache: \"claude\"", "\"prefix\", \"anthropic\""],
            ),
            (json!([one, {"name": "b"}]), ["engines: {", "an address"]),
            (
                json!([one, {"name": "a", "address": "10.0.0.1:2"}]),
                ["engines: {", "of its own name"],
            ),
            (
                json!([one, {"name": "b", "address": "10.0.0.1:1"}]),
                ["engines: {", "of its own name"],
            ),
            (
                json!([{"name": "a", "feed": {}}]),
                ["engines.feed.cluster: null", "cluster"],
            ),
            (
                json!([{"name": "a", "feed": {"cluster": "c", "token": "secret\n"}}]),
                ["engines.feed.token", "visible"],
            ),
            (
                json!([{"name": "a", "feed": {"cluster": "c", "tokens": "secret"}}]),
                ["engines.feed", "cluster, token, key, key_env"],
            ),
            (
                json!([{"name": "a", "feed": {"cluster": "c", "key": "secret"}}]),
                ["engines.feed.key: a string of 6 bytes", "hexadecimal"],
            ),
            (
                json!([{"name": "a", "feed": {"cluster": "c", "key_env": "A B"}}]),
                ["engines.feed.key_env: \"A B\"", "environment"],
            ),
            (
                json!([{"name": "a", "feed": {"cluster": "c", "key": "5a".repeat(32), "key_env": "K"}}]),
                ["engines.feed", "either `key` or `key_env`"],
            ),
        ] {
            let error = engines(Some(&value)).unwrap_err().to_string();
            for word in words {
                assert!(error.contains(word), "{error} lacks {word}");
            }
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
