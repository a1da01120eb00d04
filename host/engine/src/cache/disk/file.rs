//! The file of KV pages: slots that are read through a memory mapping and written by calls, at their offsets.
//!
//! Reading from a mapping costs no system call and no second copy in memory. Writing through one would turn a full disk
//! into a signal that ends the process, so writes are calls that may fail. The two see the same bytes.

#![allow(
    unsafe_code,
    reason = "mapping a file is unsafe because another process may change it meanwhile; geteuid is a foreign function"
)]

use super::DiskError;
use super::format::{HEADER_BYTES, RECORD_BYTES, Record, Shape, page_sum};
use crate::cache::PageHash;
use memmap2::{Advice, Mmap};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The origin of an opened file of pages: created, restored from an earlier run, or replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No file existed, so an empty one was created.
    Created,
    /// The file existed and holds this many pages.
    Restored(u32),
    /// The existing file was unusable, for this reason, and was replaced by an empty one.
    Discarded(String),
}

/// An open file of KV pages, locked against other processes. It consists of slots with room for one page each.
pub(super) struct PageFile {
    shape: Shape,
    map: Mmap,
    medium: Box<dyn Medium>,
    /// The file `PATH.lock`, which locks out other processes while it is open.
    _lock: File,
}

/// Where bytes are written: the file of pages, or, in tests, a stand-in that fails on purpose.
pub(super) trait Medium: Send {
    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
}

impl Medium for File {
    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

impl PageFile {
    /// Opens or creates the file at `path` and locks it. A file of another `shape` (identity, page size or number of
    /// slots) is replaced by an empty one.
    pub(super) fn open(path: &Path, shape: Shape) -> Result<(Self, Origin), DiskError> {
        let failed = |source| DiskError::Io {
            path: path.to_owned(),
            source,
        };
        let lock = lock(path)?;
        let existing = match private().open(path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(refused_or(path, error)),
        };
        if let Some(file) = &existing {
            check_private(file, path)?;
            // Locks the file in addition to the lock beside `path`: another name (hard link) leads to the same file.
            lock_file(file, path)?;
        }
        let new = || create(path, &shape).map_err(failed);
        let ((file, map), mut origin) = match existing {
            None => (new()?, Origin::Created),
            Some(file) => match examine(&file, &shape) {
                Ok(map) => ((file, map), Origin::Restored(0)),
                // `file` stays open, and so locked, until the new file has replaced it.
                Err(reason) => (new()?, Origin::Discarded(reason)),
            },
        };
        let this = Self {
            shape,
            map,
            medium: Box::new(file),
            _lock: lock,
        };
        if let Origin::Restored(pages) = &mut origin {
            *pages = this.records().count() as u32;
        }
        Ok((this, origin))
    }

    #[cfg(test)]
    pub(super) fn on_medium(self, wrap: impl FnOnce(Box<dyn Medium>) -> Box<dyn Medium>) -> Self {
        Self {
            medium: wrap(self.medium),
            ..self
        }
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// Iterates over the slots of the file that hold a page, in order: the slot's number, and the record that describes
    /// its page.
    pub(super) fn records(&self) -> impl Iterator<Item = (u32, Record)> {
        (0..self.shape.slots).filter_map(|slot| Some((slot, self.record(slot)?)))
    }

    /// Writes a page and the record that describes it to a slot of the file. If that fails, the slot is empty.
    pub(super) fn write(
        &mut self,
        slot: u32,
        page: PageHash,
        parent: PageHash,
        stamp: u64,
        bytes: &[u8],
    ) -> io::Result<()> {
        let record = Record {
            page,
            parent,
            stamp,
            page_sum: page_sum(page, bytes),
        };
        self.erase(slot)?;
        self.medium.write(bytes, self.shape.page_at(slot))?;
        let record = record.encode(slot);
        self.medium.write(&record, self.shape.record_at(slot))
    }

    /// Empties a slot of the file by overwriting the record that describes its page. The page's bytes stay on the disk
    /// until the slot is used again.
    pub(super) fn erase(&mut self, slot: u32) -> io::Result<()> {
        let at = self.shape.record_at(slot);
        self.medium.write(&[0; RECORD_BYTES], at)
    }

    /// Overwrites the records that describe the pages of all slots with zeroes, so that the file holds no page.
    pub(super) fn erase_all(&mut self) -> io::Result<()> {
        const TOGETHER: u32 = 1024;
        for slot in (0..self.shape.slots).step_by(TOGETHER as usize) {
            let slots = TOGETHER.min(self.shape.slots - slot) as usize;
            let at = self.shape.record_at(slot);
            self.medium.write(&vec![0; slots * RECORD_BYTES], at)?;
        }
        Ok(())
    }

    /// Reads `page` from `slot` and replaces the content of `bytes` with it. Returns `false`, with undefined `bytes`,
    /// if the slot holds another page or none, or the page does not match its checksum.
    pub(super) fn read(&self, slot: u32, page: PageHash, bytes: &mut Vec<u8>) -> bool {
        bytes.clear();
        let Some(record) = self.record(slot).filter(|record| record.page == page) else {
            return false;
        };
        let start = self.shape.page_at(slot) as usize;
        let length = self.shape.page_bytes as usize;
        // Requests the whole page at once rather than fault by fault. If this fails, the read is slower, not wrong.
        let _ = self.map.advise_range(Advice::WillNeed, start, length);
        bytes.extend_from_slice(&self.map[start..start + length]);
        // Computes the checksum of the copy, not of the map, so that the bytes returned are the bytes checked.
        page_sum(page, bytes) == record.page_sum
    }

    /// Waits until everything written has reached the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.medium.sync()
    }

    fn record(&self, slot: u32) -> Option<Record> {
        let at = self.shape.record_at(slot) as usize;
        Record::decode(&self.map[at..at + RECORD_BYTES], slot)
    }
}

/// Locks the file `path` + `.lock` until the result is dropped. That file is never removed: removal would let two
/// processes lock two files of that name.
fn lock(path: &Path) -> Result<File, DiskError> {
    let path = beside(path, ".lock");
    let file = private()
        .create(true)
        .open(&path)
        .map_err(|error| refused_or(&path, error))?;
    check_private(&file, &path)?;
    lock_file(&file, &path)?;
    Ok(file)
}

/// Locks an open file until it is closed. Returns [`DiskError::InUse`] if another process has locked it.
fn lock_file(file: &File, path: &Path) -> Result<(), DiskError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(DiskError::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => Err(DiskError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Returns [`DiskError::Refused`] unless the file is a regular one of this process's user with mode 0600, so that no
/// other user can read or write it.
fn check_private(file: &File, path: &Path) -> Result<(), DiskError> {
    let refused = |reason: String| DiskError::Refused {
        path: path.to_owned(),
        reason,
    };
    let found = file.metadata().map_err(|source| DiskError::Io {
        path: path.to_owned(),
        source,
    })?;
    if !found.is_file() {
        return Err(refused("it is not a regular file".to_owned()));
    }
    // SAFETY: geteuid has no arguments, touches no memory and cannot fail.
    let user = unsafe { libc::geteuid() };
    if found.uid() != user {
        let owner = found.uid();
        return Err(refused(format!("its owner is user {owner}, not {user}")));
    }
    match found.mode() & 0o777 {
        0o600 => Ok(()),
        mode => Err(refused(format!("its mode is {mode:03o}, not 600"))),
    }
}

/// Returns the error for a file that could not be opened: [`DiskError::Refused`] for a symbolic link, on which
/// `O_NOFOLLOW` fails with `ELOOP`, otherwise [`DiskError::Io`].
fn refused_or(path: &Path, source: io::Error) -> DiskError {
    let path = path.to_owned();
    match source.raw_os_error() {
        Some(libc::ELOOP) => DiskError::Refused {
            path,
            reason: "it is a symbolic link".to_owned(),
        },
        _ => DiskError::Io { path, source },
    }
}

/// Maps the file into memory and checks that its header and length are those of `shape`. Returns the reason if not.
fn examine(file: &File, shape: &Shape) -> Result<Mmap, String> {
    let map = map(file).map_err(|error| error.to_string())?;
    let header = &map[..map.len().min(HEADER_BYTES)];
    shape.check(header, map.len() as u64)?;
    Ok(map)
}

/// Creates a file without pages and renames it to `path` once it is complete, so that an incomplete one is never seen
/// there.
fn create(path: &Path, shape: &Shape) -> io::Result<(File, Mmap)> {
    let new = beside(path, ".new");
    // Removes a killed process's leftover, which may not be private.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private().create_new(true).open(&new)?;
    file.lock()?;
    file.write_all(&shape.header())?;
    // Writes the zeroes instead of leaving a hole, so that a disk without room for the records is found now.
    let mut rest = shape.page_at(0) - HEADER_BYTES as u64;
    let zeroes = vec![0; 1 << 16];
    while rest > 0 {
        let length = rest.min(zeroes.len() as u64);
        file.write_all(&zeroes[..length as usize])?;
        rest -= length;
    }
    file.set_len(shape.file_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    let map = map(&file)?;
    Ok((file, map))
}

/// Returns options that open files for their owner alone, because pages reveal prompts.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    // Does not follow symbolic links, and does not wait for the other end of a pipe.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is only read, as bytes, for which every bit pattern is valid, and only by the thread that writes
    // the file: no byte changes while it is borrowed. The lock excludes other instances. A process that truncates the
    // file all the same ends this one, as with any mapped file.
    unsafe { Mmap::map(file) }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
