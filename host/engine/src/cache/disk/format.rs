//! The binary format of the file of KV pages.
//!
//! ```text
//!   0      header    64   magic, version, slots, page_bytes, identity, sum
//!   4096   records   64 for each slot:  page, its parent, stamp, sum of the page's bytes, sum of the record
//!   …      pages     page_bytes for each slot, each from a multiple of 4096 on
//! ```
//!
//! Numbers are little-endian, and sums are XXH3 checksums. A slot is free unless its record's sum is right, so zeroes
//! are a free slot. A record is written after its page and erased before the slot is used again. The page's own sum
//! detects writes that a power failure reorders or a disk loses.

use crate::cache::PageHash;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: [u8; 8] = *b"FWKVPAGE";
/// Version of the file format, raised whenever the layout described here or the meaning of a page's bytes changes.
const VERSION: u32 = 1;
const BLOCK: u64 = 4096;
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const RECORD_BYTES: usize = 64;
/// Largest value of a valid record's order of writing ([`Record::stamp`]), beyond any real number of writes. Counting
/// continues from the largest one in the file; this limit keeps the counter from overflowing.
const MAX_STAMP: u64 = u64::MAX >> 1;
/// Byte offset of the checksum in a header or record, which is the last field of both.
const SUMMED: usize = 56;

/// Identity, page size and number of slots of a file of pages. A file whose header states another shape is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Hash of everything that a page's bytes depend on besides its tokens, such as the model.
    pub(super) identity: u128,
    /// Number of bytes in one page, at least one.
    pub(super) page_bytes: u64,
    /// Number of slots in the file, each with room for one page; at least one.
    pub(super) slots: u32,
}

/// Describes the page in a slot of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) page: PageHash,
    /// Hash of the page before this one, or the root hash of the tenant.
    pub(super) parent: PageHash,
    /// Order of writing: pages written later have larger values.
    pub(super) stamp: u64,
    pub(super) page_sum: u64,
}

impl Shape {
    /// Returns the shape with as many slots as fit into a file of `capacity` bytes, or `None` if not even one does.
    pub(super) fn fit(identity: u128, page_bytes: usize, capacity: u64) -> Option<Self> {
        let page_bytes = page_bytes as u64;
        let slot = page_bytes.checked_next_multiple_of(BLOCK)? + RECORD_BYTES as u64;
        // One block for the header, and one for the unused rest of the records' last block.
        let slots = capacity.saturating_sub(2 * BLOCK) / slot;
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        (slots > 0 && page_bytes > 0).then_some(Self {
            identity,
            page_bytes,
            slots,
        })
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.page_at(self.slots)
    }

    pub(super) fn record_at(&self, slot: u32) -> u64 {
        BLOCK + u64::from(slot) * RECORD_BYTES as u64
    }

    pub(super) fn page_at(&self, slot: u32) -> u64 {
        let pages = self.record_at(self.slots).next_multiple_of(BLOCK);
        pages + u64::from(slot) * self.page_bytes.next_multiple_of(BLOCK)
    }

    pub(super) fn header(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.slots.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.identity.to_le_bytes());
        let sum = xxh3_64(&bytes[..SUMMED]);
        bytes[SUMMED..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Checks that a file with this header and of `file_bytes` bytes was made for this shape; returns a message if not.
    pub(super) fn check(&self, header: &[u8], file_bytes: u64) -> Result<(), String> {
        if header.len() < HEADER_BYTES {
            return Err(format!("it is truncated to {} bytes", header.len()));
        }
        if header[..8] != MAGIC {
            return Err("it is no file of pages".to_owned());
        }
        let version = number::<4>(header, 8) as u32;
        if version != VERSION {
            return Err(format!("its format is {version}, this program's {VERSION}"));
        }
        if number::<8>(header, SUMMED) as u64 != xxh3_64(&header[..SUMMED]) {
            return Err("its header is damaged".to_owned());
        }
        if number::<16>(header, 24) != self.identity {
            return Err("another model, backend or page size wrote it".to_owned());
        }
        let (slots, page_bytes) = (number::<4>(header, 12), number::<8>(header, 16));
        if (slots, page_bytes) != (self.slots.into(), self.page_bytes.into()) {
            let (wanted_slots, wanted_bytes) = (self.slots, self.page_bytes);
            return Err(format!(
                "it has {slots} slots of {page_bytes} bytes, wanted are {wanted_slots} of {wanted_bytes}"
            ));
        }
        if file_bytes < self.file_bytes() {
            let whole = self.file_bytes();
            return Err(format!("it is truncated to {file_bytes} of {whole} bytes"));
        }
        Ok(())
    }
}

impl Record {
    pub(super) fn encode(&self, slot: u32) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..16].copy_from_slice(&self.page.0.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.parent.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.stamp.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.page_sum.to_le_bytes());
        let sum = xxh3_64_with_seed(&bytes[..SUMMED], slot.into());
        bytes[SUMMED..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes the record that describes the page in slot `slot` of the file. Returns `None` if the slot is free or the
    /// record is damaged.
    pub(super) fn decode(bytes: &[u8], slot: u32) -> Option<Self> {
        let sum = xxh3_64_with_seed(bytes.get(..SUMMED)?, slot.into());
        let is_whole = bytes.len() == RECORD_BYTES && number::<8>(bytes, SUMMED) as u64 == sum;
        let record = is_whole.then(|| Self {
            page: PageHash(number::<16>(bytes, 0)),
            parent: PageHash(number::<16>(bytes, 16)),
            stamp: number::<8>(bytes, 32) as u64,
            page_sum: number::<8>(bytes, 40) as u64,
        });
        record.filter(|record| record.stamp <= MAX_STAMP)
    }
}

/// Returns the checksum of a page's bytes. It is seeded with the page's hash, so that another page's bytes do not
/// match.
pub(super) fn page_sum(page: PageHash, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, page.0 as u64)
}

/// Returns the `N` bytes from offset `at` on as a little-endian number.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u128 {
    let mut wide = [0; 16];
    wide[..N].copy_from_slice(&bytes[at..at + N]);
    u128::from_le_bytes(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        identity: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
        page_bytes: 5000,
        slots: 70,
    };

    #[test]
    fn regions_do_not_overlap_and_the_file_keeps_to_its_capacity() {
        assert_eq!(SHAPE.record_at(0), 4096);
        assert_eq!(SHAPE.page_at(0), 12288);
        assert_eq!(SHAPE.page_at(1), 12288 + 8192);
        for capacity in [16_448, 16_449, 100_000, 1_000_000, 123_456_789] {
            let shape = Shape::fit(1, 5000, capacity).unwrap();
            assert!(shape.record_at(shape.slots) <= shape.page_at(0));
            assert!(shape.file_bytes() <= capacity, "{capacity}");
        }
        assert_eq!(Shape::fit(1, 5000, 16_447), None);
        assert_eq!(Shape::fit(1, 0, 1 << 20), None);
    }

    #[test]
    fn a_header_is_accepted_by_its_own_shape_alone() {
        let header = SHAPE.header();
        let bytes = SHAPE.file_bytes();
        assert_eq!(SHAPE.check(&header, bytes), Ok(()));
        let changed = |at: usize| {
            let mut header = header;
            header[at] ^= 1;
            header
        };
        let other = |shape: Shape| (shape.header(), bytes);
        for ((header, bytes), expected) in [
            ((changed(0), bytes), "no file of pages"),
            ((changed(8), bytes), "its format is 0"),
            ((changed(20), bytes), "its header is damaged"),
            ((changed(50), bytes), "its header is damaged"),
            ((header, bytes - 1), "truncated to"),
            (
                other(Shape {
                    identity: 5,
                    ..SHAPE
                }),
                "another model",
            ),
            (
                other(Shape { slots: 71, ..SHAPE }),
                "it has 71 slots of 5000",
            ),
        ] {
            let error = SHAPE.check(&header, bytes).unwrap_err();
            assert!(error.contains(expected), "{error:?} is not {expected:?}");
        }
        assert!(SHAPE.check(&header[..63], 63).is_err());
    }

    #[test]
    fn a_record_is_read_from_its_own_slot_and_only_whole() {
        let record = Record {
            page: PageHash(u128::MAX - 5),
            parent: PageHash(77),
            stamp: 1 << 40,
            page_sum: u64::MAX,
        };
        let bytes = record.encode(3);
        assert_eq!(Record::decode(&bytes, 3), Some(record));
        assert_eq!(Record::decode(&bytes, 4), None);
        assert_eq!(Record::decode(&[0; RECORD_BYTES], 3), None);
        assert_eq!(Record::decode(&bytes[..63], 3), None);
        let late = Record {
            stamp: u64::MAX,
            ..record
        };
        assert_eq!(Record::decode(&late.encode(3), 3), None);
        for bit in 0..RECORD_BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&bytes, 3), None, "bit {bit}");
        }
    }
}
