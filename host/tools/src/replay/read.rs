//! Files to trace, a line at a time.

use super::Options;
use crate::log::{self, Counts, OnBad};
use anyhow::Result;
use foreword_simulation::{CompactTrace, LogReader, Logged};

/// What the files hold.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) trace: CompactTrace,
    pub(super) counts: Counts,
    /// Lines that are requests without documents.
    pub(super) without_documents: u64,
}

/// Reads the files, one behind the other.
///
/// # Errors
/// A file cannot be read; a bad line, when strict.
pub(super) fn read(options: &Options) -> Result<Log> {
    let reader = LogReader::new(options.document_tokens);
    let mut trace = CompactTrace::default();
    let mut without_documents = 0;
    let on_bad = if options.strict {
        OnBad::Stop
    } else {
        OnBad::Tell
    };
    let counts = log::read(&options.files, "reading", on_bad, |_, line| {
        let parts = reader.requests(Logged::read(line)?.body.as_bytes())?;
        if parts.is_empty() {
            without_documents += 1;
        } else {
            trace.push(parts);
        }
        Ok(())
    })?;
    Ok(Log {
        trace,
        counts,
        without_documents,
    })
}

impl Log {
    /// What was left out, on standard error; nothing when nothing was.
    pub(super) fn tell(&self) {
        self.counts.tell();
        if self.without_documents > 0 {
            let (without, lines) = (self.without_documents, self.counts.lines);
            eprintln!("{without} of {lines} lines have no documents and do not count");
        }
    }
}
