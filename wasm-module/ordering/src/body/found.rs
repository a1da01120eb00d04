//! What is found in a body: messages, groups of documents that stand together, and where each goes.

use super::Skip;
use super::chat::{Chain, Entry};
use super::numbered::{Numbered, NumberedBlock};
use super::role::Role;
use crate::config::{Config, DocumentFormat};
use crate::document::{Fingerprint, estimate_tokens};
use crate::tree::Scope;
use crate::work::hashed;
use std::borrow::Cow;
use std::ops::Range;

/// A message.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) role: Role,
    /// As the chain has it.
    pub(crate) role_name: Cow<'a, str>,
    pub(crate) content_hash: u128,
    /// The whole message, as written.
    pub(crate) raw: &'a str,
    /// Its content, as written; empty if it has none.
    pub(crate) content: &'a str,
    /// Hash of the whole message.
    pub(crate) hash: u64,
    /// By what the chat up to here is known.
    pub(crate) chain: Chain,
    /// The chat's turn that it belongs to.
    pub(crate) turn: u32,
    /// Where documents can be written into it, and what precedes them in the prompt.
    pub(crate) entry: Option<(Entry, Scope)>,
    /// The documents of each of its texts that has any, and its blocks.
    pub(crate) groups: Vec<Group<'a>>,
}

/// Documents that are ordered together: they stand together.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    /// What precedes them in the prompt, as the client wrote it.
    pub(crate) scope: Scope,
    pub(crate) format: DocumentFormat,
    /// In the client's order; at least one.
    pub(crate) found: Vec<FoundDocument<'a>>,
    pub(crate) place: GroupLayout<'a>,
    /// Where an order hint goes, and what separates it from its neighbours.
    pub(crate) hint: Option<HintSpot>,
}

impl GroupLayout<'_> {
    /// The byte of the body at which the documents begin.
    pub(crate) fn start(&self) -> usize {
        match self {
            Self::Slots { slots, .. } => slots.first().map_or(0, |slot| slot.start),
            Self::Render { entry, .. } => entry.at,
        }
    }
}

/// One document. Its strings are copies of the body's bytes, escapes included.
#[derive(Debug)]
pub(crate) struct FoundDocument<'a> {
    pub(crate) fingerprint: Fingerprint,
    /// What a hint calls it; empty when it has no id.
    pub(crate) label: &'a str,
    pub(crate) tokens: u32,
    pub(crate) source: Source<'a>,
    /// Where its number stands, if its client numbers documents by their places.
    pub(super) numbered: Option<Numbered>,
}

/// Where a document's bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    /// It moves as it stands.
    Whole(&'a str),
    /// It is rendered from the strings of a `documents` element (empty when absent), which stay within the block.
    Parts {
        id: Cow<'a, str>,
        title: Cow<'a, str>,
        text: Cow<'a, str>,
    },
}

/// Where a group's documents go.
#[derive(Debug)]
pub(crate) enum GroupLayout<'a> {
    /// Each into one of these ranges of the body; what is between them stays. When documents are dropped, the last
    /// slots are left empty, unless `all_filled`.
    Slots {
        slots: Vec<Range<usize>>,
        all_filled: bool,
    },
    /// Their rendered blocks into a message.
    Render {
        /// Becomes `null`; `None`: the documents are not the body's own.
        array: Option<Range<usize>>,
        entry: Entry,
        /// What stands before and behind them, as between the quotes of a JSON string.
        around: [&'a str; 2],
    },
}

/// See [`Group::hint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HintSpot {
    pub(crate) at: usize,
    pub(crate) before: &'static str,
    pub(crate) after: &'static str,
}

impl<'a> FoundDocument<'a> {
    /// A document that moves as it stands in the body.
    pub(super) fn whole(whole: &'a str, label: &'a str) -> Self {
        hashed(whole.len());
        Self {
            fingerprint: Fingerprint::of(&[whole.as_bytes()]),
            label,
            tokens: estimate_tokens(whole.len()),
            source: Source::Whole(whole),
            numbered: None,
        }
    }

    /// The block of a document that its client numbers.
    pub(crate) fn numbered_block(&self) -> Option<NumberedBlock<'a>> {
        let Source::Whole(whole) = self.source else {
            return None;
        };
        Some(NumberedBlock {
            whole,
            numbered: self.numbered.clone()?,
        })
    }

    /// Whether its client numbers it.
    pub(crate) fn is_numbered(&self) -> bool {
        self.numbered.is_some()
    }

    /// The block as it stands in a message of the body; `None` if the client sends the document apart.
    pub(crate) fn block_in_message(&self) -> Option<&'a str> {
        match &self.source {
            Source::Whole(whole) => Some(*whole),
            Source::Parts { .. } => None,
        }
    }
}

impl Group<'_> {
    /// Whether its documents are written into a message.
    pub(crate) fn is_rendered(&self) -> bool {
        matches!(self.place, GroupLayout::Render { .. })
    }
}

/// Finds documents, and counts them.
pub(super) struct Finder<'a, 'c> {
    pub(super) body: &'a str,
    pub(super) config: &'c Config,
    /// Documents found so far.
    count: usize,
}

impl<'a, 'c> Finder<'a, 'c> {
    pub(super) fn new(body: &'a str, config: &'c Config) -> Self {
        Self {
            body,
            config,
            count: 0,
        }
    }

    /// Counts `documents` more.
    pub(super) fn add(&mut self, documents: usize) -> Result<(), Skip> {
        self.count += documents;
        if self.count > self.config.max_documents as usize {
            Err(Skip::TooManyDocuments {
                found: self.count,
                limit: self.config.max_documents,
            })
        } else {
            Ok(())
        }
    }
}
