//! Updates that orderers send to each other, so that all have the same state.
//!
//! ```text
//!   worker A   rewrite(body) ──▶ new body, OrderingRecord ──▶ bytes ─┐
//!   worker B                              learn(PeerUpdate) ◀────────┘  B orders the next request as if it had
//!                                                                       forwarded this one
//! ```
//!
//! - [`OrderingRecord`]: the record of one request. The orderer that made it applies it as all others of its proxy do.
//! - [`RemoteRecord`]: the part of it for gateways of other proxies, which has no text of the request.
//! - [`Residency`]: events of an engine's feed.
//! - [`Correction`]: the difference, if an engine's response shows that fewer tokens were cached than expected.

mod about;
mod correction;
mod record;
mod remote;
mod residency;

pub(crate) use about::About;
pub use correction::{Correction, Usage};
pub use record::OrderingRecord;
pub(crate) use record::{ChatContinuation, SentRun};
pub use remote::RemoteRecord;
pub use residency::Residency;

use crate::bytes::{BadBytes, Reader, Writer};
use crate::engines::EngineId;
use crate::feed::Event;

/// An update that an orderer (a worker's core) sends to the other orderers that serve the same engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerUpdate {
    /// The record of a request that this proxy forwarded.
    OrderingRecord(OrderingRecord),
    /// The documents of a request that another proxy forwarded.
    Remote(RemoteRecord),
    /// Events of an engine's feed of cache events.
    Residency(Residency),
    /// A correction of what an engine's cache is believed to hold, derived from its response.
    Correction(Correction),
}

impl PeerUpdate {
    /// Encodes the update for other orderers of this proxy (of its other workers), which read it with
    /// [`PeerUpdate::decode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::OrderingRecord(record) => record.encode(),
            Self::Remote(record) => encoded(REMOTE, |to| record.write(to)),
            Self::Residency(residency) => encoded(RESIDENCY, |to| residency.write(to)),
            Self::Correction(correction) => encoded(CORRECTION, |to| correction.write(to)),
        }
    }

    /// Returns the engine to which the update applies.
    #[must_use]
    pub fn engine(&self) -> EngineId {
        match self {
            Self::OrderingRecord(record) => record.about.engine,
            Self::Remote(record) => record.about.engine,
            Self::Residency(residency) => residency.engine,
            Self::Correction(correction) => correction.about.engine,
        }
    }

    /// Returns the update with `engine` as the id of its engine, since gateways number their engines differently.
    #[must_use]
    pub fn about(mut self, engine: EngineId) -> Self {
        match &mut self {
            Self::OrderingRecord(record) => record.about.engine = engine,
            Self::Remote(record) => record.about.engine = engine,
            Self::Residency(residency) => residency.engine = engine,
            Self::Correction(correction) => correction.about.engine = engine,
        }
        self
    }

    /// Encodes the update, without texts of requests, for gateways of other proxies; see [`PeerUpdate::decode_remote`].
    #[must_use]
    pub fn encode_remote(&self) -> Vec<u8> {
        match self {
            Self::OrderingRecord(record) => record.encode_remote(),
            Self::Remote(_) | Self::Residency(_) | Self::Correction(_) => self.encode(),
        }
    }

    /// Decodes an update that [`PeerUpdate::encode`] encoded; it must take up all of `bytes`.
    ///
    /// # Errors
    /// Returns [`BadBytes`] if the bytes are not an encoded update.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadBytes> {
        let mut from = Reader::new(bytes);
        if from.byte()? != VERSION {
            return Err(from.bad("version 5"));
        }
        let update = match from.byte()? {
            RECORD => Self::OrderingRecord(OrderingRecord::read(&mut from)?),
            REMOTE => Self::Remote(RemoteRecord::read(&mut from)?),
            RESIDENCY => Self::Residency(Residency::read(&mut from)?),
            CORRECTION => Self::Correction(Correction::read(&mut from)?),
            _ => return Err(from.bad("a kind")),
        };
        from.end()?;
        Ok(update)
    }

    /// Decodes an update of another gateway, which must take up all of `bytes` and have only hashes and counts: a
    /// remote record, a residency update with only removals, or a correction.
    ///
    /// # Errors
    /// Returns [`BadBytes`] for any other bytes, in particular for an [`OrderingRecord`], which may have texts.
    pub fn decode_remote(bytes: &[u8]) -> Result<Self, BadBytes> {
        let update = Self::decode(bytes)?;
        let is_removed = |event: &Event| matches!(event, Event::Removed { .. });
        let is_remote = match &update {
            Self::Remote(_) | Self::Correction(_) => true,
            Self::Residency(residency) => residency.events.iter().all(is_removed),
            Self::OrderingRecord(_) => false,
        };
        (is_remote.then_some(update))
            .ok_or_else(|| Reader::new(bytes).bad("an update of a gateway"))
    }
}

impl OrderingRecord {
    /// Encodes the record as [`PeerUpdate::encode`] does, for other orderers of this proxy.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoded(RECORD, |to| self.write(to))
    }

    /// Encodes the record, without texts of the request, for gateways of other proxies, as
    /// [`PeerUpdate::encode_remote`] does.
    #[must_use]
    pub fn encode_remote(&self) -> Vec<u8> {
        PeerUpdate::Remote(self.into()).encode()
    }
}

fn encoded(kind: u8, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut to = Writer(Vec::with_capacity(512));
    to.byte(VERSION);
    to.byte(kind);
    write(&mut to);
    to.0
}

const VERSION: u8 = 5;
const RECORD: u8 = 1;
const RESIDENCY: u8 = 2;
const CORRECTION: u8 = 3;
const REMOTE: u8 = 4;

#[cfg(test)]
mod tests;
