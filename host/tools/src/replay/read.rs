//! Reads logs of requests into a trace, which has their documents only.

use super::Options;
use anyhow::Result;
use foreword_ordering::Config;
use foreword_report::log::{self, Counts, OnBad};
use foreword_simulation::{CompactTrace, LogReader, Logged};

/// The documents of a log's requests, with the numbers of lines that were read, that were bad, and that have no
/// documents.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) trace: CompactTrace,
    pub(super) counts: Counts,
    /// Number of lines whose request has no documents.
    pub(super) without_documents: u64,
}

/// Reads the documents of all requests in the log files of `options`, as the gateway would find them under `config`.
/// The files are read one after another.
///
/// # Errors
/// Returns an error if a file cannot be read, or for a bad line with `--strict`.
pub(super) fn read(options: &Options, config: Config) -> Result<Log> {
    let reader = LogReader::new(options.document_tokens).under(config);
    let mut trace = CompactTrace::default();
    let mut without_documents = 0;
    let on_bad = OnBad::when(options.strict);
    let counts = log::read(&options.files, "reading", on_bad, |_, line| {
        let parts = reader.parts(&Logged::read(line)?)?;
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
    /// Prints to standard error how many lines of the log were bad or had no documents.
    pub(super) fn tell(&self) {
        self.counts.tell();
        if self.without_documents > 0 {
            let (without, lines) = (self.without_documents, self.counts.lines);
            eprintln!("{without} of {lines} lines have no documents and do not count");
        }
    }
}
