//! Arranges one request: turns the messages and documents of its body into the edits that make the forwarded body.
//!
//! Messages are handled in the order of the prompt. The documents of a message that was forwarded before get the same
//! order and location hints (references to earlier copies) as then; how to forward those of any other message is
//! decided now ([`decide`]), given the prompt before it. This module records nothing: it returns the records to its
//! caller. In the knowledge tree (the documents believed to be cached) it only assigns ids to documents.

mod decide;
mod report;

pub use self::report::Report;

use self::decide::Decision;
use crate::arrangement::{Arrangement, DistinctDocuments, Slot, keeps_repeats, narrowed};
use crate::body::{
    Entry, FoundDocument, Group, GroupLayout, Message, Parsed, Role, Wrap,
    edit::Edit,
    render::{self, Rendering, Sent},
};
use crate::config::Config;
use crate::conversation::memory::{AddedMessage, Memory, Path};
use crate::conversation::outputs::Outputs;
use crate::conversation::prompt_documents::PromptDocuments;
use crate::conversation::sent::{Kept, Pin, Pinned, SentMessage, Written, kept_hash};
use crate::document::{Candidate, Fingerprint, estimate_tokens};
use crate::head::decision::{Frozen, Moved};
use crate::hint::LocationTemplate;
use crate::peer_update::SentRun;
use crate::policy::{Order, Policy, PolicyKind, Start, match_of};
use crate::sort::sort_by_key;
use crate::tree::{KnowledgeTree, Scope};
use smallvec::SmallVec;

/// The kind of order that the documents of a request get, and its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderingMode {
    /// Documents get the order that the policy computes, and are forwarded in it.
    Ordered,
    /// Documents keep the client's order: none is moved, dropped, replaced by a location hint (a reference to an
    /// earlier copy) or mentioned in an order hint (a sentence with the retriever's ranking), and no earlier turn is
    /// used. A `documents` array is still written into its message.
    ClientOrder,
    /// Documents get the order that the policy computes, but only for the report of a dry run: they are not forwarded
    /// in it.
    Trial,
}

/// Runs of adjacent documents, each in the client's order and with the hash of the prompt before the run. Each document
/// has its estimated tokens.
pub(crate) type ClientRuns = Vec<(Scope, SmallVec<[(Fingerprint, u32); 16]>)>;

/// A request with its documents arranged for one engine: ordered, with sentences that tell their ranking or refer to
/// earlier copies. The edits are not applied to the body yet, and nothing is recorded yet.
#[derive(Default)]
pub(crate) struct ArrangedRequest<'a> {
    /// The replacements of parts of the body; empty if the original body is forwarded.
    pub(crate) edits: Vec<Edit<'a>>,
    pub(crate) report: Report,
    /// The forwarded documents as runs of adjacent ones, from which the knowledge tree (documents believed to be
    /// cached) and the policy learn.
    pub(crate) runs: Vec<SentRun>,
    /// The same documents as in `runs`, each run in the client's order.
    pub(crate) clients: ClientRuns,
    /// The messages to record, which follow those of the chat that were recorded before. Without pinning (repeating
    /// documents in later requests), only messages with documents or with text moved from the system text are recorded,
    /// and the last one.
    pub(crate) added: Vec<AddedMessage>,
}

/// Volatile spans (texts that change between requests) of the system text that are written into messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeadWords<'a> {
    /// The volatile spans (texts that change between requests) that stay in place, but with the value that they had in
    /// the chat's first request.
    pub(crate) frozen: &'a [Frozen<'a>],
    /// The volatile spans (texts that change between requests) that move into the newest user message; `None` if none
    /// do.
    pub(crate) moved: Option<&'a Moved>,
}

/// Returns a parsed request with its documents arranged: ordered, with sentences that tell their ranking or refer to
/// earlier copies. `path` lists those of its messages that were recorded before, `head` the texts of the system
/// messages that move or keep their first values. Of the shared state, this changes only `tree`, by assigning ids to
/// documents.
#[allow(
    clippy::too_many_arguments,
    reason = "one call, from the one place that has all of them"
)]
pub(crate) fn arrange<'a>(
    config: &'a Config,
    parsed: &Parsed<'a>,
    head: HeadWords<'a>,
    tree: &mut KnowledgeTree,
    policy: &mut dyn Policy,
    memory: &'a Memory,
    path: &Path,
    mode: OrderingMode,
) -> ArrangedRequest<'a> {
    let mut request = Request {
        config,
        deduplicate: config.deduplicate.as_ref().filter(|_| !parsed.may_be_cut),
        text: parsed.text,
        head,
        frozen: Box::default(),
        mode,
        question: 0,
        tree,
        policy,
        last_turn: parsed.messages.last().map_or(0, |message| message.turn),
        pinned_tokens: memory.pinned_tokens(path),
        shown: PromptDocuments::default(),
        outputs: Outputs::default(),
        is_new: true,
        sent: 0,
        arranged: ArrangedRequest::default(),
    };
    request.arranged.report.policy = match mode {
        OrderingMode::ClientOrder => PolicyKind::Retrieval.name(),
        OrderingMode::Ordered | OrderingMode::Trial => config.policy.name(),
    };
    if let Some(front) = &parsed.front {
        request.group(front, None, 0, None);
    }
    request.freeze(memory, path);
    let mut known = path.iter().peekable();
    let last = parsed.messages.len().saturating_sub(1);
    for (message, at) in parsed.messages.iter().zip(0_u32..) {
        request.question += u32::from(message.role == Role::User);
        let turn = known
            .next_if(|(known, _)| *known == at)
            .and_then(|(_, id)| memory.sent(*id));
        let written = match &parsed.rendered {
            Some((target, group)) if *target == at as usize => Some(group),
            _ => None,
        };
        let is_new = path.last().is_none_or(|(last, _)| *last < at);
        // Moved words are not added to a message that was already forwarded, which is known only with the words sent
        // then.
        let moved = head.moved.filter(|moved| is_new && moved.message == at);
        request.is_new = is_new;
        let made = request.message(message, written, turn, moved);
        // With pinning, every message is recorded; later requests must know that it has no pinned documents.
        if is_new && (at as usize == last || config.pins() || made != SentMessage::default()) {
            request.arranged.added.push(AddedMessage {
                message: at,
                chain: message.chain,
                sent: made,
            });
        }
    }
    request.arranged
}

struct Request<'r, 'a> {
    config: &'a Config,
    /// The words of location hints (references to earlier copies); `None` if the request gets none.
    deduplicate: Option<&'a LocationTemplate>,
    /// The body of the request, as text.
    text: &'a str,
    head: HeadWords<'a>,
    /// The values that this request forwards for those volatile spans of the system text (texts that change between
    /// requests) that keep their first value.
    frozen: Box<[Box<str>]>,
    mode: OrderingMode,
    tree: &'r mut KnowledgeTree,
    policy: &'r mut dyn Policy,
    /// Number of user messages up to and including the message whose documents are being arranged (ordered).
    question: u32,
    /// The turn of the chat to which the request's last message belongs. If it is the first turn (0), no location hints
    /// (references to earlier copies) are possible.
    last_turn: u32,
    /// Estimated tokens of the documents pinned (repeated at later turns) in the messages recorded before.
    pinned_tokens: u64,
    shown: PromptDocuments<'a>,
    outputs: Outputs<'a>,
    /// True if the message whose documents are being arranged (ordered) follows all recorded ones, so that it was not
    /// forwarded before.
    is_new: bool,
    /// Hash of the gateway's changes to the client's messages so far, since they change the prompt before later
    /// documents; 0 if there are none.
    sent: u64,
    /// The result of the messages that have been processed so far: edits, report, and what is to be recorded.
    arranged: ArrangedRequest<'a>,
}

impl<'a> Request<'_, 'a> {
    /// Arranges the documents of a message (order, and sentences that tell the ranking or refer to earlier copies), or
    /// repeats the arrangement in the message's record `known`. Also writes into it `written`, the documents of an
    /// array, and `moving`, volatile spans of the system text (texts that change between requests). Returns the
    /// message's new record.
    fn message(
        &mut self,
        message: &Message<'a>,
        written: Option<&Group<'a>>,
        known: Option<&'a SentMessage>,
        moving: Option<&'a Moved>,
    ) -> SentMessage {
        let mut turn = SentMessage::default();
        let mut again = false;
        let kept = known.and_then(|turn| turn.kept.as_deref());
        let moved: Option<&'a str> = match (known, moving) {
            (Some(_), _) => kept.map(|kept| &*kept.moved),
            (None, Some(moved)) => Some(&moved.words),
            _ => None,
        };
        let moved = moved.filter(|words| !words.is_empty());
        turn.kept = match (known, moving) {
            (Some(known), _) => known.kept.clone(),
            (None, Some(moving)) => Some(Box::new(Kept {
                moved: moving.words.clone(),
                spans: moving.spans.clone(),
                frozen: self.frozen.clone(),
            })),
            _ => None,
        };
        // Moved words are written once: behind the array's documents, the message's own documents, or before its text.
        let mut unsaid = moved;
        if let Some(group) = written {
            let known = known.and_then(|turn| turn.written.as_ref());
            again |= known.is_some();
            let words = unsaid.take().filter(|_| group.hint.is_some());
            turn.written = Some(self.write(group, known, message.turn, words));
        } else if let Some(written) = known.and_then(|turn| turn.written.as_ref())
            && let (Some(pin), Some(place)) = (&written.pin, message.entry)
            && place.0.wrap == pin.wrap
        {
            again = true;
            // The moved words were written with the documents.
            unsaid = None;
            self.pin(pin, written.arrangement.hinted, place, message.turn);
        }
        let last = message
            .groups
            .iter()
            .rposition(|group| group.hint.is_some());
        if last.is_none()
            && let (Some(words), Some((entry, _))) = (unsaid.take(), message.entry)
        {
            self.arranged
                .edits
                .push(Edit::insert(entry.at, before_text(entry.wrap, words)));
        }
        let groups = message.groups.iter().enumerate().map(|(at, group)| {
            let known = known.and_then(|turn| turn.groups.get(at));
            again |= known.is_some();
            let words = unsaid.take_if(|_| last == Some(at));
            self.group(group, known, message.turn, words).0
        });
        turn.groups = groups.collect();
        if let Some(words) = moved {
            self.then(kept_hash(words, &[]));
        }
        self.arranged.report.replayed += u32::from(again);
        turn
    }

    /// Writes the first values of those volatile spans of the system text (texts that change between requests) that
    /// keep them, as recorded with the chat's first message that has such values. Without a record, this request's own
    /// values are the first.
    fn freeze(&mut self, memory: &'a Memory, path: &Path) {
        let spans = self.head.frozen;
        if spans.is_empty() {
            return;
        }
        let mut kept = (path.iter()).filter_map(|(_, id)| memory.sent(*id)?.kept.as_deref());
        // If the number of spans changed, values cannot be matched to spans.
        let first = kept.find(|kept| kept.frozen.len() == spans.len());
        let edits = (spans.iter()).zip(first.into_iter().flat_map(|kept| &kept.frozen));
        let edits = edits.filter(|(span, words)| *span.words != ***words);
        self.arranged
            .edits
            .extend(edits.map(|(span, words)| Edit::replace(span.range.clone(), &**words)));
        self.frozen = match first {
            Some(first) => first.frozen.clone(),
            None => spans.iter().map(|span| span.words.into()).collect(),
        };
        let digest = kept_hash("", &self.frozen);
        self.then(digest);
    }

    /// Writes the documents of the client's `documents` array, `group`, into a message of the chat's turn `turn`.
    /// `words`, if given, is the text that moves there from the system text; it follows the documents. If `known`, the
    /// record of how an earlier request wrote these documents, is given and still valid, repeats its arrangement
    /// (order, and hints that refer to earlier copies). Returns the record of what was written.
    fn write(
        &mut self,
        group: &Group<'a>,
        known: Option<&Written>,
        turn: u32,
        words: Option<&str>,
    ) -> Written {
        let known = known.map(|known| &known.arrangement);
        let (arrangement, listed, rendering) = self.group(group, known, turn, words);
        let list = listed.fingerprint();
        let pin = self
            .config
            .pin
            .zip(rendering)
            .and_then(|(max_tokens, rendering)| {
                let pin = pin_of(group, &listed, &arrangement, rendering)?;
                let tokens = self.pinned_tokens.saturating_add(pin.tokens.into());
                (tokens <= max_tokens.into()).then_some(pin)
            });
        Written {
            list,
            arrangement,
            pin,
        }
    }

    /// Writes documents of an earlier request's `documents` array, recorded in `pin`, into a message again, since the
    /// client does not send them any more, and records them. `entry` is the position in the message, `scope` the hash
    /// of the prompt before it, and `turn` the message's turn of the chat.
    fn pin(&mut self, pin: &'a Pin, is_hinted: bool, (entry, scope): (Entry, Scope), turn: u32) {
        self.arranged.edits.push(Edit::insert(entry.at, &*pin.text));
        let path = pin.documents.iter();
        let path = path.map(|document| (document.fingerprint, document.tokens));
        let path: SmallVec<[_; 16]> = path.collect();
        self.walk(
            entry.at,
            scope,
            pin.references,
            [path.clone(), path],
            None,
            false,
        );
        for document in &pin.documents {
            self.shown.add(
                turn,
                document.fingerprint,
                pin.label(document),
                Some(pin.block(document)),
            );
        }
        self.arranged.report.pinned += count(pin.documents.len());
        self.arranged.report.hinted |= is_hinted;
        self.then(pin.digest);
    }

    /// Arranges the documents of a group (those ordered together), followed by `words`, the text that moves from the
    /// system text. Repeats the recorded arrangement `known` (order, and hints that refer to earlier copies) if it is
    /// valid. Returns the arrangement and the distinct documents; also the text inserted into the message if the
    /// gateway writes the documents there, otherwise `None`.
    fn group(
        &mut self,
        group: &Group<'a>,
        known: Option<&Arrangement>,
        turn: u32,
        words: Option<&str>,
    ) -> (Arrangement, DistinctDocuments, Option<Rendering>) {
        let listed = DistinctDocuments::of(group);
        if group.is_output() {
            let arrangement = self.output(group, &listed, known, turn);
            return (arrangement, listed, None);
        }
        let known = known.filter(|known| self.is_possible(known, group, &listed, turn));
        let Decision {
            arrangement,
            order,
            hint,
        } = match known {
            Some(known) => self.again(known, group, &listed, turn),
            None => self.decide(group, &listed, turn),
        };

        let end = self.end_of_path(group, &listed);
        let sent = arrangement.slots.iter();
        let sent = sent.filter(|slot| !slot.is_reference() && slot.index() < end);
        let mut sent: SmallVec<[u16; 16]> = sent.map(|slot| slot.index()).collect();
        let documents = |sent: &[u16]| {
            let found = sent.iter().filter_map(|index| {
                let found = group.found.get(usize::from(*index))?;
                Some((listed.fingerprint_at(*index), found.tokens))
            });
            found.collect::<SmallVec<[_; 16]>>()
        };
        let path = documents(&sent);
        sort_by_key(&mut sent, |index| *index);
        let client = documents(&sent);
        self.walk(
            group.place.start(),
            group.scope,
            arrangement.references(&listed),
            [path, client],
            order,
            !self.config.unranked.contains(&group.format),
        );
        self.then(arrangement.digest(&listed));
        if self.last_turn > 0 {
            let has_blocks = !keeps_repeats(group);
            for (slot, place) in arrangement.slots.iter().zip(1..) {
                let at = (listed.distinct).binary_search_by_key(&slot.index(), |(index, _)| *index);
                let distinct = at.ok().and_then(|at| listed.distinct.get(at));
                let found = group.found.get(usize::from(slot.index()));
                let Some((found, (_, fingerprint))) = found.zip(distinct) else {
                    continue;
                };
                // Where a location hint stands, there is nothing to refer to.
                let is_whole = !slot.is_reference();
                let block = found.block_in_message();
                let block = block.filter(|_| has_blocks && is_whole);
                self.shown.add(turn, *fingerprint, found.label, block);
                let numbered = found.numbered_block();
                if let Some(block) = numbered.filter(|_| has_blocks && self.config.keeps_contexts())
                {
                    let at = (turn, self.question, place);
                    self.shown.add_numbered(at, block, is_whole);
                }
            }
        }

        let moved = arrangement.moved(&listed);
        let references = arrangement.slots.iter().filter(|slot| slot.is_reference());
        let references = references.count();
        let dropped = if keeps_repeats(group) || self.keeps_places(group) {
            0
        } else {
            listed.repeats.len()
        };
        let stays = moved + references + dropped == 0 && !group.is_rendered() && words.is_none();
        let report = &mut self.arranged.report;
        report.documents += count(group.found.len());
        report.moved += count(moved);
        report.deduplicated += count(references);
        report.dropped += count(dropped);
        report.hinted |= arrangement.hinted;
        report.numbered |= hint.as_ref().is_some_and(|hint| hint.numbered);
        let rendering = if stays {
            None
        } else {
            let sent = self.sent_of(group, &arrangement, &listed, turn);
            let hint = hint.map(|hint| hint.words);
            let hint = match words {
                Some(words) => Some(self.behind(group, hint, words)),
                None => hint,
            };
            let (edits, rendering) = render::edits(&group.place, group.hint, sent, hint);
            self.arranged.edits.extend(edits);
            rendering
        };
        (arrangement, listed, rendering)
    }

    /// Arranges a tool's whole result: location hints (references to earlier copies) replace lines that results of
    /// earlier turns have. A result stays in full if an earlier request forwarded it in full: (1) its record `known`
    /// says so, or (2) its message was forwarded before and the result has no record.
    fn output(
        &mut self,
        group: &Group<'a>,
        listed: &DistinctDocuments,
        known: Option<&Arrangement>,
        turn: u32,
    ) -> Arrangement {
        let mut arrangement = Arrangement {
            slots: Box::new([Slot::document(0)]),
            hinted: false,
        };
        let text = group
            .found
            .first()
            .and_then(FoundDocument::block_in_message);
        let text = text.filter(|_| self.last_turn > 0 && self.mode != OrderingMode::ClientOrder);
        let (Some(text), Some(template)) = (text, self.deduplicate) else {
            return arrangement;
        };
        let is_whole = known.map_or(!self.is_new, |known| known.slots == arrangement.slots);
        let refer = |first: &str, last: Option<&str>| match is_whole {
            true => None,
            false => template.lines(first, last),
        };
        if let Some(shorter) = self.outputs.add(turn, text, refer) {
            let start = group.place.start();
            let range = start..start + text.len();
            self.arranged.edits.push(Edit::replace(range, shorter));
            self.arranged.report.documents += 1;
            self.arranged.report.deduplicated += 1;
            arrangement.slots = Box::new([Slot::reference(0)]);
            self.then(arrangement.digest(listed));
        }
        arrangement
    }

    /// Returns the order hint (a sentence with the retriever's ranking) and `words`, the text that moves from the
    /// system text, in the form in which they are written after the documents of a group. The text gets an element of
    /// its own, so that it belongs neither to a document nor to the question that follows.
    fn behind(&self, group: &Group<'_>, hint: Option<String>, words: &str) -> String {
        let mut all = hint.map_or_else(String::new, |hint| hint + r"\n");
        for piece in [MOVED_OPEN, words, MOVED_CLOSE] {
            all.push_str(piece);
        }
        let next = (group.hint.as_ref())
            .filter(|_| !group.is_rendered())
            .and_then(|place| self.text.get(place.at..));
        let is_apart = |next: &str| {
            next.starts_with(r"\n") || next.starts_with(['"', ',', ']']) || next.starts_with(r"\r")
        };
        if next.is_some_and(|next| !is_apart(next)) {
            all.push_str(r"\n");
        }
        all
    }

    /// Returns what is sent in the places of the documents of a group (those ordered together), in order: a document or
    /// a location hint (a reference to an earlier copy) each.
    fn sent_of<'g>(
        &mut self,
        group: &'g Group<'a>,
        arrangement: &Arrangement,
        listed: &DistinctDocuments,
        turn: u32,
    ) -> Vec<Sent<'g, 'a>> {
        let found = |index: u16| group.found.get(usize::from(index));
        let slots = arrangement.slots.iter().filter_map(|slot| {
            let found = found(slot.index())?;
            let fingerprint = listed.fingerprint_at(slot.index());
            let words = slot.is_reference().then(|| {
                let is_named = self.shown.names(found.label, fingerprint);
                let by_number = || self.reference_by_number(found, turn);
                match found.is_numbered() && !(is_named && self.shown.may_hold(turn, fingerprint)) {
                    true => by_number(),
                    false => self.deduplicate?.render(found.label),
                }
            });
            let words = words.flatten();
            Some(words.map_or(Sent::Document(found), Sent::Reference))
        });
        let repeats = listed.repeats.iter().filter(|_| keeps_repeats(group));
        slots
            .chain(repeats.filter_map(|index| found(*index).map(Sent::Document)))
            .collect()
    }

    /// Adds a run of adjacent documents to `runs`, `clients` and the report of this request. `at` is the offset in the
    /// body at which the run begins, `scope` the hash of the prompt before it, and `references` a hash of the location
    /// hints (references to earlier copies) among its documents. The two lists have the documents in the order sent and
    /// in the client's order. `order` is the policy's order; `None` if no policy ordered the run for this request.
    fn walk(
        &mut self,
        at: usize,
        scope: Scope,
        references: u64,
        [documents, client]: [SmallVec<[(Fingerprint, u32); 16]>; 2],
        order: Option<Order>,
        is_ranked: bool,
    ) {
        if documents.is_empty() {
            return;
        }
        let scope = narrowed(narrowed(scope, self.sent), references);
        let tree = &mut *self.tree;
        let path: SmallVec<[Candidate<'_>; 16]> = (documents.iter())
            .map(|&(fingerprint, tokens)| Candidate {
                id: tree.intern(fingerprint),
                fingerprint,
                label: "",
                tokens,
            })
            .collect();
        let placed: Order = (0..).take(path.len()).collect();
        let matched = match_of(&path, &placed, Start::behind(tree, scope));
        self.arranged.report.matched += matched.documents;
        self.arranged.report.matched_tokens += matched.tokens;
        self.arranged.report.document_tokens += (path.iter())
            .map(|document| u64::from(document.tokens))
            .sum::<u64>();
        self.arranged.clients.push((scope, client));
        self.arranged.runs.push(SentRun {
            scope,
            before: estimate_tokens(at),
            matched: u32::try_from(matched.tokens).unwrap_or(u32::MAX),
            documents: documents.into_vec(),
            order: order.map(Order::into_vec),
            is_ranked,
        });
    }

    /// Returns whether the documents of the group (documents that are ordered together) are forwarded unchanged, in the
    /// client's order and with repetitions.
    fn keeps_places(&self, group: &Group<'_>) -> bool {
        self.mode == OrderingMode::ClientOrder && !group.is_rendered()
    }

    /// Returns the index in the group (documents that are ordered together) of the first document that repeats an
    /// earlier one and is sent anyway; `u16::MAX` if there is none. A recorded run may have a document only once, so
    /// this document and those after it are not recorded.
    fn end_of_path(&self, group: &Group<'_>, listed: &DistinctDocuments) -> u16 {
        let repeat = listed.repeats.first().filter(|_| self.keeps_places(group));
        repeat.copied().unwrap_or(u16::MAX)
    }

    /// Combines `digest`, the hash of a change that the gateway made to the client's messages, with `sent`, the hash of
    /// all such changes so far.
    fn then(&mut self, digest: u64) {
        self.sent = narrowed(Scope(digest), self.sent).0;
    }
}

/// The opening tag, escaped as in a JSON string, of text that is moved from the system text to a place after the
/// documents. The closing tag is [`MOVED_CLOSE`].
const MOVED_OPEN: &str = r"<context>\n";
const MOVED_CLOSE: &str = r"\n</context>";

/// Returns `words`, text that moves from the system text, in the form to insert before a message's text: in a content
/// part of its own, or followed by a blank line.
fn before_text(wrap: Wrap, words: &str) -> String {
    let [open, close] = render::wrapping(wrap);
    let end = if wrap == Wrap::None { r"\n\n" } else { close };
    [open, words, end].concat()
}

/// Returns the record by which later requests of the chat repeat the documents of a `documents` array as this request
/// rendered them; `None` if an offset does not fit into 32 bits.
fn pin_of(
    group: &Group<'_>,
    listed: &DistinctDocuments,
    arrangement: &Arrangement,
    rendering: Rendering,
) -> Option<Pin> {
    let documents = arrangement
        .slots
        .iter()
        .filter(|slot| !slot.is_reference())
        .zip(&rendering.documents)
        .map(|(slot, (block, label))| {
            let found = group.found.get(usize::from(slot.index()))?;
            let fingerprint = listed.fingerprint_at(slot.index());
            Pinned::new(fingerprint, found.tokens, block, label)
        });
    let GroupLayout::Render { entry, .. } = group.place else {
        return None;
    };
    Some(Pin {
        wrap: entry.wrap,
        documents: documents.collect::<Option<_>>()?,
        tokens: estimate_tokens(rendering.text.len()),
        text: rendering.text.into(),
        digest: arrangement.digest(listed),
        references: arrangement.references(listed),
    })
}

fn count(documents: usize) -> u32 {
    u32::try_from(documents).unwrap_or(u32::MAX)
}
