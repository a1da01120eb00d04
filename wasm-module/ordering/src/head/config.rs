//! Configuration of stabilising the prompt's head (tools, system text, and documents' markup): as written ([`RawHead`])
//! and validated ([`Head`]).

use super::patterns::{Class, Pattern};
use crate::object;
use crate::object::{ConfigError, Ranges};
use serde::Deserialize;
use serde::de::{Deserializer, Error};

object! {
    /// The configuration of the changes that stabilise the prompt's head (tools, system text, and documents' markup),
    /// as written (`ordering.head`).
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawHead in "head." {
        /// The treatment of changes to the head (tools, system text, documents' markup): applied, only reported, or not
        /// computed.
        pub mode: HeadMode = HeadMode::Report,
        /// The options for stabilising the order of tools and of their JSON keys.
        pub tools: RawHeadTools = RawHeadTools::default(),
        /// The options for finding volatile spans (texts that change between requests, such as clocks, ids, names) in
        /// system texts.
        pub volatile: RawVolatile = RawVolatile::default(),
        /// The maximum number of bytes that are moved out of the system text of one request, as written in its body;
        /// further volatile spans (texts that change between requests) stay in place.
        pub max_moved_bytes: u32 = 2_048; 0..=65_536,
        /// The options for contexts (retrieved documents) that a client puts only into the request for which they were
        /// retrieved, and leaves out of the history in later requests.
        pub contexts: RawContexts = RawContexts::default(),
        /// The options for moving documents' numbers and scores out of their blocks (documents with their tags).
        pub documents: RawHeadDocuments = RawHeadDocuments::default(),
        /// The kind of engine or provider to which the gateway forwards requests, which limits the changes.
        pub upstream: Upstream = Upstream::Tokens,
    }
}

/// The gateway's treatment of changes that stabilise the prompt's head (tools, system text, documents' markup).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadMode {
    /// Changes are not computed; the head (tools, system text, documents' markup) is forwarded unchanged.
    Off,
    /// Changes to the head (tools, system text, documents' markup) are computed, counted and reported; the original
    /// body is forwarded.
    #[default]
    Report,
    /// Changes to the head (tools, system text, documents' markup) are applied to the forwarded body.
    Apply,
}

/// The kind of upstream to which the gateway forwards requests: an engine that matches tokens, or a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Upstream {
    /// An engine that matches tokens: vLLM, SGLang, llama.cpp, this project's host.
    #[default]
    Tokens,
    /// Anthropic's own API. Tools and system text are not changed if the system text has a line
    /// `x-anthropic-billing-header: …`, which contains a checksum of the client's body.
    Anthropic,
}

object! {
    /// The configuration of sorting the tools of a request, and the keys in their JSON, as written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RawHeadTools in "head.tools." {
        /// True if the tools of a request are sorted: by name, and where requests have different tools, those used by
        /// the most requests first.
        pub order: bool = true,
        /// True if a tool that equals one of an earlier request except for the order of its JSON keys gets the earlier
        /// one's order.
        pub schemas: bool = true,
    }
}

object! {
    /// The configuration, as written, of contexts: retrieved passages that a client writes only into its newest request
    /// and omits from the history later. Without [`pin`](crate::config::RawConversation::pin), neither option has an
    /// effect.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RawContexts in "head.contexts." {
        /// True if an earlier user message gets back the contexts (retrieved passages) that its client has removed from
        /// it.
        pub restore: bool = true,
        /// True if contexts (retrieved passages) in the system text, where they would change at every turn, move into
        /// the newest user message.
        pub relocate: bool = true,
    }
}

object! {
    /// The configuration of moving documents' numbers and scores out of their blocks, as written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RawHeadDocuments in "head.documents." {
        /// True if a document's number by position is replaced by one derived from its text. A sentence after the
        /// documents says which number to cite each document by.
        pub numbers: bool = true,
        /// True if a document's score, rank or distance moves into a sentence after the documents.
        pub scores: bool = true,
    }
}

object! {
    /// The configuration of finding volatile spans (texts that change between requests), as written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawVolatile in "head.volatile." {
        /// The patterns that find volatile spans (texts that change between requests): `true` for the built-in ones,
        /// `false` for none, or a list that replaces the built-in ones.
        pub patterns: RawPatterns = RawPatterns::Table(true),
        /// Additional patterns that find volatile spans. An entry without a `pattern` only changes the class (action)
        /// of the built-in pattern with its name.
        pub add: Vec<RawPattern> = Vec::new(),
        /// True if volatile spans, which change between requests, are also found without a pattern, by comparing system
        /// texts.
        pub learn: bool = true,
    }
}

/// The patterns that find volatile spans (texts that change between requests): a switch for the built-in ones, or a
/// list in place of them.
#[derive(Clone, Debug, PartialEq)]
pub enum RawPatterns {
    /// `true` for the built-in patterns, `false` for none.
    Table(bool),
    /// These patterns, in place of the built-in ones.
    List(Vec<RawPattern>),
}

impl<'de> Deserialize<'de> for RawPatterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        match value {
            serde_json::Value::Bool(is_on) => Ok(Self::Table(is_on)),
            list => serde_json::from_value(list)
                .map(Self::List)
                .map_err(|error| D::Error::custom(format!("true, false or a list: {error}"))),
        }
    }
}

object! {
    /// One pattern that finds volatile spans (texts that change between requests), as written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawPattern in "head.volatile.patterns." {
        /// Name of the pattern in reports: 1 to 64 ASCII letters, digits or dashes.
        pub name: String = String::new(),
        /// A regular expression (syntax of `regex-lite`), which is matched against each line of a system text without
        /// its line break.
        pub pattern: String = String::new(),
        /// The gateway's treatment of the texts that match `pattern`.
        pub class: Class = Class::Move,
    }
}

/// The validated configuration of stabilising the prompt's head (tools, system text, documents' markup).
#[derive(Clone, Debug)]
pub struct Head {
    pub(crate) raw: RawHead,
    pub(crate) patterns: Vec<Pattern>,
}

impl Head {
    /// Validates the configuration and compiles its patterns.
    ///
    /// # Errors
    /// Returns the path of the invalid field and what is wrong with its value.
    pub(crate) fn new(raw: RawHead) -> Result<Self, ConfigError> {
        raw.check()?;
        let mut patterns = Vec::new();
        match &raw.volatile.patterns {
            RawPatterns::Table(true) => patterns = Pattern::table(),
            RawPatterns::Table(false) => {}
            RawPatterns::List(list) => add(&mut patterns, list, "head.volatile.patterns")?,
        }
        add(&mut patterns, &raw.volatile.add, "head.volatile.add")?;
        Ok(Self { raw, patterns })
    }

    /// Returns whether contexts (retrieved documents) that clients remove from their history are restored, provided
    /// that pinning (repeating documents in later requests) is on as well.
    pub(crate) fn keeps_contexts(&self) -> bool {
        self.raw.mode == HeadMode::Apply && self.raw.contexts.restore
    }

    /// Returns whether changes to the prompt's head (tools, system text) are applied, only reported, or not computed.
    #[must_use]
    pub fn mode(&self) -> HeadMode {
        self.raw.mode
    }
}

fn add(
    patterns: &mut Vec<Pattern>,
    list: &[RawPattern],
    field: &'static str,
) -> Result<(), ConfigError> {
    let refused = |reason| ConfigError::Value { field, reason };
    for raw in list {
        let is_name = !raw.name.is_empty()
            && raw.name.len() <= 64
            && (raw.name.chars()).all(|c| c.is_ascii_alphanumeric() || c == '-');
        if !is_name {
            let reason = format!(
                "`{}` is not a name: 1 to 64 ASCII letters, digits or dashes",
                raw.name
            );
            return Err(refused(reason));
        }
        let mut known = patterns.iter_mut();
        let known = known.find(|pattern| *pattern.name == *raw.name);
        match known {
            Some(known) if raw.pattern.is_empty() => known.class = raw.class,
            Some(_) => return Err(refused(format!("`{}` is there already", raw.name))),
            None if raw.pattern.is_empty() => {
                return Err(refused(format!("`{}` has no pattern", raw.name)));
            }
            None => {
                let pattern = Pattern::new(&raw.name, raw.class, &raw.pattern);
                let pattern =
                    pattern.map_err(|error| refused(format!("`{}`: {error}", raw.name)))?;
                patterns.push(pattern);
            }
        }
        if patterns.len() > MAX_PATTERNS {
            let reason = format!("there are more than {MAX_PATTERNS} patterns");
            return Err(refused(reason));
        }
    }
    Ok(())
}

/// The maximum number of patterns for volatile spans (texts that change between requests) in a configuration, built-in
/// ones included.
const MAX_PATTERNS: usize = 64;
