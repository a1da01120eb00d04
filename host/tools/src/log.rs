//! Reads logs of requests line by line, for `replay` and `explain`. Bad lines are named by file, number and reason,
//! and counted. A line is held only while it is read.

use anyhow::{Context, Result};
use foreword_report::progress;
use foreword_simulation::BadLine;
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Most bytes of a line: more than any gateway lets through.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Number of bad lines that are named; further ones are only counted.
const NAMED: u64 = 20;

/// What happens at a bad line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnBad {
    /// The first bad line ends the reading.
    Stop,
    /// Bad lines are named and counted.
    Tell,
    /// Bad lines are only counted, since they were named when the log was read before.
    Count,
}

/// The counts of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Number of lines that are not blank.
    pub(crate) lines: u64,
    /// Number of these that were not understood.
    pub(crate) bad: u64,
}

/// The place of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the file in the list.
    pub(crate) file: usize,
    /// Number of the line, from 1.
    pub(crate) number: u64,
}

/// A bad line and its place.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{number}: {reason}")]
struct Named {
    file: String,
    /// Number of the line, from 1.
    number: u64,
    reason: BadLine,
}

/// Passes every line of the files to `each`, one file after another; `name` is printed before the progress.
///
/// # Errors
/// Returns an error if a file cannot be read, or for a bad line on [`OnBad::Stop`].
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

    /// Prints to standard error which lines were left out; nothing if none were.
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

/// Returns the files' names, with commas between.
pub(crate) fn names(files: &[PathBuf]) -> String {
    let names: Vec<_> = (files.iter())
        .map(|file| file.display().to_string())
        .collect();
    names.join(", ")
}

/// The lines of a reader, each at most [`MAX_LINE_BYTES`] long.
struct Lines<R> {
    reader: R,
    limit: u64,
    line: Vec<u8>,
    /// Number of lines read.
    number: u64,
    /// Number of bytes read.
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

    /// Returns the next line; a longer one is skipped without being held.
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
