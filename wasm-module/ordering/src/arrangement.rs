//! Arrangements: the order in which one group of documents (of one message) is sent, the location hints (references to
//! a document's earlier copy) that replace some of them, and whether an order hint, which gives the retriever's
//! ranking, follows.
//!
//! Documents are given by their index in the client's list. So an arrangement is small enough to be recorded for every
//! message of every chat, and produces the same bytes whenever the client sends the same list.

use crate::body::{Group, GroupLayout};
use crate::document::Fingerprint;
use crate::sort::sort_by_key;
use crate::tree::Scope;
use fxhash::FxHashMap;
use smallvec::SmallVec;
use std::collections::hash_map::Entry;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The order in which the documents of one [`Group`] are sent, and whether an order hint (a sentence with the
/// retriever's ranking) follows them. Documents are given by their index in the client's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrangement {
    /// One [`Slot`] for each distinct document, in the order in which the documents are sent in the prompt.
    pub(crate) slots: Box<[Slot]>,
    /// True if an order hint, which gives the retriever's ranking, is written after the documents.
    pub(crate) hinted: bool,
}

/// One position of an [`Arrangement`]: the index of its document in the client's list, and whether a location hint (a
/// reference to the document's earlier copy in the chat) replaces the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u16);

/// The distinct documents of a [`Group`], and the indices of the documents that repeat one of them.
#[derive(Debug)]
pub(crate) struct DistinctDocuments {
    /// Each document of the group (documents ordered together) once, in the client's order: its index in the group, and
    /// a fingerprint that no other distinct document of the group has.
    pub(crate) distinct: SmallVec<[(u16, Fingerprint); 16]>,
    /// Indices, in the group (documents ordered together), of documents that equal an earlier one byte for byte.
    pub(crate) repeats: SmallVec<[u16; 4]>,
}

impl Slot {
    /// Returns the slot that sends the document with this index in the client's list in full.
    pub(crate) fn document(index: u16) -> Self {
        Self(index & !Self::REFERENCE)
    }

    /// Returns the slot that sends a location hint (a reference to an earlier copy) in place of the document with this
    /// index in the client's list.
    pub(crate) fn reference(index: u16) -> Self {
        Self(index | Self::REFERENCE)
    }

    pub(crate) fn index(self) -> u16 {
        self.0 & !Self::REFERENCE
    }

    pub(crate) fn is_reference(self) -> bool {
        self.0 & Self::REFERENCE != 0
    }

    /// The bit of a [`Slot`] that is set if a location hint (a reference to an earlier copy) replaces its document.
    /// Indices are below `MAX_CANDIDATES`, which leaves this bit unused.
    const REFERENCE: u16 = 1 << 15;
}

impl DistinctDocuments {
    pub(crate) fn of(group: &Group<'_>) -> Self {
        let mut listed = Self {
            distinct: SmallVec::new(),
            repeats: SmallVec::new(),
        };
        let mut seen: FxHashMap<Fingerprint, u16> = FxHashMap::default();
        seen.reserve(group.found.len());
        for (found, index) in group.found.iter().zip(0..) {
            let mut fingerprint = found.fingerprint;
            loop {
                match seen.entry(fingerprint) {
                    Entry::Vacant(entry) => {
                        entry.insert(index);
                        listed.distinct.push((index, fingerprint));
                        break;
                    }
                    Entry::Occupied(entry)
                        if (group.found.get(usize::from(*entry.get())))
                            .is_some_and(|first| first.source == found.source) =>
                    {
                        listed.repeats.push(index);
                        break;
                    }
                    // The texts differ although the fingerprints are equal: the later document gets the next free
                    // fingerprint.
                    Entry::Occupied(_) => fingerprint.0 = fingerprint.0.wrapping_add(1),
                }
            }
        }
        listed
    }

    /// Returns a hash of the distinct documents and their indices, in the client's order.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut bytes: SmallVec<[u8; 160]> = SmallVec::new();
        for (index, fingerprint) in &self.distinct {
            bytes.extend_from_slice(&fingerprint.0.to_le_bytes());
            bytes.extend_from_slice(&index.to_le_bytes());
        }
        Fingerprint::of(&[&bytes])
    }

    /// Returns the fingerprint of the distinct document with this index in the group (documents ordered together);
    /// fingerprint 0 if there is none.
    pub(crate) fn fingerprint_at(&self, index: u16) -> Fingerprint {
        self.distinct
            .binary_search_by_key(&index, |&(index, _)| index)
            .ok()
            .and_then(|at| self.distinct.get(at))
            .map_or(Fingerprint(0), |(_, fingerprint)| *fingerprint)
    }
}

impl Arrangement {
    /// Returns whether the slots have each distinct document of `listed` exactly once, in full or as a location hint (a
    /// reference to an earlier copy).
    pub(crate) fn is_of(&self, listed: &DistinctDocuments) -> bool {
        let mut indices: SmallVec<[u16; 16]> = self.slots.iter().map(|slot| slot.index()).collect();
        sort_by_key(&mut indices, |index| *index);
        (indices.iter()).eq(listed.distinct.iter().map(|(index, _)| index))
    }

    /// Returns the number of slots whose document is not the one at that position of the client's list without repeated
    /// documents.
    pub(crate) fn moved(&self, listed: &DistinctDocuments) -> usize {
        (self.slots.iter().zip(&listed.distinct))
            .filter(|(slot, (index, _))| slot.index() != *index)
            .count()
    }

    /// Returns a hash, never 0, of the documents in the order of the slots and of which of them location hints
    /// (references to earlier copies) replace. If an order hint (a sentence with the retriever's ranking) follows, the
    /// hash also covers the client's order. `listed` are the documents that the arrangement orders.
    pub(crate) fn digest(&self, listed: &DistinctDocuments) -> u64 {
        let mut bytes: SmallVec<[u8; 320]> = SmallVec::new();
        for slot in &self.slots {
            bytes.extend_from_slice(&listed.fingerprint_at(slot.index()).0.to_le_bytes());
            bytes.push(slot.is_reference().into());
        }
        if self.hinted {
            // The hint gives the client's order, so its text depends on that too.
            bytes.extend_from_slice(&listed.fingerprint().0.to_le_bytes());
        }
        nonzero(xxh3_64_with_seed(&bytes, 1))
    }

    /// Returns a hash of the documents that location hints (references to earlier copies) replace and of their
    /// positions among the slots; 0 if there are none. `listed` are the documents that the arrangement orders.
    pub(crate) fn references(&self, listed: &DistinctDocuments) -> u64 {
        let mut bytes: SmallVec<[u8; 160]> = SmallVec::new();
        for (slot, place) in self.slots.iter().zip(0_u16..) {
            if slot.is_reference() {
                bytes.extend_from_slice(&place.to_le_bytes());
                bytes.extend_from_slice(&listed.fingerprint_at(slot.index()).0.to_le_bytes());
            }
        }
        if bytes.is_empty() {
            0
        } else {
            nonzero(xxh3_64_with_seed(&bytes, 2))
        }
    }

    /// Returns the estimated bytes that this order of documents occupies in memory, the same on every platform.
    pub(crate) fn bytes(&self) -> usize {
        32 + 2 * self.slots.len()
    }
}

/// Returns the scope (hash of the prompt before documents) of documents that follow replaced text: `scope` combined
/// with the [`digest`](Arrangement::digest) of the replacements before them. A digest of 0 leaves it unchanged.
pub(crate) fn narrowed(scope: Scope, digest: u64) -> Scope {
    if digest == 0 {
        scope
    } else {
        Scope(xxh3_64_with_seed(&digest.to_le_bytes(), scope.0))
    }
}

/// Returns whether documents of a group that repeat an earlier one are sent too: true if every range of the body that
/// holds a document of this group must remain filled.
pub(crate) fn keeps_repeats(group: &Group<'_>) -> bool {
    matches!(
        group.place,
        GroupLayout::Slots {
            all_filled: true,
            ..
        }
    )
}

fn nonzero(hash: u64) -> u64 {
    hash.max(1)
}
