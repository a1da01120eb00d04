//! What one request did to what is known, as a value: the paths that it sent and the turns that its chat grew by.
//!
//! ```text
//!   worker A   rewrite(body) ──▶ new body, Deed ──▶ bytes ─┐
//!   worker B                              learn(Deed) ◀────┘     B orders the next request as if it had sent this one
//! ```
//!
//! A deed holds hashes, counts and places, and no word of a document, a question or an answer; only the tenant's and the
//! model's names are written out. It is as large as the request has documents: about eleven bytes each. [`wire`] is its
//! form in bytes.

mod wire;

pub use wire::BadDeed;

use crate::conversation::memory::{Added, Place};
use crate::document::Fingerprint;
use crate::feed::TenantKey;
use crate::path::Run;
use crate::tenant::Tenant;
use crate::tree::Scope;

/// See the module's text. [`Orderer::rewrite`](crate::Orderer::rewrite) makes it,
/// [`Orderer::learn`](crate::Orderer::learn) takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    pub(crate) tenant: Box<str>,
    pub(crate) key: TenantKey,
    pub(crate) model: Box<str>,
    pub(crate) runs: Vec<SentRun>,
    /// `None`: nothing is told of the chat.
    pub(crate) chat: Option<Continued>,
}

/// Documents that were sent one behind another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentRun {
    /// What stood before them.
    pub(crate) scope: Scope,
    /// In the order sent, with their estimated tokens. Not empty.
    pub(crate) documents: Vec<(Fingerprint, u32)>,
    /// The rank of each, if the policy was asked for the order: a permutation. `None`: they were sent as before.
    pub(crate) order: Option<Vec<u16>>,
}

/// How a chat went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Continued {
    /// The last message that was known before; `None`: none was.
    pub(crate) after: Option<Place>,
    /// Without [pins](crate::conversation::turn::Pin).
    pub(crate) added: Vec<Added>,
}

impl Deed {
    /// Whose request it was.
    #[must_use]
    pub fn tenant(&self) -> Tenant<'_> {
        Tenant {
            name: &self.tenant,
            key: self.key,
        }
    }
}

impl SentRun {
    /// The documents without their tokens.
    pub(crate) fn path(&self) -> Run {
        Run {
            scope: self.scope,
            documents: self
                .documents
                .iter()
                .map(|(document, _)| *document)
                .collect(),
        }
    }

    /// The documents in the order of their ranks, as the policy was given them.
    pub(crate) fn ranked(&self, order: &[u16]) -> Vec<Fingerprint> {
        let mut ranked = vec![Fingerprint(0); order.len()];
        for (rank, (document, _)) in order.iter().zip(&self.documents) {
            if let Some(place) = ranked.get_mut(usize::from(*rank)) {
                *place = *document;
            }
        }
        ranked
    }
}

impl Continued {
    /// What may be told of a chat. A pinned text stays with the worker that wrote it, for it is a text; so does the
    /// chat from there on, for whoever took the rest without the text would send the chat without it.
    pub(crate) fn told(after: Option<Place>, added: &[Added]) -> Option<Self> {
        let unpinned = added.iter().take_while(|added| added.turn.pin().is_none());
        let added: Vec<Added> = unpinned.cloned().collect();
        (!added.is_empty()).then_some(Self { after, added })
    }
}
