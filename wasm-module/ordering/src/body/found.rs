//! Messages and the documents found in them: groups of adjacent documents, and the ranges of the body where each group
//! is written.

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

/// Hash chain that identifies a chat up to and including one of its messages: over the roles and contents, byte for
/// byte as the client sends them, and the client's own ids (`user`, `safety_identifier`, `prompt_cache_key`,
/// `metadata.user_id`).
///
/// Other fields of a message are left out: some clients drop or add them when they send an answer back. The hash is
/// neither secret nor a proof: a record found by it is compared with the request before use, as far as the request
/// contains anything to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Chain(pub(crate) u128);

/// The point in a user message, before its text, at which blocks of documents can be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Offset in the body at which the blocks (documents with their tags) are inserted.
    pub(crate) at: usize,
    pub(crate) wrap: Wrap,
}

/// The JSON with which a block that is inserted into a message must be enclosed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrap {
    /// No JSON: the block is inserted inside a JSON string.
    None,
    /// A text part, inserted after the `[` of a content array. `others` is true if other parts follow it.
    Part { others: bool, style: PartStyle },
}

/// A message of a chat, with the groups of documents (adjacent ones that may be exchanged) found in it.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) role: Role,
    /// The role's name, or the type of an input item that is no message, such as `function_call`; part of the hash that
    /// identifies the message ([`Chain`]).
    pub(crate) role_name: Cow<'a, str>,
    pub(crate) content_hash: u128,
    /// The whole message, as JSON.
    pub(crate) raw: &'a str,
    /// The message's content, as JSON; empty if it has none.
    pub(crate) content: &'a str,
    /// Hash of all bytes of the message.
    pub(crate) hash: u64,
    /// Hash that identifies the chat up to and including this message.
    pub(crate) chain: Chain,
    /// Number of the chat's turn to which the message belongs, from 0.
    pub(crate) turn: u32,
    /// The point at which documents can be written into the message, and the scope there (hash of the prompt before
    /// them); `None` if the message cannot receive documents.
    pub(crate) entry: Option<(Entry, Scope)>,
    /// Groups of documents in the message: one for each text with documents (several if [labels](Group::is_labelled)
    /// divide it), and one for each run of adjacent document blocks.
    pub(crate) groups: Vec<Group<'a>>,
}

/// Adjacent documents of one message that may be exchanged with each other. No document moves from one group to
/// another.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    /// Hash of the prompt before the documents, as the client sent it, without the gateway's changes.
    pub(crate) scope: Scope,
    pub(crate) format: DocumentFormat,
    /// The documents in the client's order; at least one.
    pub(crate) found: Vec<FoundDocument<'a>>,
    pub(crate) place: GroupLayout<'a>,
    /// Where an order hint (a sentence with the retriever's ranking) can be written for these documents; `None` if
    /// nowhere.
    pub(crate) hint: Option<HintSpot>,
    /// True if labels between documents (such as "Old contract:") divide the documents of their text into several
    /// groups, of which this is one.
    pub(crate) is_labelled: bool,
}

impl<'a> Message<'a> {
    /// Iterates over the groups of adjacent documents that the gateway may reorder: all groups of the message except
    /// those that are a tool's whole result.
    pub(crate) fn ordered(&self) -> impl Iterator<Item = &Group<'a>> {
        self.groups.iter().filter(|group| !group.is_output())
    }
}

impl GroupLayout<'_> {
    /// Returns the ranges of the body that the group's documents fill, one each; empty if the gateway writes the
    /// documents into the message itself.
    pub(crate) fn slots(&self) -> &[Range<usize>] {
        match self {
            Self::Slots { slots, .. } => slots,
            Self::Render { .. } => &[],
        }
    }

    /// Returns the range of the body from the start of the first document to the end of the last; `None` if the gateway
    /// renders the documents.
    pub(crate) fn hull(&self) -> Option<Range<usize>> {
        let slots = self.slots();
        Some(slots.first()?.start..slots.last()?.end)
    }

    /// Returns the offset in the body at which the group's first document begins or, if it is rendered, is inserted.
    pub(crate) fn start(&self) -> usize {
        match self {
            Self::Slots { slots, .. } => slots.first().map_or(0, |slot| slot.start),
            Self::Render { entry, .. } => entry.at,
        }
    }
}

/// One document found in a body. Its strings are bytes of the body, escapes included.
#[derive(Debug)]
pub(crate) struct FoundDocument<'a> {
    pub(crate) fingerprint: Fingerprint,
    /// The document's name, by which hints (the gateway's sentences about documents) refer to it, escaped as in the
    /// body; empty if the client gave it none.
    pub(crate) label: &'a str,
    pub(crate) tokens: u32,
    pub(crate) source: Source<'a>,
    /// The ranges of the number and of the text in the document's block (with its tags); `None` unless the client
    /// numbers documents by their position in the request.
    pub(super) numbered: Option<Numbered>,
}

/// The source of a document's block (the document with its tags) in the forwarded prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    /// The block is this substring of the body, which is moved unchanged.
    Whole(&'a str),
    /// The strings of an element of `documents` (empty if absent), from which the gateway renders the block. They are
    /// escaped so that they cannot end the block.
    Parts {
        id: Cow<'a, str>,
        title: Cow<'a, str>,
        text: Cow<'a, str>,
    },
}

/// The place in the body where a group of documents is written.
#[derive(Debug)]
pub(crate) enum GroupLayout<'a> {
    /// The documents are written into these ranges of the body, one each; the text between them stays. If fewer
    /// documents are written than there are ranges, the last ranges become empty, unless `all_filled` forbids that.
    Slots {
        slots: Vec<Range<usize>>,
        all_filled: bool,
    },
    /// The documents are written into a message at `entry`, as blocks that the gateway renders.
    Render {
        /// The range of the `documents` field's value, which becomes `null`; `None` if the body has none.
        array: Option<Range<usize>>,
        entry: Entry,
        /// Text to write before and after all the rendered documents, escaped as in a JSON string.
        around: [&'a str; 2],
    },
}

/// The position of an order hint (a sentence with the retriever's ranking): an offset in the body, and the separators
/// to write before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HintSpot {
    pub(crate) at: usize,
    pub(crate) before: &'static str,
    pub(crate) after: &'static str,
}

impl<'a> FoundDocument<'a> {
    /// Returns a document whose block (the document with its tags) is the substring `whole` of the body.
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

    /// Returns the document's text, escaped as in the body; for a document that is moved unchanged, with its tags.
    pub(crate) fn text(&self) -> &str {
        match &self.source {
            Source::Whole(whole) => whole,
            Source::Parts { text, .. } => text,
        }
    }

    /// Returns the document's block (the document with its tags) and the range of its number there; `None` unless the
    /// client numbers documents by their position in the request.
    pub(crate) fn numbered_block(&self) -> Option<NumberedBlock<'a>> {
        let Source::Whole(whole) = self.source else {
            return None;
        };
        Some(NumberedBlock {
            whole,
            numbered: self.numbered.clone()?,
        })
    }

    /// Returns whether the client numbers the document by its position in the request.
    pub(crate) fn is_numbered(&self) -> bool {
        self.numbered.is_some()
    }

    /// Returns the document's block (with its tags) as it is in a message of the body; `None` if the document comes
    /// from a `documents` array or a retriever.
    pub(crate) fn block_in_message(&self) -> Option<&'a str> {
        match &self.source {
            Source::Whole(whole) => Some(*whole),
            Source::Parts { .. } => None,
        }
    }
}

impl Group<'_> {
    /// Returns whether this group is a tool's whole result, which is not ordered but may be shortened by location hints
    /// (references to an earlier copy).
    pub(crate) fn is_output(&self) -> bool {
        self.format == DocumentFormat::Outputs
    }

    /// Returns whether the gateway writes the group's documents into a message.
    pub(crate) fn is_rendered(&self) -> bool {
        matches!(self.place, GroupLayout::Render { .. })
    }
}

/// Finds documents in one body and counts them.
pub(super) struct Finder<'a, 'c> {
    pub(super) body: &'a str,
    pub(super) config: &'c Config,
    /// Number of documents found in the body so far.
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

    /// Adds to the number of documents found in the body; an error if that exceeds `documents.max`.
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
