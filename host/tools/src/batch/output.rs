//! The batch's output file: it contains the answers, and so records which requests a stopped run has finished.
//!
//! A line is appended in one call when its answer has arrived. A line cut short by a kill or a full disk is removed by
//! the next run, which sends its request again. A new file is readable by its owner only, since answers may be
//! confidential. The process that writes the file holds a lock on it.

use anyhow::{Context, Result, anyhow, bail};
use foreword_report::files::{append_line, lock, open_appended};
use foreword_simulation::{AnswerLine, BatchAnswers, BatchIndex};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The batch's output file, open for appending and locked.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    path: PathBuf,
}

impl Output {
    /// Opens or creates the batch's output file, locks it, and reads which requests of the batch it answers. With
    /// `retry_failed`, first removes the lines of requests that were not served (2xx). A last line that is cut short is
    /// removed too. Returns the file and the answers in it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written, another run is writing it, it is the input file, or it
    /// contains lines that are no answers to this batch.
    pub(super) fn open(
        path: &Path,
        input: &File,
        index: &BatchIndex,
        retry_failed: bool,
    ) -> Result<(Self, BatchAnswers)> {
        let failed = || format!("cannot use {}", path.display());
        let mut file = open_appended(path).with_context(failed)?;
        let (ours, theirs) = (file.metadata(), input.metadata());
        let (ours, theirs) = (ours.with_context(failed)?, theirs.with_context(failed)?);
        if (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()) {
            bail!("--out: {} is the input", path.display());
        }
        if !ours.is_file() {
            bail!("--out: {} is no regular file", path.display());
        }
        lock(&file, "run is writing", path.display())?;
        let mut answers = read(&file, path, index)?;
        if retry_failed && answers.failed > 0 {
            file = without_failed(&file, path, answers.whole_bytes).with_context(failed)?;
            lock(&file, "run is writing", path.display())?;
            answers = read(&file, path, index)?;
        }
        let bytes = answers.whole_bytes;
        if file.metadata().with_context(failed)?.len() > bytes {
            file.set_len(bytes).with_context(failed)?;
        }
        let path = path.to_owned();
        Ok((Self { file, path }, answers))
    }

    /// Appends `line`, an answer that ends with a line break, to the file.
    pub(super) fn append(&mut self, line: &[u8]) -> Result<()> {
        append_line(&self.file, line)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Flushes the answers written so far to the disk.
    pub(super) fn sync(&self) -> Result<()> {
        let synced = self.file.sync_all();
        synced.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn read(mut file: &File, path: &Path, index: &BatchIndex) -> Result<BatchAnswers> {
    let failed = || format!("cannot read {}", path.display());
    file.seek(SeekFrom::Start(0)).with_context(failed)?;
    let mut answers = BatchAnswers::none(index.len());
    let read = answers.read(BufReader::new(file), index);
    let read = read.with_context(failed)?.map_err(|wrong| anyhow!(wrong));
    read.with_context(|| {
        format!(
            "{} holds something else than answers to this batch; choose another --out",
            path.display()
        )
    })?;
    Ok(answers)
}

/// Replaces the output file by a copy of its first `whole_bytes` bytes without the lines of requests that were not
/// served. Returns the new file, open for appending.
fn without_failed(mut file: &File, path: &Path, whole_bytes: u64) -> Result<File> {
    file.seek(SeekFrom::Start(0))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let kept = copy_served(file, whole_bytes, &beside).and_then(|()| {
        std::fs::rename(&beside, path)?;
        Ok(open_appended(path)?)
    });
    if kept.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    kept
}

fn copy_served(file: &File, whole_bytes: u64, beside: &Path) -> Result<()> {
    let mut options = OpenOptions::new();
    let new = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(beside)?;
    let mut new = BufWriter::new(new);
    let mut lines = BufReader::new(std::io::Read::take(file, whole_bytes));
    let mut line = Vec::new();
    // The lines were parsed before, so each is within the length limit.
    while lines.read_until(b'\n', &mut line)? > 0 {
        if AnswerLine::parse(&line).is_ok_and(|answer| answer.is_served()) {
            new.write_all(&line)?;
        }
        line.clear();
    }
    new.into_inner()
        .map_err(std::io::IntoInnerError::into_error)?
        .sync_all()?;
    Ok(())
}
