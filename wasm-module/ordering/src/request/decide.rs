//! Decides how to forward the documents of one group (documents of a message that are ordered together) if no
//! arrangement of them is recorded: which ones are replaced by location hints (references to an earlier copy), the
//! order of the others, and whether an order hint (a sentence with the retriever's ranking) follows.
//!
//! A document that a location hint replaces (a reference) keeps its rank; the policy orders only the others, in the
//! positions that are left (RAGBoost's layout). So a hint may precede documents. That costs no sharing between chats,
//! since the documents follow a chat's history anyway.

use super::{OrderingMode, Request};
use crate::arrangement::{Arrangement, DistinctDocuments, Slot, keeps_repeats, narrowed};
use crate::body::render::block;
use crate::body::{FoundDocument, Group};
use crate::document::Candidate;
use crate::hint::OrderHint;
use crate::policy::{Order, Start};
use fxhash::FxHashMap;
use smallvec::SmallVec;

/// The decision on one group of documents (documents that are ordered together): their arrangement (order, and hints
/// that refer to earlier copies), the order from which policies learn, and the order hint (a sentence with the
/// retriever's ranking).
pub(super) struct Decision {
    pub(super) arrangement: Arrangement,
    /// The order in which the policy (or the client, if its order is kept) puts the documents that no location hint (a
    /// reference to an earlier copy) replaces, as ranks; policies learn from it. `None` if the recorded arrangement was
    /// used again, or if no document was left to order.
    pub(super) order: Option<Order>,
    /// The order hint, a sentence with the retriever's ranking; `None` if no document moved, or if hints are off or not
    /// possible for these documents.
    pub(super) hint: Option<OrderHint>,
}

impl<'a> Request<'_, 'a> {
    /// Returns the decision to forward a group (documents that are ordered together) as in the recorded arrangement
    /// `known` (order, and hints that refer to earlier copies). If the label of a location hint there now belongs to
    /// another document too, as after an array was written into an earlier message, the document itself is sent instead
    /// of the hint. `listed` are the group's distinct documents, `turn` is the chat's turn.
    pub(super) fn again(
        &self,
        known: &Arrangement,
        group: &Group<'a>,
        listed: &DistinctDocuments,
        turn: u32,
    ) -> Decision {
        let mut arrangement = known.clone();
        let slots = arrangement.slots.iter_mut();
        for slot in slots.filter(|slot| slot.is_reference()) {
            let index = slot.index();
            let fingerprint = listed.fingerprint_at(index);
            let is_named = (group.found.get(usize::from(index))).is_some_and(|found| {
                self.shown.names(found.label, fingerprint)
                    || self.reference_by_number(found, turn).is_some()
            });
            if !is_named {
                *slot = Slot::document(index);
            }
        }
        let hint = (known.hinted).then(|| self.order_hint(group, listed, &arrangement));
        Decision {
            arrangement,
            order: None,
            hint: hint.flatten(),
        }
    }

    /// Returns whether a recorded arrangement (order and location hints) has exactly the client's documents, and its
    /// location hints (references to earlier copies) refer only to documents in turns before `turn`. False only if
    /// hashes collided; a collision must not lose a document.
    pub(super) fn is_possible(
        &self,
        known: &Arrangement,
        group: &Group<'a>,
        listed: &DistinctDocuments,
        turn: u32,
    ) -> bool {
        let mut references = known.slots.iter().filter(|slot| slot.is_reference());
        known.is_of(listed)
            && references.all(|slot| {
                let fingerprint = listed.fingerprint_at(slot.index());
                (group.found.get(usize::from(slot.index()))).is_some_and(|found| {
                    self.shown.holds(turn, fingerprint, &block(found))
                        || self.reference_by_number(found, turn).is_some()
                })
            })
    }

    /// Decides how to forward the documents of a group (those ordered together) in the chat's turn `turn`, for which no
    /// arrangement (order, and hints that refer to earlier copies) is recorded. `listed` are the group's distinct
    /// documents.
    pub(super) fn decide(
        &mut self,
        group: &Group<'a>,
        listed: &DistinctDocuments,
        turn: u32,
    ) -> Decision {
        let references = match self.mode {
            OrderingMode::ClientOrder => SmallVec::from_elem(false, listed.distinct.len()),
            OrderingMode::Ordered | OrderingMode::Trial => self.references(group, listed, turn),
        };
        let mut arrangement = Arrangement {
            slots: (listed.distinct.iter().zip(&references))
                .map(|((index, _), is_reference)| {
                    if *is_reference {
                        Slot::reference(*index)
                    } else {
                        Slot::document(*index)
                    }
                })
                .collect(),
            hinted: false,
        };
        let scope = narrowed(
            narrowed(group.scope, self.sent),
            arrangement.references(listed),
        );
        let end = self.end_of_path(group, listed);
        let tree = &mut *self.tree;
        let candidates: SmallVec<[Candidate<'_>; 16]> = (listed.distinct.iter().zip(&references))
            .filter(|((index, _), is_reference)| !**is_reference && *index < end)
            .filter_map(|((index, fingerprint), _)| {
                let found = group.found.get(usize::from(*index))?;
                Some(Candidate {
                    id: tree.intern(*fingerprint),
                    fingerprint: *fingerprint,
                    label: found.label,
                    tokens: found.tokens,
                })
            })
            .collect();
        if candidates.is_empty() || self.mode == OrderingMode::ClientOrder {
            let ranks = (0..).take(candidates.len());
            return Decision {
                arrangement,
                order: (!candidates.is_empty()).then(|| ranks.collect()),
                hint: None,
            };
        }
        let start = Start::behind(tree, scope);
        let start = match self.config.unranked.contains(&group.format) {
            true => start.unranked(),
            false => start,
        };
        let order = self.policy.order(&candidates, start);
        // References stay at their ranks; the documents between them are reordered.
        let documents: SmallVec<[Slot; 16]> = arrangement
            .slots
            .iter()
            .copied()
            .filter(|slot| !slot.is_reference())
            .collect();
        let mut ordered =
            (order.iter()).filter_map(|&rank| documents.get(usize::from(rank)).copied());
        for slot in &mut arrangement.slots {
            if !slot.is_reference()
                && let Some(document) = ordered.next()
            {
                *slot = document;
            }
        }
        let is_moved = arrangement.moved(listed) > 0;
        let hint = is_moved.then(|| self.order_hint(group, listed, &arrangement));
        let hint = hint.flatten();
        arrangement.hinted = hint.is_some();
        Decision {
            arrangement,
            order: Some(order),
            hint,
        }
    }

    /// Returns, for each of the distinct documents of a group (documents that are ordered together) in the client's
    /// order, whether a location hint (a reference to an earlier copy) is sent in its place.
    fn references(
        &self,
        group: &Group<'a>,
        listed: &DistinctDocuments,
        turn: u32,
    ) -> SmallVec<[bool; 16]> {
        let mut references = SmallVec::from_elem(false, listed.distinct.len());
        let Some(template) = self.deduplicate else {
            return references;
        };
        if turn == 0 || keeps_repeats(group) {
            return references;
        }
        // Number of this group's documents with each label, counted only if an earlier turn has one of them.
        let mut names: Option<FxHashMap<&str, u32>> = None;
        for (is_reference, &(index, fingerprint)) in references.iter_mut().zip(&listed.distinct) {
            let Some(found) = group.found.get(usize::from(index)) else {
                continue;
            };
            *is_reference = self.reference_by_number(found, turn).is_some();
            if !self.shown.may_hold(turn, fingerprint)
                || !self.shown.names(found.label, fingerprint)
            {
                continue;
            }
            let Some(words) = template.render(found.label) else {
                continue;
            };
            let names = names.get_or_insert_with(|| {
                let mut names = FxHashMap::default();
                for (index, _) in &listed.distinct {
                    if let Some(found) = group.found.get(usize::from(*index)) {
                        *names.entry(found.label).or_default() += 1;
                    }
                }
                names
            });
            let block = block(found);
            *is_reference |= names.get(found.label) == Some(&1)
                && words.len() < block.len()
                && self.shown.holds(turn, fingerprint, &block);
        }
        if self.config.repeats_favoured && !self.config.unranked.contains(&group.format) {
            let favoured = self.config.policy_options.placement.documents;
            references
                .iter_mut()
                .take(favoured.into())
                .for_each(|is_reference| *is_reference = false);
        }
        references
    }

    /// Returns the text to send in place of a document which its client numbers, if an earlier turn than `turn` has the
    /// same text under any number: the document's current number, and a location hint (a reference to an earlier copy).
    /// If the document consists of passages joined by the client, only the passages that an earlier turn has are
    /// replaced. `None` if nothing is replaced, because no earlier turn has the text, or has no safe and unique name
    /// for it.
    pub(super) fn reference_by_number(
        &self,
        found: &FoundDocument<'a>,
        turn: u32,
    ) -> Option<String> {
        let template = self.deduplicate.filter(|_| self.config.keeps_contexts())?;
        let block = found.numbered_block()?;
        let Some((question, name)) = self.shown.place_of(turn, &block) else {
            let refer = |name: &str| template.render(name);
            return self.shown.without_known(turn, &block, refer);
        };
        let words = template.render(&format!("{name} of question {question}"))?;
        block.with_words(&words)
    }

    /// Returns the order hint (a sentence with the retriever's ranking) for a group (documents that are ordered
    /// together) in this arrangement; `None` if hints are off, or if the documents' labels or format do not allow one.
    fn order_hint(
        &self,
        group: &Group<'a>,
        listed: &DistinctDocuments,
        arrangement: &Arrangement,
    ) -> Option<OrderHint> {
        let template = self.config.hint.as_ref().filter(|_| group.hint.is_some())?;
        // Places by index in the group; a reference has none.
        let mut places: SmallVec<[Option<u32>; 16]> = SmallVec::from_elem(None, group.found.len());
        let documents = arrangement.slots.iter().filter(|slot| !slot.is_reference());
        for (slot, place) in documents.zip(1..) {
            if let Some(at) = places.get_mut(usize::from(slot.index())) {
                *at = Some(place);
            }
        }
        let distinct = listed.distinct.iter().filter_map(|(index, _)| {
            let index = usize::from(*index);
            Some((group.found.get(index)?.label, *places.get(index)?))
        });
        let (labels, places): (SmallVec<[&str; 16]>, SmallVec<[Option<u32>; 16]>) =
            distinct.unzip();
        template.render(&labels, &places)
    }
}
