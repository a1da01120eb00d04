//! The file format of an index: mapped for reading, and written as a whole.
//!
//! ```text
//!   "FOREWORD" │ version │ parts │ checksum of these and of the table
//!   table      │ part, offset, length, checksum          one entry for each part
//!   parts      │ …, each from a multiple of 64 bytes on
//! ```
//!
//! Numbers are little-endian. An XXH3 checksum covers every byte of a part. All checksums are verified when the file is
//! opened, which reads the file once, at the disk's speed, and leaves it in the page cache. The readers of the parts
//! then check their meaning ([`crate::collection`]), so a file made by an attacker is refused, too.
//!
//! A new file is written next to the old one, synced to disk and renamed over it. Opening the name finds one or the
//! other, and processes that have mapped the old file keep it.

#![allow(
    unsafe_code,
    reason = "mapping a file is unsafe because another process may change it meanwhile"
)]

mod array;

pub use array::Array;

use bytemuck::Pod;
use memmap2::Mmap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

#[cfg(not(target_endian = "little"))]
compile_error!("index files are little-endian and are mapped as they stand");

const MAGIC: &[u8; 8] = b"FOREWORD";
/// Version of the format. Since version 2, an inverted file stores its vectors cluster by cluster.
const VERSION: u32 = 2;
const ALIGNMENT: usize = 64;
const HEADER: usize = 24;
const ENTRY: usize = 32;
/// Maximum number of parts that a file may state, more than there are kinds.
const MAX_PARTS: u32 = 64;

/// The kinds of parts in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Part {
    /// JSON that describes how to read the other parts.
    Description = 1,
    /// f32, vectors row by row.
    Vectors = 2,
    /// u64, one bit per slot, set if it is deleted.
    Deleted = 3,
    /// u64, the start of each slot's record, then the end.
    RecordStarts = 4,
    /// JSON, one document per slot.
    Records = 5,
    /// u64, a hash of each slot's document.
    Fingerprints = 6,
    /// f32, the centres of clusters.
    Centres = 7,
    /// u32, the start of each cluster's slots, then the end.
    ListStarts = 8,
    /// u32, slots cluster by cluster.
    ListSlots = 9,
    /// u32, links of the graph's lowest level.
    GroundLinks = 10,
    /// u32, links of the graph's upper levels.
    UpperLinks = 11,
    /// UTF-8, the words in ascending order, one after another.
    Words = 12,
    /// u64, the start of each word, then the end.
    WordStarts = 13,
    /// u64, the start of each word's postings, then the end.
    PostingStarts = 14,
    /// u32 pairs: a slot, and how often the word occurs in it.
    Postings = 15,
    /// u32, the number of words in each slot.
    Lengths = 16,
    /// f32, the vectors again, cluster by cluster.
    ListRows = 17,
}

/// The reason why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system reported an error.
    #[error("{}: {reason}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The file is not an index of Foreword.
    #[error("{}: this is no index of Foreword: {reason}", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// The reason why it is not an index.
        reason: String,
    },
    /// The file is an index, but damaged.
    #[error("{}: the index is damaged: {reason}", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Where the file is damaged.
        reason: String,
    },
}

/// The parts of a file, mapped and verified.
pub struct Parts {
    path: PathBuf,
    map: Arc<Mmap>,
    table: Vec<(u32, Range<usize>)>,
}

impl Parts {
    /// Maps and verifies the file at `path`.
    ///
    /// # Errors
    /// Returns a [`FileError`] when the file cannot be read, is not an index, or is damaged.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let io = |reason| FileError::Io {
            path: path.to_owned(),
            reason,
        };
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is only read, as bytes and numbers, for which every bit pattern is valid. Writers replace the
        // file by its name and never change it in place; a process that truncates it would end this one.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self {
            path: path.to_owned(),
            table: table(path, &map)?,
            map: Arc::new(map),
        })
    }

    /// Returns a part's bytes.
    ///
    /// # Errors
    /// Returns [`FileError::Damaged`] when the part is missing.
    pub fn bytes(&self, part: Part) -> Result<&[u8], FileError> {
        Ok(&self.map[self.range(part)?])
    }

    /// Returns a part's numbers.
    ///
    /// # Errors
    /// Returns [`FileError::Damaged`] when the part is missing or does not consist of whole numbers.
    pub fn numbers<T: Pod>(&self, part: Part) -> Result<Array<T>, FileError> {
        let range = self.range(part)?;
        Array::mapped(Arc::clone(&self.map), range)
            .ok_or_else(|| self.damaged(format!("part {part:?} is not made of whole numbers")))
    }

    /// Returns the error for a part that is inconsistent.
    pub fn damaged(&self, reason: impl Into<String>) -> FileError {
        FileError::Damaged {
            path: self.path.clone(),
            reason: reason.into(),
        }
    }

    fn range(&self, part: Part) -> Result<Range<usize>, FileError> {
        let found = self.table.iter().find(|(kind, _)| *kind == part as u32);
        found
            .map(|(_, range)| range.clone())
            .ok_or_else(|| self.damaged(format!("part {part:?} is missing")))
    }
}

/// Checks the header of the file at `path`, and that all parts are within the file and match their checksums. Returns
/// their kinds and ranges.
fn table(path: &Path, file: &[u8]) -> Result<Vec<(u32, Range<usize>)>, FileError> {
    let foreign = |reason| {
        Err(FileError::Foreign {
            path: path.to_owned(),
            reason,
        })
    };
    let damaged = |reason| {
        Err(FileError::Damaged {
            path: path.to_owned(),
            reason,
        })
    };
    let Some(header) = file.first_chunk::<HEADER>() else {
        let reason = format!("it has {} bytes, the header alone has {HEADER}", file.len());
        return foreign(reason);
    };
    if header[..8] != MAGIC[..] {
        return foreign("it does not begin with \"FOREWORD\"".to_owned());
    }
    let number = |at: usize| u32_at(header, at);
    let (version, parts) = (number(8), number(12));
    if version != VERSION {
        let reason =
            format!("its version is {version}, supported: {VERSION}; remove it and ingest again");
        return foreign(reason);
    }
    if parts > MAX_PARTS {
        return damaged(format!("it has {parts} parts, more than {MAX_PARTS}"));
    }
    let end = HEADER + parts as usize * ENTRY;
    let Some(entries) = file.get(HEADER..end) else {
        return damaged("it ends within its table".to_owned());
    };
    if checksum_of_table(&header[..16], entries) != u64_at(header, 16) {
        return damaged("the table's checksum does not match".to_owned());
    }
    let mut table = Vec::with_capacity(parts as usize);
    for entry in entries.chunks_exact(ENTRY) {
        let (kind, offset, length) = (u32_at(entry, 0), u64_at(entry, 8), u64_at(entry, 16));
        let range = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(length).ok())
            .and_then(|(start, length)| Some(start..start.checked_add(length)?));
        let Some((range, bytes)) = range.and_then(|range| Some((range.clone(), file.get(range)?)))
        else {
            let reason = format!("part {kind} lies beyond the end: the file was cut off");
            return damaged(reason);
        };
        if xxh3_64(bytes) != u64_at(entry, 24) {
            return damaged(format!("the checksum of part {kind} does not match"));
        }
        table.push((kind, range));
    }
    Ok(table)
}

/// Writes a file of these parts next to `path`, syncs it to disk and renames it to `path`, replacing any file there.
///
/// # Errors
/// Returns [`FileError::Io`] when it cannot be written; the previous file at `path` is then still there, unless only
/// the folder could not be synced.
pub fn write(path: &Path, parts: &[(Part, Vec<u8>)]) -> Result<(), FileError> {
    let beside = path.with_file_name(format!(
        "{}.new-{}",
        path.file_name().unwrap_or_default().to_string_lossy(),
        std::process::id()
    ));
    let written = write_beside(&beside, parts).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // Best effort: the error that led here is more important.
        let _ = std::fs::remove_file(&beside);
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let synced = written.and_then(|()| File::open(folder.unwrap_or(Path::new(".")))?.sync_all());
    synced.map_err(|reason| FileError::Io {
        path: path.to_owned(),
        reason,
    })
}

fn write_beside(path: &Path, parts: &[(Part, Vec<u8>)]) -> std::io::Result<()> {
    let mut entries = Vec::with_capacity(parts.len() * ENTRY);
    let mut offset = (HEADER + parts.len() * ENTRY).next_multiple_of(ALIGNMENT);
    for (part, bytes) in parts {
        entries.extend((*part as u32).to_le_bytes());
        entries.extend([0; 4]);
        entries.extend((offset as u64).to_le_bytes());
        entries.extend((bytes.len() as u64).to_le_bytes());
        entries.extend(xxh3_64(bytes).to_le_bytes());
        offset = (offset + bytes.len()).next_multiple_of(ALIGNMENT);
    }
    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend((parts.len() as u32).to_le_bytes());
    let checksum = checksum_of_table(&header, &entries);
    header.extend(checksum.to_le_bytes());

    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&header)?;
    file.write_all(&entries)?;
    let mut at = header.len() + entries.len();
    for (_, bytes) in parts {
        let start = at.next_multiple_of(ALIGNMENT);
        file.write_all(&[0; ALIGNMENT][..start - at])?;
        file.write_all(bytes)?;
        at = start + bytes.len();
    }
    let file = file
        .into_inner()
        .map_err(std::io::IntoInnerError::into_error)?;
    file.sync_all()
}

fn checksum_of_table(header: &[u8], entries: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(header);
    hash.update(entries);
    hash.digest()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let chunk = bytes.get(at..).and_then(<[u8]>::first_chunk);
    chunk.map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let chunk = bytes.get(at..).and_then(<[u8]>::first_chunk);
    chunk.map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let numbers: Vec<u8> = [7_u32, 8, 9].iter().flat_map(|n| n.to_le_bytes()).collect();
        let parts = [
            (Part::Description, b"{}".to_vec()),
            (Part::ListSlots, numbers),
            (Part::Words, Vec::new()),
        ];
        write(&path, &parts).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        (folder, path, bytes)
    }

    #[test]
    fn parts_come_back_as_they_were_and_nothing_is_left_beside_the_file() {
        let (folder, path, _) = written();
        let parts = Parts::open(&path).unwrap();
        assert_eq!(parts.bytes(Part::Description).unwrap(), b"{}");
        assert_eq!(*parts.numbers::<u32>(Part::ListSlots).unwrap(), [7, 8, 9]);
        assert!(parts.bytes(Part::Words).unwrap().is_empty());
        let missing = parts.bytes(Part::Centres).unwrap_err().to_string();
        assert!(
            missing.ends_with("the index is damaged: part Centres is missing"),
            "{missing}"
        );
        let odd = parts.numbers::<u32>(Part::Description).err().unwrap();
        assert!(odd.to_string().contains("whole numbers"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn every_truncation_and_every_changed_byte_is_noticed() {
        let (_folder, path, bytes) = written();
        for length in 0..bytes.len() {
            std::fs::write(&path, &bytes[..length]).unwrap();
            assert!(Parts::open(&path).is_err(), "{length} bytes were accepted");
        }
        // The padding between the parts has no meaning.
        let table = table(&path, &bytes).unwrap();
        let says = |at: &usize| {
            *at < HEADER + table.len() * ENTRY || table.iter().any(|(_, range)| range.contains(at))
        };
        for at in (0..bytes.len()).filter(says) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            std::fs::write(&path, &changed).unwrap();
            assert!(Parts::open(&path).is_err(), "byte {at} was changed");
        }
    }

    #[test]
    fn other_files_are_told_from_damaged_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let told = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Parts::open(&path).err().unwrap().to_string()
        };
        assert!(told(b"").contains("this is no index of Foreword: it has 0 bytes"));
        assert!(told(&[b'x'; 99]).contains("does not begin with"));
        for version in [1, 3_u32] {
            let mut other = MAGIC.to_vec();
            other.extend(version.to_le_bytes());
            other.resize(HEADER, 0);
            let told = told(&other);
            let reason =
                format!("its version is {version}, supported: 2; remove it and ingest again");
            assert!(told.contains(&reason), "{told}");
        }
        let none = Parts::open(&folder.path().join("none")).err().unwrap();
        assert!(matches!(none, FileError::Io { .. }));
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let (folder, path, bytes) = written();
        let nowhere = folder.path().join("missing/index");
        assert!(write(&nowhere, &[]).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}
