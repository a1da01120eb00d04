//! Reads logs of requests line by line, for `replay`, `explain` and `ledger`. Bad lines are reported by file, number and reason, and
//! counted. A line is in memory only while it is processed.

use anyhow::{Context, Result};
use foreword_report::progress;
use foreword_simulation::{BadLine, Lines};
use indicatif::ProgressBar;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Most bad lines that are reported one by one; further ones are only counted.
const NAMED: u64 = 20;

/// The effect of a bad line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnBad {
    /// The first bad line ends the reading.
    Stop,
    /// Bad lines are reported and counted.
    Tell,
    /// Bad lines are only counted, since an earlier pass has reported them.
    Count,
}

impl OnBad {
    /// Returns the effect for a command with the option `strict`.
    pub(crate) fn when(strict: bool) -> Self {
        if strict { Self::Stop } else { Self::Tell }
    }
}

/// The files contain no request with documents.
#[derive(Debug, thiserror::Error)]
#[error(
    "the {what} is empty: no line of {files} has documents ({lines} lines read, {bad} of them bad)"
)]
pub struct EmptyLog {
    /// What the command calls its files, such as a trace, in the error's text.
    pub what: &'static str,
    /// Names of the files.
    pub files: String,
    /// Number of lines read.
    pub lines: u64,
    /// Number of lines that could not be parsed.
    pub bad: u64,
}

/// The counts of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Number of lines that are not blank.
    pub(crate) lines: u64,
    /// Number of lines in `lines` that could not be parsed.
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

/// Passes every line of the files to `each`, one file after another. `name` is the label of the progress bar.
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
            let number = lines.number() + 1;
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
                bar.set_position(lines.bytes());
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

    /// Returns the error that no line of the files has documents. `what` is the command's word for the files together.
    pub(crate) fn empty(self, what: &'static str, paths: &[PathBuf]) -> EmptyLog {
        EmptyLog {
            what,
            files: names(paths),
            lines: self.lines,
            bad: self.bad,
        }
    }

    /// Prints to standard error how many lines were skipped, if any were.
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
