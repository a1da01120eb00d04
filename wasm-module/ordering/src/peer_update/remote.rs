//! The record of a request that another proxy forwarded.
//!
//! ```text
//!   remote   about, list of runs
//! ```

use super::about::About;
use super::record::{OrderingRecord, SentRun};
use crate::bytes::{BadBytes, Reader, Writer};

/// The documents of a request that another proxy forwarded, as hashes and counts; it has no text of the request.
/// Applying it affects only the order of documents and the choice of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRecord {
    pub(crate) about: About,
    pub(crate) runs: Vec<SentRun>,
}

impl RemoteRecord {
    pub(super) fn write(&self, to: &mut Writer) {
        self.about.write(to);
        to.list(&self.runs, Writer::run);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, BadBytes> {
        Ok(Self {
            about: About::read(from)?,
            runs: from.list(Reader::run)?,
        })
    }
}

impl From<&OrderingRecord> for RemoteRecord {
    fn from(record: &OrderingRecord) -> Self {
        Self {
            about: record.about.clone(),
            runs: record.runs.clone(),
        }
    }
}
