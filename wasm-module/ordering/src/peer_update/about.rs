//! The tenant, model and engine of a request, with which every update about it begins.
//!
//! ```text
//!   about   text tenant, key, text model, engine
//! ```

use crate::bytes::{BadBytes, Reader, Writer};
use crate::engines::EngineId;
use crate::feed::TenantKey;
use crate::tenant::Tenant;

/// The request to which an update of an orderer applies: its tenant, its model, and the engine to which it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) tenant: Box<str>,
    /// The key of the request's `cache_salt`. Engines share no KV state between salts.
    pub(crate) key: TenantKey,
    pub(crate) model: Box<str>,
    pub(crate) engine: EngineId,
}

impl About {
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
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, BadBytes> {
        Ok(Self {
            tenant: from.text()?,
            key: TenantKey::from_bytes(from.array()?),
            model: from.text()?,
            engine: EngineId(from.narrow("an engine")?),
        })
    }
}
