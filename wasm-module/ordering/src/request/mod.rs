//! One request, from what was found in its body to the body that is sent.
//!
//! Messages are taken in the order of the prompt. What is remembered of a message is done again; what is not is decided
//! now ([`decide`]), knowing what stands before it. Nothing is remembered here and the tree stays as it is: the caller
//! gets what to remember, and lets the next request see it.

mod decide;
mod report;

pub use self::report::Report;

use self::decide::Decided;
use crate::arrangement::{Arrangement, Listed, keeps_repeats, narrowed};
use crate::body::{
    Entry, Found, Group, Message, Parsed, Place,
    edit::Edit,
    render::{self, Rendering, Sent},
};
use crate::config::Config;
use crate::conversation::memory::{Added, Memory, Path};
use crate::conversation::shown::Shown;
use crate::conversation::turn::{Pin, Pinned, Turn, Written};
use crate::document::{Candidate, Fingerprint, estimate_tokens};
use crate::policy::{Order, Policy, PolicyKind, match_of};
use crate::told::SentRun;
use crate::tree::{KnowledgeTree, Scope};
use smallvec::SmallVec;

/// In whose order documents are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The policy's.
    Ordered,
    /// The client's: nothing is moved, left out, referred to or hinted at, and nothing of earlier turns is used. Only an
    /// array is still written into its message.
    AsRanked,
    /// The policy's, but only to say what it would be.
    Tried,
}

/// What became of a request.
pub(crate) struct Outcome<'a> {
    /// What is sent instead of parts of the body; empty: nothing.
    pub(crate) edits: Vec<Edit<'a>>,
    pub(crate) report: Report,
    /// The documents sent, as the tree knows them.
    pub(crate) runs: Vec<SentRun>,
    /// The messages behind the known ones; without pinning, only those that documents stand in, and the last one.
    pub(crate) added: Vec<Added>,
}

/// How `parsed`, of which `path` is known, is sent in that manner. The tree learns nothing but the documents' names.
pub(crate) fn send<'a>(
    config: &'a Config,
    parsed: &Parsed<'a>,
    tree: &mut KnowledgeTree,
    policy: &mut dyn Policy,
    memory: &'a Memory,
    path: &Path,
    manner: Manner,
) -> Outcome<'a> {
    let mut request = Request {
        config,
        manner,
        tree,
        policy,
        last_turn: parsed.messages.last().map_or(0, |message| message.turn),
        pinned_tokens: memory.pinned_tokens(path),
        shown: Shown::default(),
        sent: 0,
        edits: Vec::new(),
        report: Report::new(match manner {
            Manner::AsRanked => PolicyKind::Retrieval.name(),
            Manner::Ordered | Manner::Tried => config.policy.name(),
        }),
        runs: Vec::new(),
    };
    if let Some(front) = &parsed.front {
        request.group(front, None, 0);
    }
    let mut added = Vec::new();
    let mut known = path.iter().peekable();
    let last = parsed.messages.len().saturating_sub(1);
    for (message, at) in parsed.messages.iter().zip(0_u32..) {
        let turn = known
            .next_if(|(known, _)| *known == at)
            .and_then(|(_, id)| memory.turn(*id));
        let written = match &parsed.rendered {
            Some((target, group)) if *target == at as usize => Some(group),
            _ => None,
        };
        let made = request.message(message, written, turn);
        let is_new = path.last().is_none_or(|(last, _)| *last < at);
        // With pinning every message counts: what is not recorded cannot be told from what was pinned.
        if is_new && (at as usize == last || config.pins() || made != Turn::default()) {
            added.push(Added {
                message: at,
                chain: message.chain,
                turn: made,
            });
        }
    }
    Outcome {
        edits: request.edits,
        report: request.report,
        runs: request.runs,
        added,
    }
}

struct Request<'r, 'a> {
    config: &'a Config,
    manner: Manner,
    tree: &'r mut KnowledgeTree,
    policy: &'r mut dyn Policy,
    /// The chat's last turn: what stands in it is referred to by nothing.
    last_turn: u32,
    /// Estimated tokens pinned in the known messages.
    pinned_tokens: u64,
    shown: Shown<'a>,
    /// Hash of what was sent so far instead of the client's documents; 0: there were none.
    sent: u64,
    edits: Vec<Edit<'a>>,
    report: Report,
    /// The documents walked so far.
    runs: Vec<SentRun>,
}

impl<'a> Request<'_, 'a> {
    /// Sends a message, with the documents of an array `written` into it, as it was sent before if that is `known`.
    fn message(
        &mut self,
        message: &Message<'a>,
        written: Option<&Group<'a>>,
        known: Option<&'a Turn>,
    ) -> Turn {
        let mut turn = Turn::default();
        let mut again = false;
        if let Some(group) = written {
            let known = known.and_then(|turn| turn.written.as_ref());
            again |= known.is_some();
            turn.written = Some(self.write(group, known, message.turn));
        } else if let Some(written) = known.and_then(|turn| turn.written.as_ref())
            && let (Some(pin), Some(place)) = (&written.pin, message.entry)
            && place.0.wrap == pin.wrap
        {
            again = true;
            self.pin(pin, written.arrangement.hinted, place, message.turn);
        }
        let groups = message.groups.iter().enumerate().map(|(at, group)| {
            let known = known.and_then(|turn| turn.groups.get(at));
            again |= known.is_some();
            self.group(group, known, message.turn).0
        });
        turn.groups = groups.collect();
        self.report.replayed += u32::from(again);
        turn
    }

    /// Sends the documents of an array.
    fn write(&mut self, group: &Group<'a>, known: Option<&Written>, turn: u32) -> Written {
        let known = known.map(|known| &known.arrangement);
        let (arrangement, listed, rendering) = self.group(group, known, turn);
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

    /// Sends documents that were written into an earlier message again.
    fn pin(&mut self, pin: &'a Pin, is_hinted: bool, (entry, scope): (Entry, Scope), turn: u32) {
        self.edits.push(Edit::insert(entry.at, &*pin.text));
        let path = pin.documents.iter();
        let path = path.map(|document| (document.fingerprint, document.tokens));
        self.walk(entry.at, scope, pin.references, path.collect(), None);
        for document in &pin.documents {
            self.shown.add(
                turn,
                document.fingerprint,
                pin.label(document),
                Some(pin.block(document)),
            );
        }
        self.report.pinned += count(pin.documents.len());
        self.report.hinted |= is_hinted;
        self.then(pin.digest);
    }

    /// Sends the documents of a group, arranged as `known` if that fits.
    fn group(
        &mut self,
        group: &Group<'a>,
        known: Option<&Arrangement>,
        turn: u32,
    ) -> (Arrangement, Listed, Option<Rendering>) {
        let listed = Listed::of(group);
        let known = known.filter(|known| self.is_possible(known, group, &listed, turn));
        let Decided {
            arrangement,
            order,
            hint,
        } = match known {
            Some(known) => self.again(known, group, &listed),
            None => self.arrange(group, &listed, turn),
        };

        let end = self.end_of_path(group, &listed);
        let path = arrangement
            .slots
            .iter()
            .filter(|slot| !slot.is_reference() && slot.index() < end)
            .filter_map(|slot| {
                let found = group.found.get(usize::from(slot.index()))?;
                Some((listed.fingerprint_at(slot.index()), found.tokens))
            });
        self.walk(
            group.place.start(),
            group.scope,
            arrangement.references(&listed),
            path.collect(),
            order,
        );
        self.then(arrangement.digest(&listed));
        if self.last_turn > 0 {
            for &(index, fingerprint) in &listed.distinct {
                if let Some(found) = group.found.get(usize::from(index)) {
                    let block = found.block_in_message().filter(|_| !keeps_repeats(group));
                    self.shown.add(turn, fingerprint, found.label, block);
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
        let stays = moved + references + dropped == 0 && !group.is_rendered();
        let report = &mut self.report;
        report.documents += count(group.found.len());
        report.moved += count(moved);
        report.deduplicated += count(references);
        report.dropped += count(dropped);
        report.hinted |= arrangement.hinted;
        report.numbered |= hint.as_ref().is_some_and(|hint| hint.numbered);
        let rendering = if stays {
            None
        } else {
            let sent = self.sent_of(group, &arrangement, &listed);
            let hint = hint.map(|hint| hint.words);
            let (edits, rendering) = render::edits(&group.place, group.hint, sent, hint);
            self.edits.extend(edits);
            rendering
        };
        (arrangement, listed, rendering)
    }

    /// What is sent in the group's places.
    fn sent_of<'g>(
        &mut self,
        group: &'g Group<'a>,
        arrangement: &Arrangement,
        listed: &Listed,
    ) -> Vec<Sent<'g, 'a>> {
        let found = |index: u16| group.found.get(usize::from(index));
        let words = |found: &Found<'_>| self.config.deduplicate.as_ref()?.render(found.label);
        let slots = arrangement.slots.iter().filter_map(|slot| {
            let found = found(slot.index())?;
            let words = slot.is_reference().then(|| words(found)).flatten();
            Some(words.map_or(Sent::Document(found), Sent::Reference))
        });
        let repeats = listed.repeats.iter().filter(|_| keeps_repeats(group));
        slots
            .chain(repeats.filter_map(|index| found(*index).map(Sent::Document)))
            .collect()
    }

    /// These documents stand in the prompt from that byte of the body on, in this order; `references` stand among them. `order` is the policy's, if
    /// it was asked.
    fn walk(
        &mut self,
        at: usize,
        scope: Scope,
        references: u64,
        documents: SmallVec<[(Fingerprint, u32); 16]>,
        order: Option<Order>,
    ) {
        if documents.is_empty() {
            return;
        }
        let scope = narrowed(narrowed(scope, self.sent), references);
        let tree = &mut *self.tree;
        let path: SmallVec<[Candidate<'_>; 16]> = documents
            .iter()
            .map(|&(fingerprint, tokens)| Candidate {
                id: tree.intern(fingerprint),
                fingerprint,
                label: "",
                tokens,
            })
            .collect();
        let placed: Order = (0..).take(path.len()).collect();
        let matched = match_of(&path, &placed, tree, scope);
        self.report.matched += matched.documents;
        self.report.matched_tokens += matched.tokens;
        self.report.document_tokens += path
            .iter()
            .map(|document| u64::from(document.tokens))
            .sum::<u64>();
        self.runs.push(SentRun {
            scope,
            before: estimate_tokens(at),
            matched: u32::try_from(matched.tokens).unwrap_or(u32::MAX),
            documents: documents.into_vec(),
            order: order.map(Order::into_vec),
        });
    }

    /// Whether the group goes on byte for byte, repeats included.
    fn keeps_places(&self, group: &Group<'_>) -> bool {
        self.manner == Manner::AsRanked && !group.is_rendered()
    }

    /// The index of the first document that the tree cannot place: behind a repeat that is sent, everything stands
    /// elsewhere than the path would have it.
    fn end_of_path(&self, group: &Group<'_>, listed: &Listed) -> u16 {
        let repeat = listed.repeats.first().filter(|_| self.keeps_places(group));
        repeat.copied().unwrap_or(u16::MAX)
    }

    /// What `digest` stands for was sent.
    fn then(&mut self, digest: u64) {
        self.sent = narrowed(Scope(digest), self.sent).0;
    }
}

/// What was rendered, to be kept; `None` if it is too large for that.
fn pin_of(
    group: &Group<'_>,
    listed: &Listed,
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
    let Place::Render { entry, .. } = group.place else {
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
