//! The record of a request that another proxy forwarded.
//!
//! ```text
//!   remote   text tenant, key, text model, engine, list of runs
//! ```

use super::record::{OrderingRecord, SentRun};
use crate::bytes::{BadBytes, Reader, Writer};
use crate::engines::EngineId;
use crate::feed::TenantKey;
use crate::tenant::Tenant;

/// The documents of a request that another proxy forwarded, as hashes and counts; it has no text of the request.
/// Applying it affects only the order of documents and the choice of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRecord {
    pub(crate) tenant: Box<str>,
    pub(crate) key: TenantKey,
    pub(crate) model: Box<str>,
    pub(crate) engine: EngineId,
    pub(crate) runs: Vec<SentRun>,
}

impl RemoteRecord {
    pub(crate) fn tenant(&self) -> Tenant<'_> {
        Tenant {
            name: &self.tenant,
            key: self.key,
        }
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.text(&self.tenant);
        to.bytes(&self.key.to_bytes());
        to.text(&self.model);
        to.number(u64::from(self.engine.0));
        to.list(&self.runs, Writer::run);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, BadBytes> {
        Ok(Self {
            tenant: from.text()?,
            key: TenantKey::from_bytes(from.array()?),
            model: from.text()?,
            engine: EngineId(from.narrow("an engine")?),
            runs: from.list(Reader::run)?,
        })
    }
}

impl From<&OrderingRecord> for RemoteRecord {
    fn from(record: &OrderingRecord) -> Self {
        Self {
            tenant: record.tenant.clone(),
            key: record.key,
            model: record.model.clone(),
            engine: record.engine,
            runs: record.runs.clone(),
        }
    }
}
