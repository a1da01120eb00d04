//! Restores contexts (retrieved documents) that a client writes only into the newest request. Otherwise every turn
//! removes them from the prompt again, and the engine's KV state of everything after them is lost.
//!
//! ```text
//!   original                                           rebuilt
//!   turn 1   S            [a b] q1                     S  [a b] q1
//!   turn 2   S            q1  answer  [a c] q2         S  [a b] q1  answer  [a c] q2       restored
//!   turn 2   S [a c]      q1  answer  q2               S  [a b] q1  answer  [a c] q2       moved, and restored
//! ```
//!
//! This module rebuilds the body that a client which keeps earlier contexts would have sent. All later steps use that
//! body: its earlier messages are replayed, its documents are ordered, and documents of earlier turns become location
//! hints. Nothing is printed again; a [`Plan`] consists of ranges of the client's body and their replacements.
//! Documents' numbers and scores move behind them in the same step ([`ranks`]).
//!
//! A message without its contexts is identified by the hash chain of the client's earlier messages and by one line of
//! its question; then the rest of its text must equal the forwarded one. [`memory`] describes when that is not enough.

pub(crate) mod memory;
mod question;

pub(crate) use self::memory::{BareQuestions, ContextMemory};

use super::config::HeadMode;
use super::decision::{Claim, ContextMessage, Decision};
use super::ranks::{self, Unranked};
use super::report::{Change, ChangeKind};
use super::texts::RemovedElements;
use crate::body::edit::replaced;
use crate::body::{Chain, ContextTexts, Message, Parsed, Role, last_text, offset_in, range_in};
use crate::config::Config;
use crate::document::estimate_tokens;
use std::borrow::Cow;
use std::ops::Range;

/// The plan for rebuilding a body: contexts (retrieved documents) of earlier turns are restored, those in the system
/// text move into the newest user message, and documents' numbers and scores move behind the documents.
#[derive(Debug, Default)]
pub(crate) struct Plan<'a> {
    /// Ranges of the client's body and the text that replaces each, in order; no two touch.
    edits: Vec<(Range<usize>, Cow<'a, str>)>,
    /// For each restored message: its key, and the hash that identifies the chat up to and including the message after
    /// it.
    pub(crate) claims: Vec<Claim>,
    /// Number of earlier messages whose contexts (retrieved documents), omitted by the client, are not restored,
    /// because the recorded ones might belong to another chat.
    pub(crate) doubtful: u32,
    /// Number of groups of documents that move out of the system text into the newest user message.
    pub(crate) moved: u32,
    /// Number of documents whose number is replaced by one derived from the text.
    pub(crate) numbered: u32,
    /// Number of documents' scores that move after the documents.
    pub(crate) scored: u32,
    /// Number of documents that move out of the system text into the newest user message.
    documents: usize,
    /// Number of documents found in messages of the client's body.
    all_documents: usize,
    changes: Vec<Change>,
    /// Index of the newest user message, and the hash of the chat before it. `None` if that message does not end the
    /// body, or if contexts (retrieved documents) are not to be restored.
    target: Option<(usize, Chain)>,
    /// Estimated tokens of the messages whose contexts (retrieved documents) are restored.
    tokens: u64,
}

/// Returns the plan for rebuilding a body; `None` if the configuration enables no such change, or if no user message
/// can be written to. `decision` has the changes to the prompt's head (tools, system text), and `memory` the contexts
/// (retrieved documents) forwarded earlier. O(messages + documents + bytes of the messages concerned).
pub(crate) fn plan<'a>(
    config: &Config,
    parsed: &Parsed<'a>,
    decision: &Decision<'a>,
    memory: Option<&ContextMemory>,
) -> Option<Plan<'a>> {
    let mut contexts = config.head.raw.contexts;
    if config.pin.is_none() {
        (contexts.restore, contexts.relocate) = (false, false);
    }
    let documents = config.head.raw.documents;
    let keeps = contexts.restore || contexts.relocate;
    let is_asked = keeps || documents.numbers || documents.scores;
    if !is_asked || config.head.mode() == HeadMode::Off {
        return None;
    }
    // Documents of an array are written into their message by the gateway and pinned there.
    let has_array = parsed.rendered.is_some();
    let target = parsed.writable()?;
    let mut plan = Plan::default();
    let mut unranked = plan.unrank(config, parsed);
    if contexts.relocate && !has_array {
        plan.relocate(parsed, target, decision, &mut unranked);
    }
    for unranked in unranked {
        plan.write_behind(parsed, unranked);
    }
    let chains = chains(parsed);
    if contexts.restore {
        if let Some(memory) = memory.filter(|_| !has_array) {
            plan.restore(parsed, target, memory, &chains);
        }
        // A request that continues with a tool result belongs to a known conversation.
        if target + 1 == parsed.messages.len() {
            plan.target = chains.get(target).map(|prior| (target, *prior));
        }
    }
    crate::sort::sort_by_key(&mut plan.edits, |(range, _)| (range.start, range.end));
    Some(plan)
}

/// Returns whether the decision on the prompt's head (tools, system text) removes an element of the message's content
/// array. If so, a group of documents must not be moved out of the array, which might become empty.
fn removes_element(parsed: &Parsed<'_>, message: &Message<'_>, decision: &Decision<'_>) -> bool {
    let content = range_in(parsed.text, message.content);
    let mut within = (decision.removed.iter()).filter(|range| content.contains(&range.start));
    within.any(|range| {
        let removed = parsed.text.get(range.clone()).unwrap_or_default();
        removed.starts_with(['{', ','])
    })
}

/// A group of documents in the body, and the changes that remove the documents' numbers and scores.
struct UnrankedGroup<'a> {
    /// Offset in the body of the group's first document.
    start: usize,
    /// Offset in the body at which the sentences with numbers and scores are inserted.
    behind: usize,
    documents: Unranked<'a>,
}

impl<'a> Plan<'a> {
    /// Returns the changes that take numbers and scores out of documents, for each group that has such changes. Also
    /// counts all documents of the body in the plan.
    fn unrank(&mut self, config: &Config, parsed: &Parsed<'a>) -> Vec<UnrankedGroup<'a>> {
        let mut all = Vec::new();
        let wanted = config.head.raw.documents;
        for message in &parsed.messages {
            // The cache marker is searched for once, and only if a group has numbers or scores.
            let mut is_marked = None;
            for group in &message.groups {
                self.all_documents += group.found.len();
                if !(wanted.numbers || wanted.scores) {
                    continue;
                }
                let room = config.head.raw.max_moved_bytes as usize;
                let documents = ranks::unranked(wanted, room, parsed, message.role, group);
                let Some((documents, hint)) = documents.zip(group.hint) else {
                    continue;
                };
                if *is_marked.get_or_insert_with(|| message.raw.contains("\"cache_control\"")) {
                    continue;
                }
                self.numbered += documents.numbered;
                self.scored += documents.scored;
                all.push(UnrankedGroup {
                    start: group.place.start(),
                    behind: hint.at,
                    documents,
                });
            }
        }
        all
    }

    /// Adds to the plan the changes that remove a group's numbers and scores, and inserts sentences with these after
    /// the documents.
    fn write_behind(&mut self, parsed: &Parsed<'a>, unranked: UnrankedGroup<'a>) {
        let UnrankedGroup {
            behind, documents, ..
        } = unranked;
        let next = parsed.text.get(behind..).unwrap_or_default();
        let is_apart = next.starts_with(r"\n") || next.starts_with(r"\r") || next.starts_with('"');
        let end = if is_apart { "" } else { r"\n" };
        let words = [r"\n", &documents.words, end].concat();
        self.edits.push((behind..behind, words.into()));
        self.edits.extend(documents.edits);
        self.changes.extend(documents.changes);
    }

    /// Moves documents from the system messages before the message with index `target` to the start of the last text of
    /// that message. Groups in `unranked` that move are removed from it, and are written with their numbers and scores
    /// after them.
    fn relocate(
        &mut self,
        parsed: &Parsed<'a>,
        target: usize,
        decision: &Decision<'a>,
        unranked: &mut Vec<UnrankedGroup<'a>>,
    ) {
        let mut cuts: Vec<Range<usize>> = Vec::new();
        let Some(place) = parsed.messages.get(target) else {
            return;
        };
        let Some(text) = last_text(parsed.text, place.content) else {
            return;
        };
        let mut words = String::new();
        let mut elements = RemovedElements::default();
        for message in parsed.messages.iter().take(target) {
            // A system text with a cache marker stays: the client defines where its prefix ends.
            if message.role != Role::System || message.raw.contains("\"cache_control\"") {
                continue;
            }
            // Labelled documents stay, since their labels would stay behind.
            let mut groups = (message.groups.iter())
                .filter(|group| !group.is_labelled)
                .peekable();
            if groups.peek().is_none() {
                continue;
            }
            let texts = ContextTexts::new(parsed.text, message.content);
            for group in groups {
                let found = group.place.hull().and_then(|found| texts.around(found));
                let Some(found) = found else { continue };
                let hull = found.range;
                let overlaps =
                    |range: &Range<usize>| range.start < hull.end && hull.start < range.end;
                let is_touched = decision.removed.iter().any(overlaps)
                    || decision.frozen.iter().any(|span| overlaps(&span.range))
                    || cuts.iter().any(overlaps);
                let Some(cut) = parsed.text.get(hull.clone()).filter(|_| !is_touched) else {
                    continue;
                };
                // Providers refuse an empty array and an empty block.
                if let Some(part) = found.part
                    && (removes_element(parsed, message, decision)
                        || !elements.add(parsed.text, part))
                {
                    continue;
                }
                let within = |group: &UnrankedGroup<'_>| hull.contains(&group.start);
                match unranked.iter().position(within) {
                    Some(at) => {
                        let documents = unranked.swap_remove(at).documents;
                        words.push_str(&documents.written(parsed.text, hull.clone()));
                        words.push_str(if words.ends_with(r"\n") { "" } else { r"\n" });
                        words.push_str(&documents.words);
                        self.changes.extend(documents.changes);
                    }
                    None => words.push_str(cut),
                }
                words.push_str(r"\n\n");
                self.moved += 1;
                self.documents += group.found.len();
                self.changes
                    .push(Change::new(ChangeKind::Context, "", hull.clone()));
                if found.part.is_none() {
                    self.edits.push((hull.clone(), "".into()));
                }
                cuts.push(hull);
            }
        }
        let elements = elements.into_ranges().into_iter();
        self.edits.extend(elements.map(|range| (range, "".into())));
        if !words.is_empty() {
            self.edits.push((text.start..text.start, words.into()));
        }
    }

    /// Restores contexts (retrieved documents) that the client left out of user messages before the message with index
    /// `target`: adds to the plan the replacement of each such message's content by the content forwarded earlier, from
    /// `memory`. `chains` are the hashes of the chat before each message and after the last one.
    fn restore(
        &mut self,
        parsed: &Parsed<'a>,
        target: usize,
        memory: &ContextMemory,
        chains: &[Chain],
    ) {
        for (at, message) in parsed.messages.iter().enumerate().take(target) {
            if message.role != Role::User || message.ordered().next().is_some() {
                continue;
            }
            let behind = parsed.messages.iter().enumerate().skip(at + 1);
            let mut behind = behind.filter(|(_, message)| message.role != Role::System);
            let next = behind.next().and_then(|(at, _)| chains.get(at + 1));
            let text = last_text(parsed.text, message.content);
            let (Some(text), Some(&next), Some(&prior)) = (text, next, chains.get(at)) else {
                continue;
            };
            let Some(bare) = Bare::new(parsed.text, message, text) else {
                continue;
            };
            let keys = question::keys(&bare.plain, prior);
            for key in keys.into_iter().flatten() {
                let Some(known) = memory.get(key).filter(|known| known.message.is(&bare)) else {
                    continue;
                };
                if !known.continues(next) {
                    self.doubtful += 1;
                    continue;
                }
                let range = range_in(parsed.text, message.content);
                self.changes
                    .push(Change::new(ChangeKind::Restored, "", range.clone()));
                self.edits
                    .push((range, known.message.content.to_string().into()));
                self.tokens = self.tokens.saturating_add(known.message.tokens.into());
                self.claims.push(Claim { key, next });
                break;
            }
        }
    }

    /// Returns whether the plan changes nothing in the body.
    pub(crate) fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// Takes the changes out of the plan for the report, as ranges of the client's body.
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Returns the client's body `text` with the plan applied.
    pub(crate) fn body(&self, text: &str) -> String {
        let edits = self.edits.iter();
        let edits = edits.map(|(range, with)| (range.clone(), &**with));
        replaced(text, 0..text.len(), edits)
    }

    /// Returns whether the rebuilt body, parsed as `read`, has at least as many documents as the client's body, and at
    /// least as many in the newest user message as were moved there.
    pub(crate) fn is_whole(&self, read: &Parsed<'_>) -> bool {
        let found = |message: &Message<'_>| -> usize {
            message.groups.iter().map(|group| group.found.len()).sum()
        };
        let newest = read.writable().and_then(|at| read.messages.get(at));
        newest.map_or(0, found) >= self.documents
            && read.messages.iter().map(found).sum::<usize>() >= self.all_documents
    }

    /// Converts the ranges of a decision on the prompt's head (tools, system text) from offsets in the client's body to
    /// offsets in the rebuilt body.
    pub(crate) fn shift(&self, decision: &mut Decision<'_>) {
        let mut edits = self.edits.iter().peekable();
        let [mut added, mut removed] = [0, 0];
        let mut shifted = |range: &mut Range<usize>| {
            while let Some((edit, with)) = edits.next_if(|(edit, _)| edit.end <= range.start) {
                added += with.len();
                removed += edit.len();
            }
            let place = |at: usize| (at + added).saturating_sub(removed);
            *range = place(range.start)..place(range.end);
        };
        let tools = decision.tools.iter_mut().map(|(range, _)| range);
        let frozen = decision.frozen.iter_mut().map(|span| &mut span.range);
        let mut all: Vec<&mut Range<usize>> =
            tools.chain(&mut decision.removed).chain(frozen).collect();
        crate::sort::sort_by_key(&mut all, |range| (range.start, range.end));
        all.into_iter().for_each(&mut shifted);
    }

    /// Returns the record to keep of the newest user message of the rebuilt body, `sent`, so that later requests can
    /// have its contexts (retrieved documents) restored.
    pub(crate) fn newest(&self, config: &Config, sent: &Parsed<'_>) -> Newest {
        let Some((target, prior)) = self.target else {
            return Newest::Known;
        };
        let Some(message) = sent.messages.get(target) else {
            return Newest::Known;
        };
        let Some(text) = last_text(sent.text, message.content) else {
            return Newest::Known;
        };
        if let Some(message) = self.with_contexts(config, sent, message, &text, prior) {
            return Newest::Contexts(message);
        }
        let plain = crate::body::unescaped(sent.text.get(text).unwrap_or_default());
        let [end, start] = question::keys(&plain, prior);
        Newest::Bare([end, start])
    }

    /// Returns the record of a message with contexts (retrieved documents), for restoring them later; `None` if it has
    /// none in its last text, `text`, if no question is around them, or if the chat would keep more tokens than `pin`
    /// allows. `prior` is the hash of the chat before the message.
    fn with_contexts(
        &self,
        config: &Config,
        sent: &Parsed<'_>,
        message: &Message<'_>,
        text: &Range<usize>,
        prior: Chain,
    ) -> Option<ContextMessage> {
        let hulls = message.ordered().filter_map(|group| group.place.hull());
        let hull = hulls.reduce(|all, next| all.start.min(next.start)..all.end.max(next.end))?;
        if hull.start < text.start || text.end < hull.end {
            return None;
        }
        let tokens = estimate_tokens(message.content.len());
        let total = self.tokens.saturating_add(tokens.into());
        if total > u64::from(config.pin?) {
            return None;
        }
        let before = sent.text.get(text.start..hull.start)?;
        let behind = sent.text.get(hull.end..text.end)?;
        let start = offset_in(sent.text, message.content);
        let narrow = |at: usize| u32::try_from(at - start).ok();
        Some(ContextMessage {
            key: question::key_of(before, behind, prior)?,
            content: message.content.into(),
            text: narrow(text.start)?..narrow(text.end)?,
            tokens,
        })
    }
}

/// The record to keep of a request's newest user message, so that its contexts (retrieved documents) can be restored.
#[derive(Debug)]
pub(crate) enum Newest {
    /// Nothing to record: the newest user message does not end the body, so it was recorded before; or contexts
    /// (retrieved documents) are not to be restored.
    Known,
    /// A message with contexts (retrieved documents).
    Contexts(ContextMessage),
    /// A question without contexts (retrieved documents), or with more than a chat may keep. The keys are those under
    /// which a message with contexts and the same question would be recorded.
    Bare([Option<u128>; 2]),
}

/// A user message without its contexts (retrieved documents), as the client sends it again in later requests.
struct Bare<'t> {
    /// The JSON of the message's content before and after its last text, quotes included.
    around: [&'t str; 2],
    plain: Cow<'t, str>,
}

impl<'t> Bare<'t> {
    fn new(body: &'t str, message: &Message<'t>, text: Range<usize>) -> Option<Self> {
        let start = offset_in(body, message.content);
        Some(Self {
            around: [
                body.get(start..text.start)?,
                body.get(text.end..start + message.content.len())?,
            ],
            plain: crate::body::unescaped(body.get(text)?),
        })
    }
}

impl ContextMessage {
    /// Returns whether `bare` may be this message without its contexts (retrieved documents): the JSON around the text
    /// is the same, and the text begins or ends with the same question.
    fn is(&self, bare: &Bare<'_>) -> bool {
        let (start, end) = (self.text.start as usize, self.text.end as usize);
        let around = [self.content.get(..start), self.content.get(end..)];
        let text = self.content.get(start..end).unwrap_or_default();
        around == bare.around.map(Some)
            && question::asks(&crate::body::unescaped(text), &bare.plain)
    }
}

/// Returns the hash chain of the chat before each message and after the last one: one value more than there are
/// messages. System messages do not enter the chain, since contexts (retrieved documents) in them change at every turn.
fn chains(parsed: &Parsed<'_>) -> Vec<Chain> {
    let mut chain = parsed.start.chain;
    let mut chains = Vec::with_capacity(parsed.messages.len() + 1);
    chains.push(chain);
    for message in &parsed.messages {
        if message.role != Role::System {
            chain = chain.then(&message.role_name, message.content_hash);
        }
        chains.push(chain);
    }
    chains
}
