//! The documents found in a body: messages, groups of adjacent documents, and the place of each.

use super::Skip;
use super::formats::PartStyle;
use super::numbered::{Numbered, NumberedBlock};
use super::role::Role;
use crate::config::{Config, DocumentFormat};
use crate::document::{Fingerprint, estimate_tokens};
use crate::tree::Scope;
use crate::work::hashed;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_128;

/// Hash of a chat's messages up to and including one: role and content, byte for byte as the client sends them, and the
/// client's own ids (`user`, `safety_identifier`, `prompt_cache_key`, `metadata.user_id`).
///
/// Other fields of a message do not count: some clients drop or add them when they send an answer back. The hash is
/// neither secret nor a proof: an entry found by it is compared with the request before use, where the request holds
/// anything to compare it with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Chain(pub(crate) u128);

/// Where blocks can be inserted into a user message: before its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Offset in the body.
    pub(crate) at: usize,
    pub(crate) wrap: Wrap,
}

/// The JSON that an inserted block needs around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrap {
    /// Nothing: the block is inserted inside a string.
    None,
    /// A text part: the block is inserted after the `[` of a content array; `others` if the array has other parts.
    Part { others: bool, style: PartStyle },
}

/// A message and its documents.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) role: Role,
    /// The role's name as hashed into the chain.
    pub(crate) role_name: Cow<'a, str>,
    pub(crate) content_hash: u128,
    /// The whole message, as written.
    pub(crate) raw: &'a str,
    /// The message's content, as written; empty if it has none.
    pub(crate) content: &'a str,
    /// Hash of the whole message.
    pub(crate) hash: u64,
    /// Hash chain of the chat up to and including this message.
    pub(crate) chain: Chain,
    /// The chat's turn that the message belongs to.
    pub(crate) turn: u32,
    /// Where documents can be written into the message, and their scope there; `None` if they cannot.
    pub(crate) entry: Option<(Entry, Scope)>,
    /// Groups of documents: one for each text of the message with documents, and one for each run of document blocks.
    pub(crate) groups: Vec<Group<'a>>,
}

/// Adjacent documents, which are ordered together.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    /// Hash of the prompt before the documents, as the client wrote it.
    pub(crate) scope: Scope,
    pub(crate) format: DocumentFormat,
    /// The documents in the client's order; at least one.
    pub(crate) found: Vec<FoundDocument<'a>>,
    pub(crate) place: GroupLayout<'a>,
    /// Where an order hint goes, with its separators; `None` if there is no place for one.
    pub(crate) hint: Option<HintSpot>,
}

impl<'a> Message<'a> {
    /// The groups of documents that are ordered: all but a tool's whole result.
    pub(crate) fn ordered(&self) -> impl Iterator<Item = &Group<'a>> {
        self.groups.iter().filter(|group| !group.is_output())
    }
}

impl GroupLayout<'_> {
    /// The ranges of the body for the documents; none if they are rendered.
    pub(crate) fn slots(&self) -> &[Range<usize>] {
        match self {
            Self::Slots { slots, .. } => slots,
            Self::Render { .. } => &[],
        }
    }

    /// The range of the body from the first slot to the last; `None` without slots.
    pub(crate) fn hull(&self) -> Option<Range<usize>> {
        let slots = self.slots();
        Some(slots.first()?.start..slots.last()?.end)
    }

    /// The offset in the body at which the documents begin.
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
    /// The document's name in hints; empty if it has no id.
    pub(crate) label: &'a str,
    pub(crate) tokens: u32,
    pub(crate) source: Source<'a>,
    /// Place of the document's number in its block, if the client numbers documents by place.
    pub(super) numbered: Option<Numbered>,
}

/// Where a document's bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    /// A block of the body, moved unchanged.
    Whole(&'a str),
    /// The strings of a `documents` element (empty if absent), from which a block is rendered. They are escaped so that
    /// they cannot end it.
    Parts {
        id: Cow<'a, str>,
        title: Cow<'a, str>,
        text: Cow<'a, str>,
    },
}

/// Where a group's documents go.
#[derive(Debug)]
pub(crate) enum GroupLayout<'a> {
    /// Into these ranges of the body, one each; the text between them stays. If documents are dropped, the last slots
    /// become empty, unless `all_filled`.
    Slots {
        slots: Vec<Range<usize>>,
        all_filled: bool,
    },
    /// Into a message, as rendered blocks.
    Render {
        /// The `documents` array, which becomes `null`; `None` if the documents are not from the body.
        array: Option<Range<usize>>,
        entry: Entry,
        /// Text before and after the rendered documents, escaped as in a JSON string.
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
    /// A document whose block is a range of the body.
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

    /// The document's text, as written in the body.
    pub(crate) fn text(&self) -> &str {
        match &self.source {
            Source::Whole(whole) => whole,
            Source::Parts { text, .. } => text,
        }
    }

    /// The block of a document that its client numbers by place; else `None`.
    pub(crate) fn numbered_block(&self) -> Option<NumberedBlock<'a>> {
        let Source::Whole(whole) = self.source else {
            return None;
        };
        Some(NumberedBlock {
            whole,
            numbered: self.numbered.clone()?,
        })
    }

    /// Returns whether its client numbers it by place.
    pub(crate) fn is_numbered(&self) -> bool {
        self.numbered.is_some()
    }

    /// The block as written in a message of the body; `None` if the client sends the document in an array.
    pub(crate) fn block_in_message(&self) -> Option<&'a str> {
        match &self.source {
            Source::Whole(whole) => Some(*whole),
            Source::Parts { .. } => None,
        }
    }
}

impl Group<'_> {
    /// Returns whether it is a tool's whole result, which is not ordered: a location hint may replace it.
    pub(crate) fn is_output(&self) -> bool {
        self.format == DocumentFormat::Outputs
    }

    /// Returns whether its documents are written into a message.
    pub(crate) fn is_rendered(&self) -> bool {
        matches!(self.place, GroupLayout::Render { .. })
    }
}

/// Finds and counts documents.
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

    /// Adds to the count of documents; an error beyond `documents.max`.
    pub(super) fn add(&mut self, documents: usize) -> Result<(), Skip> {
        self.count += documents;
        if self.count > self.config.documents.max as usize {
            Err(Skip::TooManyDocuments {
                found: self.count,
                limit: self.config.documents.max,
            })
        } else {
            Ok(())
        }
    }
}

impl Chain {
    pub(crate) fn then(self, role: &str, content: u128) -> Self {
        let mut link: SmallVec<[u8; 64]> = SmallVec::new();
        link.extend_from_slice(&self.0.to_le_bytes());
        link.extend_from_slice(&content.to_le_bytes());
        link.extend_from_slice(role.as_bytes());
        Self(xxh3_128(&link))
    }
}
