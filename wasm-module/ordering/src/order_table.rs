//! A total order of documents as bytes: what a module holds that must decide without a memory.
//!
//! Some hosts give WebAssembly a fresh instance for each request, so no knowledge tree can live there. There an order is a
//! function of the request and of this table, which was learned beforehand from a log:
//!
//! ```text
//!   magic     8 bytes           "FWORDER1"
//!   identity  u32               0: a document is its text, 1: its id
//!   count     u32               documents
//!   settings  u32               bytes of the configuration
//!   reserved  u32               0
//!   keys      count × u64       ascending
//!   ranks     count × u32       the place of each key's document in the total order
//!   settings  JSON              the `ordering` of the plugin configuration
//! ```
//!
//! All numbers are little-endian. Reading a table costs O(1), finding a document O(log count): a request must not pay for
//! the size of the table. So keys are not checked to ascend; in a table whose keys do not, documents are not found.

use crate::document::{Candidate, Fingerprint};
use crate::policy::{Order, Policy};
use crate::sort::sort_by_key;
use smallvec::SmallVec;

/// Bytes that modules reserve for a table: room for some 349,000 documents.
pub const TABLE_ROOM: usize = 4 << 20;

/// By what a document is known again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// By its block: id, title and text as they reach the prompt. Exactly what an engine's cache can share.
    #[default]
    Text,
    /// By its id, whatever its text; a document without an id by its block. A document that is edited keeps its place.
    Id,
}

impl Identity {
    /// Returns the key of a document with this label and fingerprint.
    #[must_use]
    pub fn key(self, label: &str, fingerprint: Fingerprint) -> Fingerprint {
        match self {
            Self::Id if !label.is_empty() => Fingerprint::of(&[label.as_bytes()]),
            Self::Id | Self::Text => fingerprint,
        }
    }
}

/// A total order of documents, and the configuration that it is applied under. It is a [`Policy`]: known documents come
/// first, in the table's order; the others follow by their keys, so that they too stand alike in every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderTable<'a> {
    identity: Identity,
    keys: &'a [u8],
    ranks: &'a [u8],
    settings: &'a [u8],
}

/// The error that bytes are no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTable {
    /// The bytes do not begin as a table does.
    #[error("it does not begin with a table's mark")]
    Mark,
    /// The identity is unknown.
    #[error("its identity is {found}, which must be 0 or 1")]
    Identity {
        /// The number that stands in the place of the identity.
        found: u32,
    },
    /// The table is longer than the bytes.
    #[error(
        "it states {documents} documents and {settings} bytes of configuration, and has {bytes} bytes"
    )]
    Short {
        /// Documents that the table states.
        documents: u32,
        /// Bytes of the configuration that the table states.
        settings: u32,
        /// Bytes that there are.
        bytes: usize,
    },
}

/// The error that an order does not fit into a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a table of {documents} documents takes {bytes} bytes, more than the limit of {TABLE_ROOM}"
)]
pub struct TooLarge {
    /// Documents of the order.
    pub documents: usize,
    /// Bytes that they would take.
    pub bytes: usize,
}

impl<'a> OrderTable<'a> {
    /// Writes the table of `documents`, first to last, which must be distinct: of repeats only one counts.
    ///
    /// # Errors
    /// Returns [`TooLarge`] if it would take more than [`TABLE_ROOM`] bytes.
    pub fn encode(
        identity: Identity,
        documents: &[Fingerprint],
        settings: &[u8],
    ) -> Result<Vec<u8>, TooLarge> {
        let mut keys: Vec<(Fingerprint, u32)> = documents.iter().copied().zip(0..).collect();
        keys.sort_unstable();
        keys.dedup_by_key(|(key, _)| *key);
        let bytes = HEADER_BYTES + keys.len() * (KEY_BYTES + RANK_BYTES) + settings.len();
        let sizes = (u32::try_from(keys.len()), u32::try_from(settings.len()));
        let (Ok(count), Ok(settings_bytes), true) = (sizes.0, sizes.1, bytes <= TABLE_ROOM) else {
            return Err(TooLarge {
                documents: documents.len(),
                bytes,
            });
        };
        let identity: u32 = match identity {
            Identity::Text => 0,
            Identity::Id => 1,
        };
        let mut table = Vec::with_capacity(bytes);
        table.extend(MARK);
        for number in [identity, count, settings_bytes, 0] {
            table.extend(number.to_le_bytes());
        }
        table.extend(keys.iter().flat_map(|(key, _)| key.0.to_le_bytes()));
        table.extend(keys.iter().flat_map(|(_, rank)| rank.to_le_bytes()));
        table.extend(settings);
        Ok(table)
    }

    /// Reads a table at the beginning of `bytes`; what follows it does not count.
    ///
    /// # Errors
    /// Returns [`BadTable`] if there is none.
    pub fn read(bytes: &'a [u8]) -> Result<Self, BadTable> {
        let body = bytes.strip_prefix(&MARK).ok_or(BadTable::Mark)?;
        let (numbers, body) = body.split_at_checked(16).ok_or(BadTable::Mark)?;
        let number = |at: usize| u32_at(numbers, at).unwrap_or_default();
        let [identity, count, settings_bytes] = [0, 1, 2].map(number);
        let identity = match identity {
            0 => Identity::Text,
            1 => Identity::Id,
            found => return Err(BadTable::Identity { found }),
        };
        let short = BadTable::Short {
            documents: count,
            settings: settings_bytes,
            bytes: bytes.len(),
        };
        let size = |each: usize| (count as usize).checked_mul(each).ok_or(short);
        let (keys, body) = (body.split_at_checked(size(KEY_BYTES)?)).ok_or(short)?;
        let (ranks, body) = (body.split_at_checked(size(RANK_BYTES)?)).ok_or(short)?;
        let settings = body.get(..settings_bytes as usize).ok_or(short)?;
        Ok(Self {
            identity,
            keys,
            ranks,
            settings,
        })
    }

    /// Returns the configuration: the JSON of `ordering`, empty for the defaults.
    #[must_use]
    pub fn settings(&self) -> &'a [u8] {
        self.settings
    }

    /// Returns the number of documents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len() / KEY_BYTES
    }

    /// Returns whether the table has no document.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the place of the document with that key; `None`: it is unknown.
    #[must_use]
    pub fn rank(&self, key: Fingerprint) -> Option<u32> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match u64_at(self.keys, middle)?.cmp(&key.0) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return u32_at(self.ranks, middle),
            }
        }
        None
    }

    /// Returns what a document is sorted by: known ones by their rank, then the others by a mix of their key, for ids that
    /// count up must not put old documents before new ones.
    #[must_use]
    pub fn place(&self, label: &str, fingerprint: Fingerprint) -> Place {
        let key = self.identity.key(label, fingerprint);
        match self.rank(key) {
            Some(rank) => Place(false, rank.into()),
            None => Place(true, key.0.wrapping_mul(MIX)),
        }
    }
}

/// What a document is sorted by; see [`OrderTable::place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(bool, u64);

impl Policy for OrderTable<'_> {
    fn order(&mut self, candidates: &[Candidate<'_>], _: crate::policy::Start<'_>) -> Order {
        let mut places: SmallVec<[(Place, u16); 16]> = (candidates.iter().zip(0..))
            .map(|(found, rank)| (self.place(found.label, found.fingerprint), rank))
            .collect();
        sort_by_key(&mut places, |place| *place);
        places.into_iter().map(|(_, rank)| rank).collect()
    }
}

const MARK: [u8; 8] = *b"FWORDER1";
const HEADER_BYTES: usize = MARK.len() + 16;
const KEY_BYTES: usize = 8;
const RANK_BYTES: usize = 4;

/// 2^64 divided by the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

fn u32_at(numbers: &[u8], at: usize) -> Option<u32> {
    let from = at.checked_mul(4)?;
    let bytes = numbers.get(from..from.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(numbers: &[u8], at: usize) -> Option<u64> {
    let from = at.checked_mul(8)?;
    let bytes = numbers.get(from..from.checked_add(8)?)?;
    bytes.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::ordered;
    use proptest::prelude::*;

    fn encoded(documents: &[u64], settings: &[u8]) -> Vec<u8> {
        let documents: Vec<_> = documents.iter().copied().map(Fingerprint).collect();
        OrderTable::encode(Identity::Text, &documents, settings).unwrap()
    }

    #[test]
    fn known_documents_stand_in_the_tables_order_and_the_others_behind_in_one_of_their_own() {
        let bytes = encoded(&[7, 2, 5], b"{}");
        let mut table = OrderTable::read(&bytes).unwrap();
        assert_eq!(ordered(&mut table, &[], &[2, 5, 7]), [7, 2, 5]);
        let one = ordered(&mut table, &[&[2, 5]], &[9, 5, 1, 7, 3]);
        let other = ordered(&mut table, &[], &[3, 1, 7, 9, 5]);
        assert_eq!(one, other);
        assert_eq!(one[..2], [7, 5]);
        assert_eq!((table.len(), table.settings()), (3, &b"{}"[..]));
    }

    #[test]
    fn an_id_is_known_again_under_another_text_and_a_nameless_document_by_its_text() {
        let by_id = |label: &str, text: u64| Identity::Id.key(label, Fingerprint(text));
        assert_eq!(by_id("a", 1), by_id("a", 2));
        assert_ne!(by_id("a", 1), by_id("b", 1));
        assert_eq!(by_id("", 1), Fingerprint(1));
        assert_eq!(Identity::Text.key("a", Fingerprint(1)), Fingerprint(1));
    }

    #[test]
    fn what_is_no_table_is_refused_and_what_follows_one_is_passed_over() {
        let bytes = encoded(&[7, 2, 5], b"{}");
        let followed = [&bytes[..], &[0; 100]].concat();
        assert_eq!(OrderTable::read(&followed), OrderTable::read(&bytes));
        assert_eq!(OrderTable::read(&[0; 64]), Err(BadTable::Mark));
        assert_eq!(OrderTable::read(b"FWORDER1"), Err(BadTable::Mark));
        for length in 0..bytes.len() {
            assert!(OrderTable::read(&bytes[..length]).is_err(), "{length}");
        }
        let mut unknown = bytes.clone();
        unknown[8] = 9;
        assert_eq!(
            OrderTable::read(&unknown),
            Err(BadTable::Identity { found: 9 })
        );
        let mut endless = bytes;
        endless[12..16].fill(0xff);
        let told = OrderTable::read(&endless).unwrap_err().to_string();
        assert!(told.contains("4294967295 documents"), "{told}");
    }

    #[test]
    fn a_table_that_does_not_fit_is_refused_with_its_size_and_the_limit() {
        let documents: Vec<_> = (0..400_000).map(Fingerprint).collect();
        let told = OrderTable::encode(Identity::Text, &documents, b"").unwrap_err();
        assert_eq!(
            told.to_string(),
            "a table of 400000 documents takes 4800024 bytes, more than the limit of 4194304"
        );
    }

    proptest! {
        #[test]
        fn every_document_has_the_rank_that_it_was_given(
            documents in prop::collection::hash_set(any::<u64>(), 0..60),
            others in prop::collection::vec(any::<u64>(), 0..20),
        ) {
            let documents: Vec<u64> = documents.into_iter().collect();
            let bytes = encoded(&documents, b"");
            let table = OrderTable::read(&bytes).unwrap();
            for (&document, rank) in documents.iter().zip(0..) {
                prop_assert_eq!(table.rank(Fingerprint(document)), Some(rank));
            }
            for other in others {
                let known = documents.iter().position(|&it| it == other);
                prop_assert_eq!(table.rank(Fingerprint(other)), known.map(|at| at as u32));
            }
        }

        #[test]
        fn reading_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80), marked: bool) {
            let bytes = if marked { [&MARK[..], &bytes].concat() } else { bytes };
            if let Ok(table) = OrderTable::read(&bytes) {
                let _ = table.rank(Fingerprint(1));
            }
        }
    }
}
