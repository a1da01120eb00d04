//! What the operator may set about the head: as written ([`RawHead`]) and as checked ([`Head`]).

use super::patterns::{Class, Pattern};
use crate::object;
use crate::object::{BadValue, Ranges};
use serde::Deserialize;
use serde::de::{Deserializer, Error};

object! {
    /// What is done with the head, as written (`ordering.head`).
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawHead in "head." {
        /// Whether the head is changed.
        pub mode: HeadMode = HeadMode::Report,
        /// What is done with tools.
        pub tools: RawHeadTools = RawHeadTools::default(),
        /// What is done with words that change.
        pub volatile: RawVolatile = RawVolatile::default(),
        /// Bytes that are moved in one request, as written in its body, 0 to 65,536; what is more stays where it is.
        pub max_moved_bytes: u32 = 2_048; 0..=65_536,
        /// What is done with contexts that a client writes into the newest request alone.
        pub contexts: RawContexts = RawContexts::default(),
        /// What is done with what documents say of one request.
        pub documents: RawHeadDocuments = RawHeadDocuments::default(),
        /// What stands behind the gateway.
        pub upstream: Upstream = Upstream::Tokens,
    }
}

/// Whether the head is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadMode {
    /// The head is not looked at.
    Off,
    /// What would be done is decided, counted and told; the body goes as it came.
    #[default]
    Report,
    /// The body is changed.
    Apply,
}

/// The kind of upstream that reads the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Upstream {
    /// An engine that matches tokens: vLLM, SGLang, llama.cpp, our own.
    #[default]
    Tokens,
    /// Anthropic's own API: a head with a billing line, which is a checksum of the body, is left alone.
    Anthropic,
}

object! {
    /// What is done with tools, as written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawHeadTools in "head.tools." {
        /// Whether tools are put in order: by name, and where requests offer different ones, so that those which most offer
        /// come first.
        pub order: bool = true,
        /// Whether a tool that equals an earlier one but for the order of its keys takes that one's order.
        pub schemas: bool = true,
    }
}

object! {
    /// What is done with contexts that a client writes into the newest request alone, as written. Both take
    /// [`pin`](crate::config::RawConversation::pin).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RawContexts in "head.contexts." {
        /// Whether a chat's earlier user message that comes back without the contexts that it was sent with gets them back.
        pub restore: bool = true,
        /// Whether contexts in the system text stand in the newest user message instead, the one that they were found for: in
        /// front of the chat they would change at every turn.
        pub relocate: bool = true,
    }
}

object! {
    /// What is done with what documents in a message say of one request, as written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RawHeadDocuments in "head.documents." {
        /// Whether documents that are numbered by their places have a number that follows from their words instead; words
        /// behind them say which number to cite each by.
        pub numbers: bool = true,
        /// Whether a score, rank or distance in a document stands behind the documents instead.
        pub scores: bool = true,
    }
}

object! {
    /// What is done with words that change, as written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawVolatile in "head.volatile." {
        /// The built-in table (`true`), no patterns (`false`), or a list in its place.
        pub patterns: RawPatterns = RawPatterns::Table(true),
        /// More patterns. One without a `pattern` gives the built-in one of its name another class.
        pub add: Vec<RawPattern> = Vec::new(),
        /// Whether what changes is learned.
        pub learn: bool = true,
    }
}

/// See [`RawVolatile::patterns`].
#[derive(Clone, Debug, PartialEq)]
pub enum RawPatterns {
    /// Whether the built-in table is used.
    Table(bool),
    /// These patterns replace the built-in ones.
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
    /// A pattern as the configuration writes it.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RawPattern in "head.volatile.patterns." {
        /// What it is called in reports: 1 to 64 ASCII letters, digits or dashes.
        pub name: String = String::new(),
        /// A regular expression, held against each line of a system text without its break.
        pub pattern: String = String::new(),
        /// What is done with what it finds.
        pub class: Class = Class::Move,
    }
}

impl RawHead {
    /// Every part that the documentation calls safe, applied: what a replay uses that is told nothing else.
    #[must_use]
    pub fn safe() -> Self {
        Self {
            mode: HeadMode::Apply,
            ..Self::default()
        }
    }
}

/// What is done with the head, checked.
#[derive(Clone, Debug)]
pub struct Head {
    pub(crate) mode: HeadMode,
    pub(crate) order: bool,
    pub(crate) schemas: bool,
    pub(crate) patterns: Vec<Pattern>,
    pub(crate) learn: bool,
    pub(crate) max_moved_bytes: usize,
    pub(crate) contexts: RawContexts,
    pub(crate) documents: RawHeadDocuments,
    pub(crate) upstream: Upstream,
}

impl Head {
    /// Checks it.
    ///
    /// # Errors
    /// The field, and what is wrong with its value.
    pub(crate) fn new(raw: &RawHead) -> Result<Self, BadValue> {
        raw.check()?;
        let mut patterns = Vec::new();
        match &raw.volatile.patterns {
            RawPatterns::Table(true) => patterns = Pattern::table(),
            RawPatterns::Table(false) => {}
            RawPatterns::List(list) => add(&mut patterns, list, "head.volatile.patterns")?,
        }
        add(&mut patterns, &raw.volatile.add, "head.volatile.add")?;
        Ok(Self {
            mode: raw.mode,
            order: raw.tools.order,
            schemas: raw.tools.schemas,
            patterns,
            learn: raw.volatile.learn,
            max_moved_bytes: raw.max_moved_bytes as usize,
            contexts: raw.contexts,
            documents: raw.documents,
            upstream: raw.upstream,
        })
    }

    /// Whether contexts are put back.
    pub(crate) fn keeps_contexts(&self) -> bool {
        self.mode == HeadMode::Apply && self.contexts.restore
    }

    /// Returns the mode.
    #[must_use]
    pub fn mode(&self) -> HeadMode {
        self.mode
    }
}

fn add(
    patterns: &mut Vec<Pattern>,
    list: &[RawPattern],
    field: &'static str,
) -> Result<(), BadValue> {
    let refused = |reason| BadValue { field, reason };
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

/// Most patterns, built-in ones included.
const MAX_PATTERNS: usize = 64;
