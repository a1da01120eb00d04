//! Configurations of the core, one for every 16-bit number. A fuzz target reads the number from the start of its
//! input.

use foreword_ordering::{Config, Remembered};
use serde_json::json;

/// A configuration of the orderer, chosen by a number that the target takes from its input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings(u16);

/// Bounds of what is remembered for each tenant and model, in configurations that bound it.
const FEW_MESSAGES: u64 = 8;
const FEW_BYTES: u64 = 4096;
/// How many trees the core keeps, each of one tenant and model.
const MAX_TREES: u64 = 4;

impl Settings {
    /// Returns the settings of a number. [`Settings::config`] lists what each bit means.
    pub(crate) const fn new(bits: u16) -> Self {
        Self(bits)
    }

    /// Splits an input into its settings and the rest.
    pub(crate) fn read(input: &[u8]) -> Option<(Self, &[u8])> {
        let (bits, rest) = input.split_first_chunk()?;
        Some((Self(u16::from_le_bytes(*bits)), rest))
    }

    /// Returns an input of these settings and `rest`, which [`Settings::read`] splits again.
    pub(crate) fn before(self, rest: &[u8]) -> Vec<u8> {
        [&self.0.to_le_bytes(), rest].concat()
    }

    fn is(self, bit: u16) -> bool {
        self.0 >> bit & 1 == 1
    }

    /// Returns whether the configuration only moves documents, apart from leaving out repeats.
    pub(crate) fn only_moves(self) -> bool {
        !self.is(3) && !self.is(4) && self.field() != "render"
    }

    /// Returns whether the order of a group depends on its documents alone.
    pub(crate) fn is_sorted(self) -> bool {
        self.policy() == "sorted"
    }

    /// Returns whether the target writes the request's strings with escapes only.
    pub(crate) fn escapes(self) -> bool {
        self.is(13)
    }

    pub(crate) fn is_bounded(self) -> bool {
        self.is(6)
    }

    fn policy(self) -> &'static str {
        POLICIES[usize::from(self.0 % 8)]
    }

    fn field(self) -> &'static str {
        FIELDS[usize::from(self.0 >> 7 & 3)]
    }

    pub(crate) fn config(self) -> Config {
        let mut conversation = json!({
            "deduplicate": self.is(4), "pin": self.is(5), "max_pinned_tokens": 100_000,
        });
        let mut tree = json!({"max_trees": MAX_TREES});
        if self.is_bounded() {
            conversation["max_entries"] = FEW_MESSAGES.into();
            conversation["max_bytes"] = FEW_BYTES.into();
            tree["max_nodes"] = 6.into();
            tree["max_tokens"] = 500.into();
        }
        let lists = self.is(9);
        let tags = if self.is(10) {
            json!([])
        } else {
            json!(["document", "doc", "source"])
        };
        let config = json!({
            "policy": self.policy(),
            "policy_options": {"window": 16, "max_contexts": 16},
            "hint": {"enabled": self.is(3)},
            "documents": {
                "field": self.field(), "tags": tags, "loose_tags": ["context", "file"],
                "blocks": !self.is(11), "results": !self.is(12),
                "numbered": lists, "rules": lists, "headings": lists, "outputs": lists, "max": 64,
            },
            "tree": tree,
            "conversation": conversation,
        });
        Config::from_json(config.to_string().as_bytes()).expect("every number is a configuration")
    }
}

/// Asserts that an orderer of bounded settings remembers no more than it may.
pub(crate) fn is_within(remembered: Remembered) {
    let Remembered {
        messages,
        bytes,
        contexts,
        context_bytes,
    } = remembered;
    for (messages, bytes) in [(messages, bytes), (contexts, context_bytes)] {
        assert!(
            messages <= FEW_MESSAGES * MAX_TREES && bytes <= FEW_BYTES * MAX_TREES,
            "{messages} messages of {bytes} bytes are remembered"
        );
    }
}

const POLICIES: [&str; 8] = [
    "retrieval",
    "random",
    "sorted",
    "recency",
    "greedy",
    "context-index",
    "longest",
    "foresight",
];

const FIELDS: [&str; 4] = ["render", "reorder", "ignore", "render"];
