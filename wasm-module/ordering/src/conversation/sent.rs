//! The record of how one message was forwarded: how its documents were arranged, and what the gateway wrote into it.

use crate::arrangement::Arrangement;
use crate::body::Wrap;
use crate::document::Fingerprint;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The record of the gateway's changes to one message; the default value stands for no change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentMessage {
    /// The arrangement of each group of documents that the client wrote into the message: their order, and the location
    /// hints (references to earlier copies) among them.
    pub(crate) groups: Box<[Arrangement]>,
    /// The documents of a `documents` array that the gateway wrote into the message; `None` if there were none.
    pub(crate) written: Option<Written>,
    /// The volatile spans of the system text (texts that change between requests, such as a date) that were moved into
    /// this message, or whose first values it keeps; `None` if there were none.
    pub(crate) kept: Option<Box<Kept>>,
}

/// Volatile spans of the system text (texts that change between requests, such as a date) that every later request of
/// the chat forwards in the same way. Texts are escaped as in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The text of the volatile spans (texts that change between requests) that moved into a user message, as written
    /// there.
    pub(crate) moved: Box<str>,
    /// A hash of each volatile span of the system text (a text that changes between requests): first of those that were
    /// moved into a user message, then of those that stay in the system text with their value from the first request.
    pub(crate) spans: Box<[u64]>,
    /// For each volatile span (a text that changes between requests) that stays in its place in a system message: its
    /// value in the chat's first request, in order. Later requests forward this value again.
    pub(crate) frozen: Box<[Box<str>]>,
}

/// The documents of a `documents` array that the gateway wrote into a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Fingerprint of the list of documents in the client's `documents` array.
    pub(crate) list: Fingerprint,
    pub(crate) arrangement: Arrangement,
    /// The text written into the message, which later requests must repeat; `None` if pinning (repeating documents in
    /// later requests) is off or its limit of tokens is exceeded.
    pub(crate) pin: Option<Pin>,
}

/// Documents of a `documents` array that later requests of the chat repeat in the message into which they were first
/// written, although the client no longer sends them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    /// The text that was inserted into the message, byte for byte: documents, order hints (sentences with the
    /// retriever's ranking) and location hints (references to earlier copies).
    pub(crate) text: Box<str>,
    /// The JSON with which the text is enclosed in the message's content, such as that of a content part.
    pub(crate) wrap: Wrap,
    /// Estimated tokens of `text`.
    pub(crate) tokens: u32,
    /// The documents that `text` contains in full, in the order in which they appear there.
    pub(crate) documents: Box<[Pinned]>,
    /// A hash of the documents in their order, and of which of them location hints (references to earlier copies)
    /// replace in `text`; with an order hint, also of the client's order. It is the value of [`Arrangement::digest`].
    pub(crate) digest: u64,
    /// A hash of the documents that location hints (references to earlier copies) replace in `text`, and of their
    /// positions; 0 if there are none. It is the value of [`Arrangement::references`].
    pub(crate) references: u64,
}

/// A document in [`Pin::text`], with the byte ranges there of its block (the document with its tags) and of its label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pinned {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) tokens: u32,
    pub(crate) block: Range<u32>,
    pub(crate) label: Range<u32>,
}

impl SentMessage {
    /// Returns the documents that the gateway wrote into this message and that every later request repeats there;
    /// `None` if there are none.
    pub(crate) fn pin(&self) -> Option<&Pin> {
        self.written.as_ref()?.pin.as_ref()
    }

    /// Returns the fingerprint of the list of documents in a `documents` array that was written into this message;
    /// `None` if none was.
    pub(crate) fn list(&self) -> Option<Fingerprint> {
        Some(self.written.as_ref()?.list)
    }

    /// Returns a hash of the system text's volatile spans (texts that change between requests) in this record: those
    /// that moved into the message and those that keep their first value; 0 if there are none.
    pub(crate) fn kept_hash(&self) -> u64 {
        let kept = self.kept.as_ref();
        kept.map_or(0, |kept| kept_hash(&kept.moved, &kept.frozen))
    }

    /// Returns the estimated bytes that the record occupies in memory, the same on every platform.
    pub(crate) fn bytes(&self) -> u64 {
        let kept = self.kept.as_ref().map_or(0, |kept| {
            let frozen = kept.frozen.iter().map(|words| words.len() + KEPT_BYTES);
            KEPT_BYTES + kept.moved.len() + kept.spans.len() * 8 + frozen.sum::<usize>()
        });
        let arrangements = self.groups.iter();
        let arrangements =
            arrangements.chain(self.written.as_ref().map(|written| &written.arrangement));
        let pin = self
            .pin()
            .map_or(0, |pin| pin.text.len() + pin.documents.len() * PINNED_BYTES);
        (arrangements.map(Arrangement::bytes).sum::<usize>() + pin + kept) as u64
    }
}

impl Pin {
    pub(crate) fn block(&self, document: &Pinned) -> &str {
        slice(&self.text, &document.block)
    }

    pub(crate) fn label(&self, document: &Pinned) -> &str {
        slice(&self.text, &document.label)
    }
}

impl Pinned {
    /// Returns a pinned document (one that later requests repeat) with these ranges, in [`Pin::text`], of its block
    /// (the document with its tags) and of its label; `None` if a range does not fit into 32 bits.
    pub(crate) fn new(
        fingerprint: Fingerprint,
        tokens: u32,
        block: &Range<usize>,
        label: &Range<usize>,
    ) -> Option<Self> {
        let narrow = |range: &Range<usize>| {
            Some(u32::try_from(range.start).ok()?..u32::try_from(range.end).ok()?)
        };
        Some(Self {
            fingerprint,
            tokens,
            block: narrow(block)?,
            label: narrow(label)?,
        })
    }
}

fn slice<'a>(text: &'a str, range: &Range<u32>) -> &'a str {
    text.get(range.start as usize..range.end as usize)
        .unwrap_or_default()
}

/// Returns a hash of the system text's volatile spans (texts that change between requests) in a message: the text of
/// the moved ones, and the values kept in place (`frozen`). 0 if there are none.
pub(crate) fn kept_hash(moved: &str, frozen: &[Box<str>]) -> u64 {
    if moved.is_empty() && frozen.is_empty() {
        return 0;
    }
    let all = frozen.iter().map(|words| words.as_bytes());
    let hash = all.fold(xxh3_64_with_seed(moved.as_bytes(), 7), |hash, words| {
        xxh3_64_with_seed(words, hash)
    });
    hash.max(1)
}

/// Estimated bytes in memory of a [`Kept`] without its texts; also of one of the values in [`Kept::frozen`] without its
/// text.
const KEPT_BYTES: usize = 32;

/// Estimated bytes in memory of a [`Pinned`].
const PINNED_BYTES: usize = 32;
