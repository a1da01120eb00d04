//! Prints results, or writes them to files that the user named.

use anyhow::{Context, Result};
use std::io::Write;
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
