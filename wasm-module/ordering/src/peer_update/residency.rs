//! Events of an engine's feed of cache events, as an update of bounded size.

use crate::bytes::{BadBytes, Reader, Writer};
use crate::document::Fingerprint;
use crate::engines::EngineId;
use crate::feed::{Event, TenantKey};
use crate::tree::Scope;

/// An update for orderers (workers): consecutive events of an engine's feed of cache events, or a full snapshot of its
/// cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    /// The engine whose cache changed.
    pub engine: EngineId,
    /// The name of the model as the engine has it.
    pub model: Box<str>,
    /// The events of the cache, in the order in which they happened.
    pub events: Vec<Event>,
}

impl Residency {
    pub(super) fn write(&self, to: &mut Writer) {
        to.number(u64::from(self.engine.0));
        to.text(&self.model);
        to.list(&self.events, |to, event| match event {
            Event::Cleared => to.byte(CLEARED),
            Event::Stored {
                tenant,
                scope,
                path,
            } => {
                to.byte(STORED);
                to.bytes(&tenant.to_bytes());
                to.bytes(&scope.0.to_le_bytes());
                to.list(path, |to, (document, tokens)| {
                    to.bytes(&document.0.to_le_bytes());
                    to.number(u64::from(*tokens));
                });
            }
            Event::Removed {
                tenant,
                scope,
                path,
            } => {
                to.byte(REMOVED);
                to.bytes(&tenant.to_bytes());
                to.bytes(&scope.0.to_le_bytes());
                to.list(path, |to, document| {
                    to.bytes(&document.0.to_le_bytes());
                });
            }
        });
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, BadBytes> {
        Ok(Self {
            engine: EngineId(from.narrow("an engine")?),
            model: from.text()?,
            events: from.list(Reader::event)?,
        })
    }
}

impl Reader<'_> {
    fn event(&mut self) -> Result<Event, BadBytes> {
        let kind = self.byte()?;
        if kind == CLEARED {
            return Ok(Event::Cleared);
        }
        let tenant = TenantKey::from_bytes(self.array()?);
        let scope = Scope(self.hash()?);
        match kind {
            STORED => Ok(Event::Stored {
                tenant,
                scope,
                path: self.list(|from| Ok((Fingerprint(from.hash()?), from.narrow("tokens")?)))?,
            }),
            REMOVED => Ok(Event::Removed {
                tenant,
                scope,
                path: self.list(|from| Ok(Fingerprint(from.hash()?)))?,
            }),
            _ => Err(self.bad("an event")),
        }
    }
}

const CLEARED: u8 = 0;
const STORED: u8 = 1;
const REMOVED: u8 = 2;
