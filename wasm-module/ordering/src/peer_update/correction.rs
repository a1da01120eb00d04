//! Corrects the knowledge trees when an engine's response shows that it had fewer tokens cached than expected.

use super::about::About;
use crate::bytes::{BadBytes, Reader, Writer};
use crate::document::Fingerprint;
use crate::tree::{ResidencyEvent, Scope};

/// The token counts for a prompt in the `usage` of an engine's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Number of tokens of the whole prompt.
    pub prompt_tokens: u64,
    /// Number of the prompt's tokens that were in the engine's cache.
    pub cached_tokens: u64,
}

/// An update for all orderers (workers) that serve an engine: for one request, the engine had fewer document tokens
/// cached than expected. Created by [`OrderingRecord::judged`](super::OrderingRecord::judged).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    pub(crate) about: About,
    pub(crate) runs: Vec<Corrected>,
}

/// A run of adjacent documents of which an engine had fewer tokens cached than expected. Token counts are estimates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Corrected {
    pub(crate) scope: Scope,
    pub(crate) path: Vec<Fingerprint>,
    pub(crate) expected_tokens: u64,
    pub(crate) cached_tokens: u64,
}

impl Correction {
    pub(super) fn write(&self, to: &mut Writer) {
        self.about.write(to);
        to.list(&self.runs, |to, run| {
            to.bytes(&run.scope.0.to_le_bytes());
            to.list(&run.path, |to, document| {
                to.bytes(&document.0.to_le_bytes());
            });
            to.number(run.expected_tokens);
            to.number(run.cached_tokens);
        });
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, BadBytes> {
        Ok(Self {
            about: About::read(from)?,
            runs: from.list(|from| {
                Ok(Corrected {
                    scope: Scope(from.hash()?),
                    path: from.list(|from| Ok(Fingerprint(from.hash()?)))?,
                    expected_tokens: from.number()?,
                    cached_tokens: from.number()?,
                })
            })?,
        })
    }
}

impl Corrected {
    pub(crate) fn event(&self) -> ResidencyEvent<'_> {
        ResidencyEvent::Reported {
            scope: self.scope,
            path: &self.path,
            expected_tokens: self.expected_tokens,
            cached_tokens: self.cached_tokens,
        }
    }
}
