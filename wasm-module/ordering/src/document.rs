//! A document as the core sees it: a fingerprint of its rendered bytes, a short id and a weight, without its text.
//!
//! Two requests share KV state only where their bytes agree. So a document's identity is the fingerprint of its *block*
//! (id, title and text as in the prompt): an edited document is another document, and a document without an id has an
//! identity too.

use crate::hash::KeyedMap;
use crate::slots::Slots;

/// 64-bit fingerprint (XXH3) of a document's block, that is, of the document with its tags. The same on every platform,
/// since workers of different builds and offline replay must agree.
///
/// A collision makes the knowledge tree (documents believed to be cached) expect a match that the engine does not have:
/// reuse is lost, no content is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u64);

impl Fingerprint {
    /// Returns the fingerprint of the concatenated `parts`. The boundaries between parts count: `["ab", "c"]` and
    /// `["a", "bc"]` differ.
    #[must_use]
    pub fn of(parts: &[&[u8]]) -> Self {
        Self(parts.iter().fold(0, |seed, part| {
            xxhash_rust::xxh3::xxh3_64_with_seed(part, seed)
        }))
    }

    /// Returns the hash of a sequence of documents that ends with the one that has this fingerprint; `before` is the
    /// hash of the documents before it. Cheaper than [`Fingerprint::of`], since a fingerprint is a hash already.
    pub(crate) fn behind(self, before: u64) -> u64 {
        (before.rotate_left(23) ^ self.0).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

/// A document's id within one [`Catalog`]: small and dense, so that sequences of documents are cheap to store and
/// compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentId(u32);

/// A document of a request, as input to a policy.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The document's id in the [`Catalog`] of the knowledge tree (documents believed to be cached).
    pub id: DocumentId,
    /// The document's fingerprint, which stays the same when its id is freed.
    pub fingerprint: Fingerprint,
    /// The client's name for the document; empty when it has no id.
    pub label: &'a str,
    /// Estimated tokens of the document's block, its text with tags: what the engine need not compute if the document
    /// is cached.
    pub tokens: u32,
}

/// Returns the estimated tokens of `bytes` bytes of prompt: four bytes a token, the usual rule of thumb for English.
#[must_use]
pub fn estimate_tokens(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(4)).unwrap_or(u32::MAX)
}

/// The documents of one knowledge tree (documents believed to be cached): maps fingerprints to ids and back, and counts
/// the tree nodes that hold each document.
///
/// An id is freed when its last tree node releases it, and may then be given to another document.
#[derive(Debug, Default)]
pub struct Catalog {
    ids: KeyedMap<Fingerprint, DocumentId>,
    entries: Slots<Entry>,
}

#[derive(Debug)]
struct Entry {
    fingerprint: Fingerprint,
    holders: u32,
    last_used: u64,
}

impl Catalog {
    /// Returns the id of the document with this fingerprint; for an unknown document, assigns a new id that no tree
    /// node holds yet.
    pub fn intern(&mut self, fingerprint: Fingerprint) -> DocumentId {
        if let Some(&id) = self.ids.get(&fingerprint) {
            return id;
        }
        let id = DocumentId(self.entries.put(Entry {
            fingerprint,
            holders: 0,
            last_used: 0,
        }));
        self.ids.insert(fingerprint, id);
        id
    }

    /// Returns the id of the document with this fingerprint; `None` if the catalog does not have the document.
    #[must_use]
    pub fn find(&self, fingerprint: Fingerprint) -> Option<DocumentId> {
        self.ids.get(&fingerprint).copied()
    }

    /// Returns the number of the insertion into the tree that last used the document, counted from 1; 0 if there was
    /// none.
    #[must_use]
    pub fn last_used(&self, id: DocumentId) -> u64 {
        self.entries.get(id.0).map_or(0, |entry| entry.last_used)
    }

    /// Returns the number of documents in the catalog.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns whether there is no document in the catalog.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the fingerprint of the document with this id; `None` if no document has it.
    #[must_use]
    pub fn fingerprint(&self, id: DocumentId) -> Option<Fingerprint> {
        self.entries.get(id.0).map(|entry| entry.fingerprint)
    }

    /// Returns the number of tree nodes that hold the document with this id; 0 for an unknown id.
    #[cfg(test)]
    pub(crate) fn holders(&self, id: DocumentId) -> u32 {
        self.entries.get(id.0).map_or(0, |entry| entry.holders)
    }

    pub(crate) fn hold(&mut self, id: DocumentId) {
        if let Some(entry) = self.entry_mut(id) {
            entry.holders = entry.holders.saturating_add(1);
        }
    }

    pub(crate) fn touch(&mut self, id: DocumentId, now: u64) {
        if let Some(entry) = self.entry_mut(id) {
            entry.last_used = now;
        }
    }

    pub(crate) fn release(&mut self, id: DocumentId) {
        let Some(entry) = self.entry_mut(id) else {
            return;
        };
        entry.holders = entry.holders.saturating_sub(1);
        self.forget_unheld(id);
    }

    /// Frees the id of a document that was interned, unless a tree node holds the document; no effect on an unknown id.
    pub(crate) fn forget_unheld(&mut self, id: DocumentId) {
        let Some(entry) = self.entries.get(id.0) else {
            return;
        };
        if entry.holders == 0 && self.ids.get(&entry.fingerprint) == Some(&id) {
            self.ids.remove(&entry.fingerprint);
            self.entries.release(id.0);
        }
    }

    fn entry_mut(&mut self, id: DocumentId) -> Option<&mut Entry> {
        self.entries.get_mut(id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_framed_and_fixed() {
        assert_ne!(
            Fingerprint::of(&[b"ab", b"c"]),
            Fingerprint::of(&[b"a", b"bc"])
        );
        assert_ne!(Fingerprint::of(&[b"a"]), Fingerprint::of(&[b"a", b""]));
        // Stored traces and other builds rely on the value.
        assert_eq!(
            Fingerprint::of(&[b"foreword"]),
            Fingerprint(xxhash_rust::xxh3::xxh3_64(b"foreword"))
        );
    }

    #[test]
    fn an_id_is_reused_only_after_its_last_holder_let_go() {
        let mut catalog = Catalog::default();
        let a = catalog.intern(Fingerprint(1));
        catalog.hold(a);
        catalog.hold(a);
        catalog.release(a);
        assert_eq!(catalog.intern(Fingerprint(1)), a);
        assert_ne!(catalog.intern(Fingerprint(2)), a);
        catalog.release(a);
        assert_eq!(catalog.intern(Fingerprint(3)), a);
        assert_eq!(catalog.len(), 2);
    }

    #[test]
    fn estimates_round_up() {
        assert_eq!([0, 1, 4, 5].map(estimate_tokens), [0, 1, 1, 2]);
    }
}
