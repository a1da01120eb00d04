//! Files to which a run appends results line by line, so that a stopped run can continue.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a file for reading and appending, and creates it if it is missing. A new file is readable and writable by its
/// owner only.
pub(crate) fn open_appended(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    options.open(path)
}

/// Locks `file` until it is closed; returns an error, which names `path`, if another run has locked it.
pub(crate) fn lock(file: &File, path: &Path) -> Result<()> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => bail!("another run is writing {}", path.display()),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot use {}", path.display()))
        }
    }
}

/// Appends a line, which must end with a line break, to the file. If that fails, as on a full disk, removes the part
/// that was written, so that later lines do not follow a piece of this one.
pub(crate) fn append_line(mut file: &File, line: &[u8]) -> std::io::Result<()> {
    let before = file.metadata()?.len();
    file.write_all(line).inspect_err(|_| {
        // If this fails too, the next line follows a piece of this one, and is refused when the run is resumed.
        let _ = file.set_len(before);
    })
}

/// Returns the bytes of all complete lines from the file's read position on. A last line without a line break, left by
/// a crash, is cut off from the file.
pub(crate) fn whole_lines(mut file: &File) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|&byte| byte == b'\n');
    let whole = whole.map_or(0, |at| at + 1);
    if whole < text.len() {
        text.truncate(whole);
        file.set_len(whole as u64)?;
    }
    Ok(text)
}
