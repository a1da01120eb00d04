//! Finds the ends of a request's documents in the prompt that an engine rendered from its body.
//!
//! ```text
//!   header   9f3c… = 0a1b…, 77de…           which documents, in which order
//!   body     "…<doc id=\"a\">…</doc>…"      their blocks, found as the gateway finds documents; fingerprints agree
//!   prompt   <|user|>…<doc id="a">…</doc>…  the same blocks behind one another: their ends
//! ```
//!
//! The header is not trusted: a fingerprint without a document in the body, or a document that is not in the prompt,
//! ends its run of adjacent documents. The documents found before that still form a path. So a gateway with another
//! configuration, or a proxy that rewrites bodies, costs boundaries in the cache and nothing else.

use super::{Run, SentPath};
use crate::body::{self, FoundDocument, Skip, Source};
use crate::config::{Config, DocumentsField};
use crate::document::Fingerprint;
use crate::tree::Scope;
use crate::work::{hashed, looked};
use fxhash::FxHashMap;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Range;

/// Finds the ends of a request's documents in the prompt rendered by the engine. It needs the gateway's configuration
/// of tags. Documents that the gateway renders from a `documents` array are found if `document` is one of the tags.
#[derive(Clone)]
pub struct Locator(Config);

/// Adjacent documents of a request, as they were found in a prompt: all of them, or those before the first one not
/// found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Hash of the prompt before the first of these documents, as the gateway sent it in the header.
    pub scope: Scope,
    /// Offset in the prompt at which the first of these documents begins.
    pub start: usize,
    /// The documents that were found, at least one, each with the offset in the prompt at which it ends.
    pub documents: Vec<(Fingerprint, usize)>,
}

impl Locator {
    /// Returns a locator that finds documents as a gateway with this configuration does.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let mut config = config.with_most_documents();
        // An array that is still in the body was only reordered: its elements are the documents.
        config.documents.field = DocumentsField::Reorder;
        Self(config)
    }

    /// Returns where the documents of `path` end in `prompt`, which was rendered from `body`, for each run of adjacent
    /// documents. Runs of which no document was found are left out. O(bytes of body and prompt): the search reads the
    /// prompt at most `MAX_PASSES` times.
    ///
    /// # Errors
    /// Returns [`Skip`] if a gateway would not have parsed the body.
    pub fn locate(&self, path: &SentPath, body: &[u8], prompt: &str) -> Result<Vec<Located>, Skip> {
        let parsed = body::parse(body, &self.0)?;
        let front = (parsed.front.iter()).flat_map(|group| &group.found);
        let front = front.map(|found| (PromptPart::Front, found));
        let messages = parsed.messages.iter().flat_map(|message| &message.groups);
        let messages = messages.flat_map(|group| &group.found);
        let messages = messages.map(|found| (PromptPart::Message, found));
        let mut search = Search::new(front.chain(messages).collect(), prompt);
        let runs = path.runs.iter().map(|run| search.run(run));
        Ok(runs.filter(|run| !run.documents.is_empty()).collect())
    }
}

/// The maximum number of times that a prompt is read in search of the documents of one request. If every document is
/// found, once suffices, and once more for each run of adjacent documents that the chat template puts before the
/// messages.
const MAX_PASSES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum PromptPart {
    /// The part of the prompt in which the chat template puts the documents of a `documents` array.
    Front,
    Message,
}

struct Search<'a, 'p> {
    /// The documents found in the body, in the order in which they should be in the prompt: those of a `documents`
    /// array first.
    blocks: Vec<(PromptPart, &'p FoundDocument<'a>)>,
    /// For each fingerprint, the indices in `blocks` of the documents that may have it, in ascending order.
    known: FxHashMap<Fingerprint, SmallVec<[usize; 1]>>,
    prompt: &'p str,
    /// Index in `blocks` after that of the document located last.
    next: usize,
    /// Offset in the prompt of the end of the last document located in a message.
    message_at: usize,
    /// Number of bytes of the prompt that may still be searched; a byte that is searched again counts again.
    left: usize,
}

impl<'a, 'p> Search<'a, 'p> {
    fn new(blocks: Vec<(PromptPart, &'p FoundDocument<'a>)>, prompt: &'p str) -> Self {
        let mut known: FxHashMap<Fingerprint, SmallVec<[usize; 1]>> = FxHashMap::default();
        for (index, (_, found)) in blocks.iter().enumerate() {
            for fingerprint in fingerprints(found) {
                let indices = known.entry(fingerprint).or_default();
                if indices.last() != Some(&index) {
                    indices.push(index);
                }
            }
        }
        Self {
            blocks,
            known,
            prompt,
            next: 0,
            message_at: 0,
            left: prompt.len().saturating_mul(MAX_PASSES),
        }
    }

    fn run(&mut self, run: &Run) -> Located {
        let mut located = Located {
            scope: run.scope,
            start: 0,
            documents: Vec::with_capacity(run.documents.len()),
        };
        // The template may put the array's documents anywhere, so their search starts at the prompt's beginning.
        let mut front_at = 0;
        for &fingerprint in &run.documents {
            let Some((index, place, found)) = self.block(fingerprint) else {
                break;
            };
            let at = match place {
                PromptPart::Front => front_at,
                PromptPart::Message => self.message_at,
            };
            let Some(block) = plain(found).and_then(|block| self.find(&block, at)) else {
                break;
            };
            match place {
                PromptPart::Front => front_at = block.end,
                PromptPart::Message => self.message_at = block.end,
            }
            self.next = index + 1;
            if located.documents.is_empty() {
                located.start = block.start;
            }
            located.documents.push((fingerprint, block.end));
        }
        located
    }

    /// Returns the first document with this fingerprint among `blocks`, from index `next` on: its index, the part of
    /// the prompt that it is in, and the document. `None` if there is none.
    fn block(
        &self,
        fingerprint: Fingerprint,
    ) -> Option<(usize, PromptPart, &'p FoundDocument<'a>)> {
        let indices = self.known.get(&fingerprint)?;
        let first = indices.partition_point(|index| *index < self.next);
        let index = *indices.get(first)?;
        let (place, found) = self.blocks.get(index)?;
        Some((index, *place, *found))
    }

    /// Returns the range of the text `block` in the prompt, searched from offset `at` on; `None` if the text is absent
    /// there, or if more bytes follow than may still be searched. Counts the searched bytes.
    fn find(&mut self, block: &str, at: usize) -> Option<Range<usize>> {
        let rest = self.prompt.get(at..)?;
        if rest.len() > self.left {
            return None;
        }
        let found = rest.find(block);
        let passed = found.map_or(rest.len(), |found| found + block.len());
        looked(passed);
        self.left -= passed;
        let start = at + found?;
        Some(start..start + block.len())
    }
}

/// Iterates over the fingerprints that the gateway may have for this document: that of its text with tags and, if the
/// text may have been rendered from an element of a `documents` array, that of the element.
fn fingerprints(found: &FoundDocument<'_>) -> impl Iterator<Item = Fingerprint> {
    let parts = match found.source {
        Source::Whole(whole) => body::render::parts_of_block(whole),
        Source::Parts { .. } => [None, None],
    };
    let parts = parts.into_iter().flatten().map(|parts| {
        hashed(parts.iter().map(|part| part.len()).sum());
        Fingerprint::of(&parts.map(str::as_bytes))
    });
    std::iter::once(found.fingerprint).chain(parts)
}

/// Returns the text of the document as a chat template prints it; `None` for a document that the gateway has yet to
/// render.
fn plain<'a>(found: &FoundDocument<'a>) -> Option<Cow<'a, str>> {
    match found.source {
        Source::Whole(whole) if whole.starts_with(['{', '"']) => body::element_text(whole),
        Source::Whole(whole) => Some(body::unescaped(whole)),
        Source::Parts { .. } => None,
    }
}
