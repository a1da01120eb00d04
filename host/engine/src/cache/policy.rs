//! Which page goes first when room is needed.

use std::fmt;
use std::str::FromStr;

/// How pages are ranked for eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// Least recently used first.
    Lru,
    /// Least often used first.
    Lfu,
    /// Greedy-Dual-Size-Frequency, at a cost in proportion to size.
    Gdsf,
    /// Prefix-aware Greedy-Dual-Size-Frequency (RAGCache §5.1).
    #[default]
    Pgdsf,
}

impl EvictionPolicy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Lfu, Self::Gdsf, Self::Pgdsf];

    /// What it is called in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Gdsf => "gdsf",
            Self::Pgdsf => "pgdsf",
        }
    }
}

impl fmt::Display for EvictionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EvictionPolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| {
            format!(
                "{name:?} is none of {}",
                Self::ALL.map(Self::name).join(", ")
            )
        })
    }
}
