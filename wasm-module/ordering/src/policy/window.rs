//! The documents of the most recent requests of a tenant and model, indexed by document.
//!
//! ```text
//!   slots    0: {a b c}   1: {b d}   2: {a b}        a ring buffer: the next request replaces the oldest one
//!   postings a: 0 2       b: 0 1 2   c: 0   d: 1     oldest first
//! ```
//!
//! A query names some documents, and only requests that share one of them are visited: it takes time in proportion to
//! the number of occurrences of its documents in the window. The window has no access to knowledge trees, hashes of
//! prompts, or orders.

use crate::document::Fingerprint;
use crate::hash::KeyedMap;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// The maximum number of documents stored for one request, from its first document on: the number of bits of
/// [`Shared::mask`].
pub(super) const MAX_DOCUMENTS: usize = 64;

/// The documents of the most recent requests, with an index from each document to the requests that have it.
#[derive(Debug)]
pub(super) struct Window {
    slots: Vec<SmallVec<[Fingerprint; 8]>>,
    postings: KeyedMap<Fingerprint, VecDeque<u16>>,
    /// The index in `slots`, a ring buffer, at which the next request will be stored.
    next: u16,
    size: u16,
    /// For each stored request, by its index in `slots`: the documents that it was found to share with the arguments of
    /// the running call of [`Window::sharing`]. Between calls, all are zero.
    marks: Vec<Mark>,
    /// The indices in `slots` of the requests whose entry in `marks` is not zero.
    marked: Vec<u16>,
}

/// The documents that a stored request shares with the arguments `required` and `optional` of [`Window::sharing`].
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// Number of the documents in `required` that the request has.
    required: u16,
    /// Bit `i` is set if the request has the document `optional[i]`.
    shared: u64,
}

/// A stored request that [`Window::sharing`] found, as the documents that it has in common with the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// Bit `i` is set if the request has the document `optional[i]` of [`Window::sharing`]; at least one bit is set.
    pub(super) mask: u64,
    /// Age of the request, counted in requests; the latest one has age 1.
    pub(super) age: u16,
}

impl Window {
    /// Returns an empty window that stores the latest `size` requests, at least 1.
    pub(super) fn new(size: u16) -> Self {
        Self {
            slots: Vec::new(),
            postings: KeyedMap::default(),
            next: 0,
            size: size.max(1),
            marks: Vec::new(),
            marked: Vec::new(),
        }
    }

    /// Adds a request, given its distinct documents, of which the first [`MAX_DOCUMENTS`] are stored. If the window is
    /// full, the oldest request is dropped.
    pub(super) fn push(&mut self, documents: impl Iterator<Item = Fingerprint>) {
        let documents: SmallVec<[Fingerprint; 8]> = documents.take(MAX_DOCUMENTS).collect();
        for &document in &documents {
            self.postings
                .entry(document)
                .or_default()
                .push_back(self.next);
        }
        let slot = usize::from(self.next);
        if let Some(old) = self.slots.get_mut(slot) {
            for document in std::mem::replace(old, documents) {
                // The replaced slot is the oldest in each of its postings.
                if let Some(slots) = self.postings.get_mut(&document) {
                    slots.pop_front();
                    if slots.is_empty() {
                        self.postings.remove(&document);
                    }
                }
            }
        } else {
            self.slots.push(documents);
            self.marks.push(Mark::default());
        }
        self.next = (self.next + 1) % self.size;
    }

    /// Returns the number of documents stored for the request of this age, where the latest request has age 1; 0 if
    /// there is no such request.
    pub(super) fn documents(&self, age: u16) -> usize {
        let slot = (self.next + self.size - age % self.size) % self.size;
        self.slots.get(usize::from(slot)).map_or(0, SmallVec::len)
    }

    /// Returns the number of requests stored in the window at present.
    pub(super) fn len(&self) -> u16 {
        u16::try_from(self.slots.len()).unwrap_or(u16::MAX)
    }

    /// Returns two numbers of stored requests that have `document`: among the `newer` latest requests, and among all
    /// earlier ones.
    pub(super) fn counts(&self, document: Fingerprint, newer: u16) -> [u32; 2] {
        let Some(slots) = self.postings.get(&document) else {
            return [0; 2];
        };
        // Postings are ordered by age, the oldest first.
        let older = slots.partition_point(|&slot| age(slot, self.next, self.size) > newer);
        [slots.len() - older, older].map(|count| u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Returns the stored requests that have all documents of `required` and at least one of `optional` (of its first
    /// [`MAX_DOCUMENTS`]); all these documents must be distinct. The order is arbitrary, but the same on every
    /// platform.
    pub(super) fn sharing(
        &mut self,
        required: &[Fingerprint],
        optional: &[Fingerprint],
    ) -> Vec<Shared> {
        // No stored request has that many documents besides an optional one.
        if required.len() >= MAX_DOCUMENTS {
            return Vec::new();
        }
        for document in required {
            for &slot in self.postings.get(document).into_iter().flatten() {
                if let Some(mark) = self.marks.get_mut(usize::from(slot)) {
                    if mark.required == 0 {
                        self.marked.push(slot);
                    }
                    mark.required += 1;
                }
            }
        }
        for (bit, document) in optional.iter().take(MAX_DOCUMENTS).enumerate() {
            for &slot in self.postings.get(document).into_iter().flatten() {
                if let Some(mark) = self.marks.get_mut(usize::from(slot)) {
                    if mark.required == 0 && mark.shared == 0 {
                        self.marked.push(slot);
                    }
                    mark.shared |= 1 << bit;
                }
            }
        }
        let mut found = Vec::with_capacity(self.marked.len());
        for slot in self.marked.drain(..) {
            if let Some(mark) = self.marks.get_mut(usize::from(slot)) {
                let Mark {
                    required: held,
                    shared: mask,
                } = std::mem::take(mark);
                if mask != 0 && usize::from(held) == required.len() {
                    let age = age(slot, self.next, self.size);
                    found.push(Shared { mask, age });
                }
            }
        }
        found
    }
}

/// Returns the age of the request at index `slot` of a ring buffer of `size` requests; the request stored last, just
/// before index `next`, has age 1.
fn age(slot: u16, next: u16, size: u16) -> u16 {
    if slot < next {
        next - slot
    } else {
        size - slot + next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prints(documents: &[u64]) -> Vec<Fingerprint> {
        documents.iter().copied().map(Fingerprint).collect()
    }

    fn distinct(documents: Vec<u64>) -> Vec<u64> {
        let mut seen = std::collections::HashSet::new();
        documents.into_iter().filter(|d| seen.insert(*d)).collect()
    }

    proptest! {
        #[test]
        fn agrees_with_a_scan_of_the_last_requests(
            size in 1_u16..12,
            requests in prop::collection::vec(prop::collection::vec(0_u64..12, 0..8), 0..40),
            asked in prop::collection::vec(0_u64..12, 0..10),
            required in 0_usize..4,
            newer in 0_usize..12,
        ) {
            let requests: Vec<_> = requests.into_iter().map(distinct).collect();
            let asked = distinct(asked);
            let (required, optional) = asked.split_at(required.min(asked.len()));
            let mut window = Window::new(size);
            for request in &requests {
                window.push(prints(request).into_iter());
            }
            let expected: Vec<Shared> = requests
                .iter()
                .rev()
                .take(usize::from(size))
                .zip(1..)
                .filter(|(request, _)| required.iter().all(|d| request.contains(d)))
                .map(|(request, age)| {
                    let mask = (0..).zip(optional).map(|(bit, d)| u64::from(request.contains(d)) << bit).sum();
                    Shared { mask, age }
                })
                .filter(|shared| shared.mask != 0)
                .collect();
            for _ in 0..2 {
                let mut found = window.sharing(&prints(required), &prints(optional));
                found.sort_by_key(|shared| shared.age);
                prop_assert_eq!(&found, &expected);
            }
            for document in 0..12 {
                let held = |request: &&Vec<u64>| request.contains(&document);
                let last = || requests.iter().rev().take(usize::from(size));
                let halves = [last().take(newer).filter(held).count(), last().skip(newer).filter(held).count()];
                let counts = window.counts(Fingerprint(document), u16::try_from(newer).unwrap());
                prop_assert_eq!(counts.map(|count| count as usize), halves);
            }
            let kept: usize = requests.iter().rev().take(usize::from(size)).map(Vec::len).sum();
            prop_assert_eq!(window.postings.values().map(VecDeque::len).sum::<usize>(), kept);
        }
    }

    #[test]
    fn a_request_is_kept_by_its_first_documents() {
        let mut window = Window::new(2);
        window.push((0..100).map(Fingerprint));
        assert_eq!(window.sharing(&prints(&[0]), &prints(&[63])).len(), 1);
        assert_eq!(window.sharing(&prints(&[0]), &prints(&[64])), []);
        assert_eq!(
            window.sharing(&prints(&(0..64).collect::<Vec<_>>()), &prints(&[1])),
            []
        );
    }
}
