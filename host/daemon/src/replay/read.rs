//! Files to trace, a line at a time. Bad lines are named by file, number and reason, and counted.

use super::Options;
use crate::progress;
use anyhow::{Context, Result};
use foreword_ordering::simulation::{BadLine, CompactTrace, LogReader};
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Bytes of a line: more than any gateway lets through.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Bad lines that are named; the others are only counted.
const NAMED: u64 = 20;

/// What the files hold.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) trace: CompactTrace,
    /// Lines that are not blank.
    pub(super) lines: u64,
    /// Of these, requests without documents.
    pub(super) without_documents: u64,
    /// Of these, not understood.
    pub(super) bad: u64,
}

/// A bad line, and where it stands.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{number}: {reason}")]
struct Named {
    file: String,
    /// From 1.
    number: u64,
    reason: BadLine,
}

/// Reads the files, one behind the other.
///
/// # Errors
/// A file cannot be read; a bad line, when strict.
pub(super) fn read(options: &Options) -> Result<Log> {
    let reader = LogReader::new(options.document_tokens);
    let mut log = Log::default();
    for path in &options.files {
        let opened = || -> Result<(BufReader<File>, ProgressBar)> {
            let file = File::open(path)?;
            let bytes = usize::try_from(file.metadata()?.len())?;
            Ok((BufReader::new(file), progress::bar("reading", bytes)?))
        };
        let failed = || format!("cannot read {}", path.display());
        let (file, bar) = opened().with_context(failed)?;
        let mut lines = Lines::new(file);
        while let Some(bytes) = lines.next().with_context(failed)? {
            let parsed = match bytes {
                Ok(bytes) if bytes.trim_ascii().is_empty() => continue,
                Ok(bytes) => reader.requests(bytes),
                Err(reason) => Err(reason),
            };
            log.lines += 1;
            match parsed {
                Ok(parts) if parts.is_empty() => log.without_documents += 1,
                Ok(parts) => log.trace.push(parts),
                Err(reason) => log.refuse(path, lines.number, reason, options.strict, &bar)?,
            }
            if log.lines % progress::STRIDE as u64 == 0 {
                bar.set_position(lines.bytes);
            }
        }
        bar.finish_and_clear();
    }
    Ok(log)
}

impl Log {
    fn refuse(
        &mut self,
        path: &Path,
        number: u64,
        reason: BadLine,
        strict: bool,
        bar: &ProgressBar,
    ) -> Result<()> {
        let named = Named {
            file: path.display().to_string(),
            number,
            reason,
        };
        if strict {
            return Err(named.into());
        }
        self.bad += 1;
        if self.bad <= NAMED {
            bar.suspend(|| eprintln!("skipped: {named}"));
        }
        Ok(())
    }

    /// What was left out, on standard error; nothing when nothing was.
    pub(super) fn tell(&self) {
        if self.bad > NAMED {
            eprintln!("skipped: … and {} more", self.bad - NAMED);
        }
        if self.bad > 0 {
            eprintln!(
                "{} of {} lines are bad and were skipped",
                self.bad, self.lines
            );
        }
        if self.without_documents > 0 {
            let (without, lines) = (self.without_documents, self.lines);
            eprintln!("{without} of {lines} lines have no documents and do not count");
        }
    }
}

/// Lines of a reader, each at most [`MAX_LINE_BYTES`] long.
struct Lines<R> {
    reader: R,
    limit: u64,
    line: Vec<u8>,
    /// Lines read.
    number: u64,
    /// Bytes read.
    bytes: u64,
}

impl<R: BufRead> Lines<R> {
    fn new(reader: R) -> Self {
        Self {
            reader,
            limit: MAX_LINE_BYTES,
            line: Vec::new(),
            number: 0,
            bytes: 0,
        }
    }

    /// The next line; a longer one is passed over without being held.
    fn next(&mut self) -> std::io::Result<Option<Result<&[u8], BadLine>>> {
        self.line.clear();
        let mut reader = (&mut self.reader).take(self.limit + 1);
        let read = reader.read_until(b'\n', &mut self.line)? as u64;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read;
        if read > self.limit && !self.line.ends_with(b"\n") {
            self.bytes += self.reader.skip_until(b'\n')? as u64;
            return Ok(Some(Err(BadLine::TooLong { limit: self.limit })));
        }
        Ok(Some(Ok(&self.line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_beyond_the_limit_is_passed_over_and_the_next_one_read() {
        let mut lines = Lines::new(&b"1234\n12345\n\nend"[..]);
        lines.limit = 4;
        assert_eq!(lines.next().unwrap(), Some(Ok(&b"1234\n"[..])));
        let too_long = BadLine::TooLong { limit: 4 };
        assert_eq!(lines.next().unwrap(), Some(Err(too_long)));
        assert_eq!(lines.next().unwrap(), Some(Ok(&b"\n"[..])));
        assert_eq!(lines.next().unwrap(), Some(Ok(&b"end"[..])));
        assert_eq!(lines.next().unwrap(), None);
        assert_eq!((lines.number, lines.bytes), (4, 15));
    }
}
