//! Prints results, writes them to files that the user named, or appends them line by line, so that a stopped run can
//! continue.

use anyhow::{Context, Result, bail};
use std::fmt::Display;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Prints text to standard output.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// Prints results, as a line of JSON if `json`, else as a table.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn show(
    json: bool,
    to_json: impl FnOnce() -> String,
    to_table: impl FnOnce() -> String,
) -> Result<()> {
    print(&if json { to_json() + "\n" } else { to_table() })
}

/// Writes a file, and prints its name to standard error.
///
/// # Errors
/// Returns an error that names the file if it cannot be written.
pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("written: {}", path.display());
    Ok(())
}

/// Writes a report's page, and prints its name to standard error.
///
/// # Errors
/// Returns an error that names the file if it cannot be written.
pub fn write_report(path: &Path, page: &str) -> Result<()> {
    std::fs::write(path, page)
        .with_context(|| format!("cannot write the report {}", path.display()))?;
    eprintln!("report: {}", path.display());
    Ok(())
}

/// Opens a file for reading and appending, and creates it if it is missing. A new file is readable and writable by its
/// owner only.
///
/// # Errors
/// Returns the system's error.
pub fn open_appended(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    options.open(path)
}

/// Locks `file` until it is closed.
///
/// # Errors
/// Returns the error `another {user} {name}` if another process has locked the file, or `cannot use {name}` if it
/// cannot be locked.
pub fn lock(file: &File, user: &str, name: impl Display) -> Result<()> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => bail!("another {user} {name}"),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot use {name}")),
    }
}

/// Appends a line, which must end with a line break, to the file. If that fails, as on a full disk, removes the part
/// that was written, so that later lines do not follow a piece of this one.
///
/// # Errors
/// Returns the system's error.
pub fn append_line(mut file: &File, line: &[u8]) -> std::io::Result<()> {
    let before = file.metadata()?.len();
    file.write_all(line).inspect_err(|_| {
        // If this fails too, the next line follows a piece of this one, and is refused when the run is resumed.
        let _ = file.set_len(before);
    })
}

/// Returns the bytes of all complete lines from the file's read position on. A last line without a line break, left by
/// a crash, is cut off from the file.
///
/// # Errors
/// Returns the system's error.
pub fn whole_lines(mut file: &File) -> std::io::Result<Vec<u8>> {
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
