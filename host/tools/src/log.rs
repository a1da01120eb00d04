//! Logs of requests, a line at a time: what `replay` and `explain` read. Bad lines are named by file, number and reason,
//! and counted; no line is held longer than it is looked at.

use anyhow::{Context, Result};
use foreword_report::progress;
use foreword_simulation::BadLine;
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Bytes of a line: more than any gateway lets through.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Bad lines that are named; the others are only counted.
const NAMED: u64 = 20;

/// Whether bad lines are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnBad {
    /// The first one ends the reading.
    Stop,
    /// They are named and counted.
    Tell,
    /// They are counted: they were named when the log was read before.
    Count,
}

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Lines that are not blank.
    pub(crate) lines: u64,
    /// Of these, not understood.
    pub(crate) bad: u64,
}

/// Where a line stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The file's place in the list.
    pub(crate) file: usize,
    /// From 1.
    pub(crate) number: u64,
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

/// Hands every line of the files to `each`, one file behind the other; `name` stands before the progress.
///
/// # Errors
/// A file cannot be read; a bad line, on [`OnBad::Stop`].
pub(crate) fn read(
    files: &[PathBuf],
    name: &str,
    on_bad: OnBad,
    mut each: impl FnMut(Place, &[u8]) -> Result<(), BadLine>,
) -> Result<Counts> {
    let mut counts = Counts::default();
    for (index, path) in files.iter().enumerate() {
        let opened = || -> Result<(BufReader<File>, ProgressBar)> {
            let file = File::open(path)?;
            let bytes = usize::try_from(file.metadata()?.len())?;
            Ok((BufReader::new(file), progress::bar(name, bytes)?))
        };
        let failed = || format!("cannot read {}", path.display());
        let (file, bar) = opened().with_context(failed)?;
        let mut lines = Lines::new(file);
        loop {
            let number = lines.number + 1;
            let Some(bytes) = lines.next().with_context(failed)? else {
                break;
            };
            let (bytes, too_long) = match bytes {
                Ok(bytes) if bytes.trim_ascii().is_empty() => continue,
                Ok(bytes) => (bytes, None),
                Err(reason) => (&[][..], Some(reason)),
            };
            counts.lines += 1;
            let place = Place {
                file: index,
                number,
            };
            let taken = too_long.map_or_else(|| each(place, bytes), Err);
            if let Err(reason) = taken {
                counts.refuse(path, number, reason, on_bad, &bar)?;
            }
            if counts.lines % progress::STRIDE as u64 == 0 {
                bar.set_position(lines.bytes);
            }
        }
        bar.finish_and_clear();
    }
    Ok(counts)
}

impl Counts {
    fn refuse(
        &mut self,
        path: &Path,
        number: u64,
        reason: BadLine,
        on_bad: OnBad,
        bar: &ProgressBar,
    ) -> Result<()> {
        let named = Named {
            file: path.display().to_string(),
            number,
            reason,
        };
        if on_bad == OnBad::Stop {
            return Err(named.into());
        }
        self.bad += 1;
        if on_bad == OnBad::Tell && self.bad <= NAMED {
            bar.suspend(|| eprintln!("skipped: {named}"));
        }
        Ok(())
    }

    /// Which lines were left out, on standard error; nothing when none was.
    pub(crate) fn tell(self) {
        if self.bad > NAMED {
            eprintln!("skipped: … and {} more", self.bad - NAMED);
        }
        if self.bad > 0 {
            eprintln!(
                "{} of {} lines are bad and were skipped",
                self.bad, self.lines
            );
        }
    }
}

/// The files' names, with commas between.
pub(crate) fn names(files: &[PathBuf]) -> String {
    let names: Vec<_> = (files.iter())
        .map(|file| file.display().to_string())
        .collect();
    names.join(", ")
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
