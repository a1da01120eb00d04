//! The record of one request: the documents that were forwarded, and the messages that were added to its chat.
//!
//! A record has hashes, counts and positions, and the names of tenant and model. It has no text of documents, questions
//! or answers, with one exception: documents that stay in the chat although its client does not send them again.
//! Another worker needs these to continue the chat. A message with such documents is recorded whole, question included.
//! A record takes about eleven bytes for each document, plus these texts.
//!
//! ```text
//!   record   about, tokens, list of runs, option of chat, list of forms, list of claims, option of context
//!   run      scope, tokens before and matched, list of (fingerprint, tokens), option of as many ranks, byte ranked
//!   chat     option of (chain, lineage), list of (message, chain, list of arrangements, option of written, of kept)
//!   claim    key, chain of what follows     context   key, text content, range of its text, tokens
//!   kept     text moved, list of spans' hashes, list of frozen texts     form   canonical hash, list of ranks
//!   written  list's fingerprint, arrangement, option of pin     arrangement   byte hinted, list of slots
//!   pin      byte wrap, text, tokens, digest, references, list of (fingerprint, tokens, block's range, label's range)
//! ```

use super::about::About;
use super::correction::{Corrected, Correction, Usage};
use super::residency::Residency;
use crate::arrangement::{Arrangement, Slot};
use crate::body::render::fits;
use crate::body::scan::is_value;
use crate::body::{Chain, PartStyle, Wrap};
use crate::bytes::{BadBytes, Reader, Writer};
use crate::conversation::memory::{AddedMessage, MessageKey};
use crate::conversation::sent::{Kept, Pin, Pinned, SentMessage, Written};
use crate::document::Fingerprint;
use crate::engines::EngineId;
use crate::feed::Event;
use crate::head::decision::{Claim, ContextMessage, Form};
use crate::path::Run;
use crate::policy::SentDocuments;
use crate::tenant::Tenant;
use crate::tree::Scope;
use std::ops::Range;

/// The record of one forwarded request, from which the orderers of other workers learn.
/// [`Orderer::rewrite`](crate::Orderer::rewrite) creates it, and [`Orderer::learn`](crate::Orderer::learn) applies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderingRecord {
    pub(crate) about: About,
    /// Estimated tokens of the forwarded body.
    pub(crate) tokens: u32,
    pub(crate) runs: Vec<SentRun>,
    /// The messages that the request added to its chat; `None` if there are none to share.
    pub(crate) chat: Option<ChatContinuation>,
    /// The orders (of the JSON keys in a tool, and of the tools in a set) that this worker has chosen since its last
    /// record.
    pub(crate) forms: Vec<Form>,
    /// For each message whose contexts (retrieved documents) this request restored: the continuation of the chat after
    /// that message, which got them.
    pub(crate) claims: Vec<Claim>,
    /// The newest user message if it has contexts (retrieved documents) that its client may omit later; otherwise
    /// `None`.
    pub(crate) context: Option<ContextMessage>,
}

/// A run of documents that were forwarded one after another in the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentRun {
    /// Hash of the prompt before the first of these documents.
    pub(crate) scope: Scope,
    /// Estimated tokens of the body before the first of these documents.
    pub(crate) before: u32,
    /// Estimated tokens of those documents at the beginning of this run of adjacent ones that the engine was believed
    /// to have cached.
    pub(crate) matched: u32,
    /// The fingerprints of the documents in the order sent, with their estimated tokens; at least one.
    pub(crate) documents: Vec<(Fingerprint, u32)>,
    /// The client's rank of each document, in the order sent, a permutation of 0 to n − 1. `None` if no policy decided
    /// the order for this request, as for messages that are forwarded as before.
    pub(crate) order: Option<Vec<u16>>,
    /// True if the client sent the documents best first; false for formats whose order is no ranking (`rank.unranked`).
    pub(crate) is_ranked: bool,
}

/// The messages that a request added to its chat, and the message that they follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChatContinuation {
    /// The last message of the chat that was recorded before; `None` if none was.
    pub(crate) after: Option<MessageKey>,
    pub(crate) added: Vec<AddedMessage>,
}

impl OrderingRecord {
    /// Returns the tenant of the request.
    #[must_use]
    pub fn tenant(&self) -> Tenant<'_> {
        self.about.tenant()
    }

    /// Returns the engine to which the request was sent.
    #[must_use]
    pub fn engine(&self) -> EngineId {
        self.about.engine
    }

    /// Returns the model that the request names.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.about.model
    }

    /// Returns the update for a request that the engine did not accept: it removes from the knowledge trees (documents
    /// believed to be cached) the documents that were recorded for this request alone.
    #[must_use]
    pub fn undone(&self) -> Residency {
        let events = self.runs.iter().filter_map(|run| {
            let mut held = 0_u64;
            let matched = run.documents.iter().take_while(|(_, tokens)| {
                held += u64::from(*tokens);
                held <= u64::from(run.matched)
            });
            let new = matched.count() + 1;
            let path: Vec<Fingerprint> = run.path().documents.into_iter().take(new).collect();
            (path.len() == new).then_some(Event::Removed {
                tenant: self.about.key,
                scope: run.scope,
                path,
            })
        });
        Residency {
            engine: self.about.engine,
            model: self.about.model.clone(),
            events: events.collect(),
        }
    }

    /// Corrects the record of a request that was sent to `engine` instead of the chosen one: no document counts as
    /// cached there, and policies learn no order from it. What the record has of chats and tools was applied when the
    /// request was first sent, and is dropped: a message would count as forwarded twice.
    pub fn redirect(&mut self, engine: EngineId) {
        self.about.engine = engine;
        // The match on that engine is unknown, and the order was decided for the chosen one.
        for run in &mut self.runs {
            run.matched = 0;
            run.order = None;
        }
        self.context = None;
        self.claims.clear();
        self.forms.clear();
    }

    /// Returns the estimated tokens of the forwarded body, less those of documents that the engine was believed to have
    /// cached.
    #[must_use]
    pub fn uncached(&self) -> u64 {
        let matched = self.runs.iter().map(|run| u64::from(run.matched));
        u64::from(self.tokens).saturating_sub(matched.sum())
    }

    /// Compares the number of cached tokens that the engine reports with the number that was expected. Returns the
    /// correction for the knowledge trees; `None` if no run of documents lacks too many.
    ///
    /// The engine counts its own tokens over the whole prompt, while documents have estimates. So its count is scaled
    /// by the ratio of the estimated prompt to the engine's prompt tokens, and the tokens before a run are subtracted.
    /// Engines cache whole pages and estimates err, so this many tokens may be missing without a correction of a run:
    /// 128, plus a sixteenth of the prompt up to the end of the documents that were expected to be cached.
    #[must_use]
    pub fn judged(&self, usage: Usage) -> Option<Correction> {
        if usage.prompt_tokens == 0 {
            return None;
        }
        let scaled = u128::from(usage.cached_tokens) * u128::from(self.tokens);
        let cached = scaled / u128::from(usage.prompt_tokens);
        let cached = u64::try_from(cached).unwrap_or(u64::MAX);
        let corrected = |run: &SentRun| {
            let (before, expected) = (u64::from(run.before), u64::from(run.matched));
            let slack = SLACK + (before + expected) / 16;
            let cached = cached.saturating_add(slack).saturating_sub(before);
            (cached < expected).then(|| Corrected {
                scope: run.scope,
                path: run.path().documents,
                expected_tokens: expected,
                cached_tokens: cached,
            })
        };
        let runs: Vec<Corrected> = self.runs.iter().filter_map(corrected).collect();
        (!runs.is_empty()).then(|| Correction {
            about: self.about.clone(),
            runs,
        })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        self.about.write(to);
        to.number(u64::from(self.tokens));
        to.list(&self.runs, Writer::run);
        to.option(self.chat.as_ref(), |to, chat| {
            to.option(chat.after.as_ref(), |to, place| {
                to.bytes(&place.chain.0.to_le_bytes());
                to.bytes(&place.lineage.to_le_bytes());
            });
            to.list(&chat.added, |to, added| {
                to.number(u64::from(added.message));
                to.bytes(&added.chain.0.to_le_bytes());
                to.list(&added.sent.groups, Writer::arrangement);
                to.option(added.sent.written.as_ref(), |to, written| {
                    to.bytes(&written.list.0.to_le_bytes());
                    to.arrangement(&written.arrangement);
                    to.option(written.pin.as_ref(), Writer::pin);
                });
                to.option(added.sent.kept.as_ref(), |to, kept| {
                    to.text(&kept.moved);
                    to.list(&kept.spans, |to, span| to.bytes(&span.to_le_bytes()));
                    to.list(&kept.frozen, |to, words| to.text(words));
                });
            });
        });
        to.list(&self.forms, |to, form| {
            to.bytes(&form.canonical.to_le_bytes());
            to.list(&form.order, |to, rank| to.byte(*rank));
        });
        to.list(&self.claims, |to, claim| {
            to.bytes(&claim.key.to_le_bytes());
            to.bytes(&claim.next.0.to_le_bytes());
        });
        to.option(self.context.as_ref(), |to, context| {
            to.bytes(&context.key.to_le_bytes());
            to.text(&context.content);
            to.number(context.text.start.into());
            to.number(context.text.end.into());
            to.number(context.tokens.into());
        });
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, BadBytes> {
        Ok(Self {
            about: About::read(from)?,
            tokens: from.narrow("tokens")?,
            runs: from.list(Reader::run)?,
            chat: from.option(Reader::chat)?,
            forms: from.list(|from| {
                Ok(Form {
                    canonical: from.hash()?,
                    order: from.list(Reader::byte)?.into(),
                })
            })?,
            claims: from.list(|from| {
                Ok(Claim {
                    key: u128::from_le_bytes(from.array()?),
                    next: from.chain()?,
                })
            })?,
            context: from.option(Reader::context)?,
        })
    }
}

impl SentRun {
    /// Returns the fingerprints of these adjacent documents, without their tokens.
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

    /// Returns these adjacent documents in the form that policies receive.
    pub(crate) fn sent(&self) -> SentDocuments<'_> {
        SentDocuments {
            scope: self.scope,
            documents: &self.documents,
            order: self.order.as_deref(),
        }
    }

    /// Returns the documents with their tokens in the client's order; `order` is the client's rank of each document in
    /// the order sent.
    pub(crate) fn ranked(&self, order: &[u16]) -> Vec<(Fingerprint, u32)> {
        let mut ranked = self.documents.clone();
        for (rank, document) in order.iter().zip(&self.documents) {
            if let Some(place) = ranked.get_mut(usize::from(*rank)) {
                *place = *document;
            }
        }
        ranked
    }
}

impl ChatContinuation {
    /// Returns those of the messages `added` to a chat that fit into an update: all before the first message whose
    /// texts do not fit; `None` if none is left. Later messages are dropped too, since a worker that knew them without
    /// the texts would forward the chat without these. `after` is the recorded message that they follow.
    pub(crate) fn within_limit(after: Option<MessageKey>, added: &[AddedMessage]) -> Option<Self> {
        let mut room = PINNED_BYTES;
        let has_room = |added: &&AddedMessage| {
            let pinned = holds_texts(added).then(|| added.sent.bytes());
            let left = room.checked_sub(pinned.unwrap_or(0));
            room = left.unwrap_or(0);
            left.is_some()
        };
        let added: Vec<AddedMessage> = added.iter().take_while(has_room).cloned().collect();
        (!added.is_empty()).then_some(Self { after, added })
    }
}

impl Writer {
    pub(super) fn run(&mut self, run: &SentRun) {
        self.bytes(&run.scope.0.to_le_bytes());
        self.number(u64::from(run.before));
        self.number(u64::from(run.matched));
        self.list(&run.documents, |to, (document, tokens)| {
            to.bytes(&document.0.to_le_bytes());
            to.number(u64::from(*tokens));
        });
        self.option(run.order.as_ref(), |to, order| {
            for rank in order {
                to.number(u64::from(*rank));
            }
        });
        self.byte(run.is_ranked.into());
    }

    fn arrangement(&mut self, arrangement: &Arrangement) {
        self.byte(arrangement.hinted.into());
        self.list(&arrangement.slots, |to, slot| {
            let reference = u64::from(slot.is_reference());
            to.number(u64::from(slot.index()) << 1 | reference);
        });
    }

    fn pin(&mut self, pin: &Pin) {
        self.byte(match pin.wrap {
            Wrap::None => 0,
            Wrap::Part { others, style } => 1 + u8::from(others) + 2 * style as u8,
        });
        self.text(&pin.text);
        self.number(pin.tokens.into());
        self.bytes(&pin.digest.to_le_bytes());
        self.bytes(&pin.references.to_le_bytes());
        self.list(&pin.documents, |to, document| {
            to.bytes(&document.fingerprint.0.to_le_bytes());
            to.number(document.tokens.into());
            for range in [&document.block, &document.label] {
                to.number(range.start.into());
                to.number(range.end.into());
            }
        });
    }
}

impl Reader<'_> {
    pub(super) fn run(&mut self) -> Result<SentRun, BadBytes> {
        let scope = Scope(self.hash()?);
        let before = self.narrow("tokens")?;
        let matched = self.narrow("tokens")?;
        let documents =
            self.list(|from| Ok((Fingerprint(from.hash()?), from.narrow("tokens")?)))?;
        if documents.is_empty() {
            return Err(self.bad("a document"));
        }
        let order = self.option(|from| {
            let mut seen = vec![false; documents.len()];
            let rank = |_| {
                let rank = from.narrow::<u16>("a rank")?;
                let first = seen
                    .get_mut(usize::from(rank))
                    .map(|seen| !std::mem::replace(seen, true));
                (first == Some(true))
                    .then_some(rank)
                    .ok_or_else(|| from.bad("a rank of its own"))
            };
            (0..documents.len()).map(rank).collect()
        })?;
        Ok(SentRun {
            scope,
            before,
            matched,
            documents,
            order,
            is_ranked: self.flag()?,
        })
    }

    fn chat(&mut self) -> Result<ChatContinuation, BadBytes> {
        let after = self.option(|from| {
            Ok(MessageKey {
                chain: from.chain()?,
                lineage: from.hash()?,
            })
        })?;
        let added = self.list(|from| {
            let message = from.narrow("a message")?;
            let chain = from.chain()?;
            let groups = from.list(Reader::arrangement)?.into();
            let written = from.option(|from| {
                Ok(Written {
                    list: Fingerprint(from.hash()?),
                    arrangement: from.arrangement()?,
                    pin: from.option(Reader::pin)?,
                })
            })?;
            let kept = from.option(|from| Ok(Box::new(from.kept()?)))?;
            Ok(AddedMessage {
                message,
                chain,
                sent: SentMessage {
                    groups,
                    written,
                    kept,
                },
            })
        })?;
        // A chat's messages are recorded in their order.
        if added.is_sorted_by(|one, next| one.message < next.message) {
            Ok(ChatContinuation { after, added })
        } else {
            Err(self.bad("messages in their order"))
        }
    }

    fn arrangement(&mut self) -> Result<Arrangement, BadBytes> {
        let hinted = self.flag()?;
        let slots = self.list(|from| {
            let slot = from.narrow::<u16>("a slot")?;
            let index = slot >> 1;
            Ok(if slot & 1 == 1 {
                Slot::reference(index)
            } else {
                Slot::document(index)
            })
        })?;
        Ok(Arrangement {
            slots: slots.into(),
            hinted,
        })
    }

    fn pin(&mut self) -> Result<Pin, BadBytes> {
        let wrap = match self.byte()? {
            0 => Wrap::None,
            byte => Wrap::Part {
                others: byte % 2 == 0,
                style: (PartStyle::ALL.get(usize::from((byte - 1) / 2)).copied())
                    .ok_or_else(|| self.bad("a wrap from 0 to 6"))?,
            },
        };
        let text = self.text()?;
        if !fits(wrap, &text) {
            return Err(self.bad("a text that fits its place"));
        }
        let tokens = self.narrow("tokens")?;
        let (digest, references) = (self.hash()?, self.hash()?);
        let documents = self.list(|from| {
            let fingerprint = Fingerprint(from.hash()?);
            let tokens = from.narrow("tokens")?;
            let mut range = || {
                let range: Range<u32> = from.narrow("a range")?..from.narrow("a range")?;
                match text.get(range.start as usize..range.end as usize) {
                    Some(_) => Ok(range),
                    None => Err(from.bad("a range of the text")),
                }
            };
            Ok(Pinned {
                fingerprint,
                tokens,
                block: range()?,
                label: range()?,
            })
        })?;
        Ok(Pin {
            documents: documents.into(),
            text,
            wrap,
            tokens,
            digest,
            references,
        })
    }

    fn kept(&mut self) -> Result<Kept, BadBytes> {
        let words = |from: &mut Self| {
            let words = from.text()?;
            match fits(Wrap::None, &words) {
                true => Ok(words),
                false => Err(from.bad("a text that fits its place")),
            }
        };
        Ok(Kept {
            moved: words(self)?,
            spans: self.list(Reader::hash)?.into(),
            frozen: self.list(words)?.into(),
        })
    }

    fn context(&mut self) -> Result<ContextMessage, BadBytes> {
        let key = u128::from_le_bytes(self.array()?);
        let content = self.text()?;
        let text: Range<u32> = self.narrow("a range")?..self.narrow("a range")?;
        let range = text.start as usize..text.end as usize;
        let is_text = content
            .get(range.start.wrapping_sub(1)..range.end + 1)
            .is_some_and(is_value);
        if !is_value(&content) || !content.starts_with(['"', '[']) || !is_text {
            return Err(self.bad("a content with a text"));
        }
        Ok(ContextMessage {
            key,
            content,
            text,
            tokens: self.narrow("tokens")?,
        })
    }

    fn chain(&mut self) -> Result<Chain, BadBytes> {
        Ok(Chain(u128::from_le_bytes(self.array()?)))
    }
}

impl OrderingRecord {
    /// Adds to the record `claims`, the continuations of chats that got restored contexts (retrieved documents), and
    /// `context`, the newest message with contexts, unless its content exceeds the limit for texts.
    pub(crate) fn tell_contexts(&mut self, claims: Vec<Claim>, context: Option<&ContextMessage>) {
        let added = self.chat.iter().flat_map(|chat| &chat.added);
        let pinned = added.filter(|added| holds_texts(added));
        let pinned: u64 = pinned.map(|added| added.sent.bytes()).sum();
        let room = PINNED_BYTES.saturating_sub(pinned);
        self.context = context
            .filter(|context| context.content.len() as u64 <= room)
            .cloned();
        self.claims = claims;
    }
}

/// Returns whether the record of a message has texts of it, not only hashes.
fn holds_texts(added: &AddedMessage) -> bool {
    added.sent.pin().is_some() || added.sent.kept.is_some()
}

/// The maximum size of the texts of messages in the record of one request, in bytes: about five documents of 300 words,
/// or twenty passages.
const PINNED_BYTES: u64 = 12 << 10;

/// Number of tokens that may be missing from the cache without a correction of the knowledge tree (documents believed
/// to be cached), in addition to a share of the prompt: one page of the largest size that engines' caches have.
const SLACK: u64 = 128;
