//! Reads logs of requests line by line, for `replay`, `explain`, `ledger`, `index` and `rehearse`. Bad lines are
//! reported by file, number and reason, and counted. Only one line is in memory at a time.

use crate::progress;
use anyhow::{Context, Result, ensure};
use foreword_simulation::{BadLine, Lines};
use indicatif::ProgressBar;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Maximum number of bad lines that are reported one by one; further ones are only counted.
const NAMED: u64 = 20;

/// Handling of a bad line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBad {
    /// The first bad line ends the reading.
    Stop,
    /// Bad lines are reported and counted.
    Tell,
    /// Bad lines are only counted, since an earlier pass has reported them.
    Count,
}

impl OnBad {
    /// Returns [`OnBad::Stop`] if `strict`, else [`OnBad::Tell`].
    #[must_use]
    pub fn when(strict: bool) -> Self {
        if strict { Self::Stop } else { Self::Tell }
    }
}

/// Input with which a command cannot work, such as a log without a valid line. Commands exit with code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

/// Numbers of lines of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of lines that were read, without blank ones.
    pub lines: u64,
    /// Number of lines in `lines` that could not be parsed.
    pub bad: u64,
}

/// The place of a line in the files of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the file in the list of files.
    pub file: usize,
    /// Number of the line, from 1.
    pub number: u64,
}

/// The reason for which a line could not be processed.
#[derive(Debug)]
pub enum LineError {
    /// The line is malformed; other lines are read.
    Bad(BadLine),
    /// The command must end.
    Fatal(anyhow::Error),
}

impl From<BadLine> for LineError {
    fn from(reason: BadLine) -> Self {
        Self::Bad(reason)
    }
}

/// Checks that the files can be read more than once, which pipes cannot.
///
/// # Errors
/// Returns [`BadInput`] that names a pipe.
pub fn check_rereadable(files: &[PathBuf]) -> Result<(), BadInput> {
    let is_pipe = |path: &&PathBuf| (path.metadata()).is_ok_and(|it| it.file_type().is_fifo());
    let Some(pipe) = files.iter().find(is_pipe) else {
        return Ok(());
    };
    let pipe = pipe.display();
    Err(BadInput(format!(
        "{pipe} is a pipe, and the log is read more than once: write it to a file first"
    )))
}

/// Calls `each` with every line that is not blank, file after file. `name` labels the progress bars; `None` for none.
///
/// # Errors
/// Returns an error if a file cannot be read, for a bad line with [`OnBad::Stop`], and the fatal errors of `each`.
pub fn read<'n>(
    files: &[PathBuf],
    name: impl Into<Option<&'n str>>,
    on_bad: OnBad,
    mut each: impl FnMut(Place, &[u8]) -> Result<(), LineError>,
) -> Result<Counts> {
    let name = name.into();
    let mut counts = Counts::default();
    for (index, path) in files.iter().enumerate() {
        let opened = || -> Result<(BufReader<File>, ProgressBar)> {
            let file = File::open(path)?;
            let bytes = usize::try_from(file.metadata()?.len())?;
            let bar = name.map(|name| progress::bar(name, bytes)).transpose()?;
            Ok((
                BufReader::new(file),
                bar.unwrap_or_else(ProgressBar::hidden),
            ))
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
            let file = index;
            let place = Place { file, number };
            let taken = too_long.map_or_else(|| each(place, bytes), |reason| Err(reason.into()));
            match taken {
                Ok(()) => {}
                Err(LineError::Bad(reason)) => counts.refuse(path, number, reason, on_bad, &bar)?,
                Err(LineError::Fatal(error)) => return Err(error),
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
        let named = format!("{}:{number}: {reason}", path.display());
        ensure!(on_bad != OnBad::Stop, named);
        self.bad += 1;
        if on_bad == OnBad::Tell && self.bad <= NAMED {
            bar.suspend(|| eprintln!("skipped: {named}"));
        }
        Ok(())
    }

    /// Returns the error for a log of which no line can be used, for the reason `why`.
    #[must_use]
    pub fn empty(self, why: &str) -> BadInput {
        let Self { lines, bad } = self;
        BadInput(format!("{why} ({lines} lines read, {bad} of them bad)"))
    }

    /// Returns the error for a log of which no line has documents. `what` is the word for it in the message, such as
    /// `trace`.
    #[must_use]
    pub fn without_documents(self, what: &str, files: &[PathBuf]) -> BadInput {
        let files = names(files);
        self.empty(&format!(
            "the {what} is empty: no line of {files} has documents"
        ))
    }

    /// Prints to standard error how many bad lines were skipped, if any were.
    pub fn tell(self) {
        if self.bad > NAMED {
            eprintln!("skipped: … and {} more", self.bad - NAMED);
        }
        if self.bad > 0 {
            let Self { lines, bad } = self;
            eprintln!("{bad} of {lines} lines are bad and were skipped");
        }
    }
}

/// Returns the names of the files, with commas between them.
#[must_use]
pub fn names(files: &[PathBuf]) -> String {
    let names = files.iter().map(|file| file.display().to_string());
    names.collect::<Vec<_>>().join(", ")
}
