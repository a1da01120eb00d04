//! The requirements and prices of each kind of cache, as Anthropic, OpenAI and Bedrock publish them in November 2026.

crate::named! {
    /// The kind of an upstream's cache: up to where it can match a prompt with earlier ones.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum CacheKind {
        /// Caches any shared prefix: vLLM's dense models, SGLang, llama.cpp, Gemini, OpenAI before GPT-5.6. The gateway
        /// sets no markers.
        #[default]
        Prefix = "prefix",
        /// Caches prefixes up to boundaries marked by `cache_control`: Anthropic, and routers that translate it.
        Anthropic = "anthropic",
        /// Caches prefixes up to boundaries marked by `prompt_cache_breakpoint`: OpenAI from GPT-5.6 on.
        OpenAi = "openai",
        /// Caches prefixes up to boundaries marked by a `cachePoint` block: Bedrock Converse.
        Bedrock = "bedrock",
        /// Caches prefixes of whole units, each of a fixed number of tokens: DeepSeek, vLLM's hybrid models. The
        /// gateway sets no markers.
        Units = "units",
    }
}

impl CacheKind {
    /// Returns whether this kind of cache matches prompts only up to cache markers, which the gateway can set.
    #[must_use]
    pub fn has_markers(self) -> bool {
        matches!(self, Self::Anthropic | Self::OpenAi | Self::Bedrock)
    }

    /// Returns whether a model takes this kind's cache markers, by its name: of OpenAI's models GPT-5.6 and later ones
    /// do, of Bedrock's Claude; others refuse a request for them.
    #[must_use]
    pub fn takes_markers(self, model: &str) -> bool {
        match self {
            Self::Prefix | Self::Units => false,
            Self::Anthropic => true,
            Self::Bedrock => model.contains("claude"),
            Self::OpenAi => model.split_once("gpt-").is_some_and(|(_, version)| {
                let mut numbers = version.split(|c: char| !c.is_ascii_digit());
                let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
                let major = number();
                // `gpt-5` is older than `gpt-5.6`; a date behind the number is no part of it.
                let minor = version.contains('.').then(number).flatten();
                (major, minor) >= (Some(5), Some(6))
            }),
        }
    }

    /// Returns the published rules of this kind of cache for a model, found by parts of the model's name. Routers write
    /// dots in versions (`claude-opus-4.5`), where Anthropic has hyphens.
    #[must_use]
    pub fn rules(self, model: &str) -> CacheRules {
        let model = model.replace('.', "-");
        let anthropics = || {
            let table =
                (MINIMA.iter()).find(|(names, _)| names.iter().any(|name| model.contains(name)));
            table.map_or(DEFAULT_MINIMUM, |(_, tokens)| *tokens)
        };
        let rules = CacheRules {
            kind: self,
            minimum_tokens: 0,
            markers: MAX_MARKERS,
            look_back: 20,
            unit_tokens: 1,
            write: 1.25,
            write_long: 2.0,
            read: 0.1,
            ttl_ms: 5 * MINUTE_MS,
            long_ttl_ms: 60 * MINUTE_MS,
        };
        match self {
            Self::Prefix => CacheRules {
                write: 1.0,
                write_long: 1.0,
                ..rules
            },
            Self::Anthropic => CacheRules {
                minimum_tokens: anthropics(),
                read: (READS.iter())
                    .find(|(names, _)| names.iter().any(|name| model.contains(name)))
                    .map_or(rules.read, |(_, read)| *read),
                ..rules
            },
            Self::Bedrock => CacheRules {
                minimum_tokens: anthropics().max(DEFAULT_MINIMUM),
                ..rules
            },
            Self::OpenAi => CacheRules {
                minimum_tokens: DEFAULT_MINIMUM,
                look_back: 1,
                write_long: 1.25,
                ttl_ms: 30 * MINUTE_MS,
                long_ttl_ms: 12 * 60 * MINUTE_MS,
                ..rules
            },
            Self::Units => CacheRules {
                unit_tokens: 64,
                write: 1.0,
                write_long: 1.0,
                ..rules
            },
        }
    }
}

/// The rules and relative prices of one upstream's cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheRules {
    /// The kind of the upstream's cache.
    pub kind: CacheKind,
    /// The minimum number of prompt tokens before a cache boundary; a provider caches no shorter prefix, and returns no
    /// error.
    pub minimum_tokens: u32,
    /// The maximum number of cache markers in one request, including the client's.
    pub markers: u32,
    /// Number of steps (see [`Position::step`](super::Position::step)) at which the provider searches for a cached
    /// prefix, from a marker's own position backwards. With 1, it searches only at the marker's own position.
    pub look_back: u32,
    /// Number of tokens in a unit of the cache, of which a cached prefix has a whole number; 1 if prefixes of any
    /// length are cached.
    pub unit_tokens: u32,
    /// Price of a token written to the cache, relative to an uncached one.
    pub write: f64,
    /// Price of a token written to the cache with the longer lifetime, relative to an uncached one.
    pub write_long: f64,
    /// Price of a token read from the cache, relative to an uncached one.
    pub read: f64,
    /// Default time, in milliseconds, for which the provider keeps a cached prefix that is not used again.
    pub ttl_ms: u64,
    /// The longer time, in milliseconds, for which a marker may request to keep a prefix that is not used again.
    pub long_ttl_ms: u64,
}

/// The maximum number of cache markers in a request, including the client's: the limit of Anthropic, OpenAI and
/// Bedrock.
pub const MAX_MARKERS: u32 = 4;

const MINUTE_MS: u64 = 60_000;

/// The minimum number of prompt tokens before a cache boundary for models whose names [`MINIMA`] does not list.
const DEFAULT_MINIMUM: u32 = 1_024;

/// The minimum number of prompt tokens before a cache boundary, by parts of Anthropic's model names; the first entry
/// with a part that occurs in the name applies.
const MINIMA: &[(&[&str], u32)] = &[
    (
        &["mythos-preview", "opus-4-7", "haiku-3-5", "3-5-haiku"],
        2_048,
    ),
    (&["opus-4-6", "opus-4-5", "haiku-4-5"], 4_096),
    (
        &["fable-5", "mythos-5", "opus-5", "sonnet-5-5", "haiku-5-5"],
        512,
    ),
];

/// Prices of a token read from the cache, relative to an uncached one, by parts of Anthropic's model names; the first
/// entry with a part that occurs in the name applies.
const READS: &[(&[&str], f64)] = &[
    (&["opus-5-5", "sonnet-5-5"], 0.05),
    (&["fable-5-1", "mythos-5-1"], 0.025),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minima_and_prices_are_the_models() {
        let of = |model: &str| {
            let rules = CacheKind::Anthropic.rules(model);
            (rules.minimum_tokens, rules.read)
        };
        assert_eq!(of("claude-opus-5-5"), (512, 0.05));
        assert_eq!(of("claude-opus-5-20260724"), (512, 0.1));
        assert_eq!(of("claude-sonnet-5"), (1_024, 0.1));
        assert_eq!(of("claude-sonnet-5-5"), (512, 0.05));
        assert_eq!(of("claude-fable-5-1"), (512, 0.025));
        assert_eq!(of("claude-opus-4-6"), (4_096, 0.1));
        assert_eq!(of("claude-opus-4-7"), (2_048, 0.1));
        assert_eq!(of("anthropic/claude-opus-5.5"), (512, 0.05));
        assert_eq!(of("claude-3-5-haiku-latest"), (2_048, 0.1));
        assert_eq!(of(""), (1_024, 0.1));
        let bedrock = CacheKind::Bedrock.rules("anthropic.claude-haiku-4-5-20251001-v1:0");
        assert_eq!((bedrock.minimum_tokens, bedrock.look_back), (4_096, 20));
        let openai = CacheKind::OpenAi.rules("gpt-5.6");
        assert_eq!((openai.minimum_tokens, openai.look_back), (1_024, 1));
    }

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in CacheKind::ALL {
            assert_eq!(CacheKind::by_name(kind.name()), Some(kind));
        }
        assert_eq!(CacheKind::by_name("Anthropic"), None);
        assert_eq!(CacheKind::default(), CacheKind::Prefix);
    }
}
