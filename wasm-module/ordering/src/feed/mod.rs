//! The feed of an engine's KV cache: the documents whose KV state the engine holds, and the changes, in JSON as sent
//! over the wire.
//!
//! ```text
//!   {"epoch": "5c0f…", "from": 40, "next": 43, "reset": false, "model": "m", "pages": {"device": 812, …}, "events": [
//!     {"type": "stored",  "tenant": "", "scope": "9f3c…", "path": [["0a1b…", 117], ["77de…", 203]]},
//!     {"type": "removed", "tenant": "", "scope": "9f3c…", "path": ["e3a9…", "51c0…"]},
//!     {"type": "cleared"}
//!   ]}
//! ```
//!
//! A reader requests the events since `next` of its last [`Batch`], and names the epoch in which that number is valid.
//! If the engine no longer has them (the reader was slow, or the engine restarted), it answers with `reset`: the events
//! are then a full snapshot. [`Follower`] implements the reader.
//!
//! Hashes are strings of hexadecimal digits, since some JSON parsers do not keep numbers of 64 bits. Unknown fields are
//! ignored. This module has no clock and no I/O: other modules fetch and serve batches.
//!
//! A fingerprint tells anyone who has the document that the engine holds it. So between hosts and gateways that share a
//! [`FeedKey`], hashes and token counts are sealed (encrypted) on the wire. The batch names the key by its check value
//! in `key`; `null` means that the feed is not sealed. [`Batch::wire`] writes both forms, and [`Batch::read`] reads the
//! one that its caller expects.
//!
//! Gateways exchange [`Push`]es through the feed's server, sealed in the same way.

/// Implements formatting and parsing as 16 hexadecimal digits, also in JSON, for the type `$id`, which wraps a `u64`.
/// `$expected` is the error text.
macro_rules! hexadecimal_id {
    ($id:ident, $expected:literal) => {
        impl std::fmt::Display for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }

        impl std::str::FromStr for $id {
            type Err = &'static str;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                crate::hexadecimal::parse_hash(text)
                    .map(Self)
                    .ok_or($expected)
            }
        }

        impl serde::Serialize for $id {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $id {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
use hexadecimal_id;

mod key;
mod push;
mod wire;

pub use self::key::{FeedKey, KeyCheck, SealedTenant};
pub use self::push::{
    GatewayId, MAX_PUSH_BYTES, MAX_PUSH_UPDATES, Push, PushError, Pushes, SealedPush,
};
pub use self::wire::{ReadError, Wire};

use crate::document::Fingerprint;
use crate::hexadecimal;
use crate::tree::{ResidencyEvent, Scope};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Consecutive events of an engine's KV cache, or a full snapshot of its documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The epoch (lifetime of the cache) in which the positions `from` and `next` are valid.
    pub epoch: Epoch,
    /// Number of events of the feed before the first event of this batch: the batch's position.
    pub from: u64,
    /// Number of events of the feed up to and including the last event of this batch, from which the reader's next
    /// request continues.
    pub next: u64,
    /// True if the events are a full snapshot: the reader must drop all that it knew of this engine's cache.
    pub reset: bool,
    /// The name of the model as the engine has it.
    pub model: String,
    /// Numbers of pages that are in the cache now, of all tenants together.
    pub pages: Pages,
    /// The events of the cache, in the order in which they happened.
    pub events: Vec<Event>,
}

/// A change of the documents whose KV state an engine's cache holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The cache holds the KV state of the documents of this path, a sequence from the first document after `scope` on.
    Stored {
        /// The key of the tenant to whose prompts the documents belong.
        tenant: TenantKey,
        /// Hash of the prompt before the documents.
        scope: Scope,
        /// The documents with their tokens, in the order of the prompt; at least one.
        path: Vec<(Fingerprint, u32)>,
    },
    /// The cache no longer holds the last document of this path, a sequence of documents, nor any document after it.
    Removed {
        /// The key of the tenant to whose prompts the documents belong.
        tenant: TenantKey,
        /// Hash of the prompt before the documents.
        scope: Scope,
        /// The documents, from the first one after `scope` to the one that was removed.
        path: Vec<Fingerprint>,
    },
    /// The cache holds no document of any tenant any more.
    Cleared,
}

/// Number of pages (blocks of KV state) in each tier of an engine's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pages {
    /// Number of pages in device memory.
    pub device: u64,
    /// Number of pages in host memory.
    pub host: u64,
    /// Number of pages in the file on disk.
    pub disk: u64,
}

/// Identifies one lifetime of an engine's cache; every restart of the engine begins a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(pub u64);

/// Identifies a tenant's documents in the feed: 128 bits of the SHA-256 of the requests' `cache_salt`. The salt cannot
/// be computed from the key, except by guessing salts.
///
/// The default, written as an empty string, stands for requests without a salt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantKey(u128);

/// A reader of an engine's feed of cache events, with the position up to which it has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Follower {
    /// The epoch and the position in it; `None` before the first batch and after a gap.
    place: Option<(Epoch, u64)>,
}

impl TenantKey {
    /// Returns the key for a `cache_salt`; the default for an empty salt.
    #[must_use]
    pub fn of(salt: &str) -> Self {
        if salt.is_empty() {
            return Self::default();
        }
        let hash = Sha256::digest(salt.as_bytes());
        let (bytes, _) = hash.split_first_chunk().unwrap_or((&[0; 16], &[]));
        Self(u128::from_be_bytes(*bytes))
    }
}

impl TenantKey {
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }
}

impl Follower {
    /// Returns the URL query of the next request for a batch. It is empty at first and after a gap, which requests a
    /// full snapshot.
    #[must_use]
    pub fn query(&self) -> String {
        self.place.map_or_else(String::new, |(epoch, next)| {
            format!("epoch={epoch}&since={next}")
        })
    }

    /// Reads a batch and returns the events that the reader must apply, in order, and advances the position. A snapshot
    /// begins with [`Event::Cleared`]. If the batch neither continues the last one nor is a snapshot, that is the only
    /// event, and the next query requests a full snapshot.
    pub fn follow<'b>(&mut self, batch: &'b Batch) -> impl Iterator<Item = &'b Event> + use<'b> {
        static CLEARED: Event = Event::Cleared;
        let goes_on = batch.reset || self.place == Some((batch.epoch, batch.from));
        let forget = batch.reset || !goes_on;
        self.place = goes_on.then_some((batch.epoch, batch.next));
        let events: &'b [Event] = if goes_on { &batch.events } else { &[] };
        forget.then_some(&CLEARED).into_iter().chain(events)
    }
}

impl Event {
    /// Returns the event in the form in which a knowledge tree (documents believed to be cached) takes it.
    #[must_use]
    pub fn residency(&self) -> ResidencyEvent<'_> {
        match self {
            Self::Stored { scope, path, .. } => ResidencyEvent::Stored {
                scope: *scope,
                path,
            },
            Self::Removed { scope, path, .. } => ResidencyEvent::Removed {
                scope: *scope,
                path,
            },
            Self::Cleared => ResidencyEvent::Cleared,
        }
    }

    /// Returns the key of the tenant that the event concerns; `None` if it concerns all tenants.
    #[must_use]
    pub fn tenant(&self) -> Option<TenantKey> {
        match self {
            Self::Stored { tenant, .. } | Self::Removed { tenant, .. } => Some(*tenant),
            Self::Cleared => None,
        }
    }
}

impl std::str::FromStr for TenantKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "a tenant's key is empty or 32 hexadecimal digits";
        match text.len() {
            0 => Ok(Self::default()),
            32 if hexadecimal::all_digits(text) => u128::from_str_radix(text, 16)
                .map(Self)
                .map_err(|_| EXPECTED),
            _ => Err(EXPECTED),
        }
    }
}

impl std::fmt::Display for TenantKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Self::default() {
            return Ok(());
        }
        write!(f, "{:032x}", self.0)
    }
}

hexadecimal_id!(Epoch, "an epoch is 16 hexadecimal digits");

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn batch(epoch: u64, from: u64, reset: bool, events: &[Event]) -> Batch {
        Batch {
            epoch: Epoch(epoch),
            from,
            next: from + events.len() as u64,
            reset,
            model: "m".into(),
            pages: Pages::default(),
            events: events.to_vec(),
        }
    }

    fn stored(document: u64) -> Event {
        Event::Stored {
            tenant: TenantKey::default(),
            scope: Scope(1),
            path: vec![(Fingerprint(document), 5)],
        }
    }

    #[test]
    fn the_wire_form_is_fixed() {
        let tenant = TenantKey::of("salt");
        let batch = Batch {
            pages: Pages {
                device: 3,
                ..Pages::default()
            },
            ..batch(
                0xab,
                40,
                true,
                &[
                    Event::Stored {
                        tenant,
                        scope: Scope(2),
                        path: vec![(Fingerprint(u64::MAX), 117)],
                    },
                    Event::Removed {
                        tenant: TenantKey::default(),
                        scope: Scope(2),
                        path: vec![Fingerprint(3)],
                    },
                    Event::Cleared,
                ],
            )
        };
        let wire = json!({
            "epoch": "00000000000000ab", "from": 40, "next": 43, "reset": true, "model": "m",
            "pages": {"device": 3, "host": 0, "disk": 0}, "key": null,
            "events": [
                {"type": "stored", "tenant": "63479ad69a090b258277ec8fba6f9941", "scope": "0000000000000002",
                    "path": [["ffffffffffffffff", 117]]},
                {"type": "removed", "tenant": "", "scope": "0000000000000002", "path": ["0000000000000003"]},
                {"type": "cleared"},
            ],
        });
        assert_eq!(serde_json::to_value(batch.wire(None)).unwrap(), wire);
        assert_eq!(Batch::read(wire.to_string().as_bytes(), None), Ok(batch));
    }

    #[test]
    fn fields_of_later_versions_are_ignored_and_bad_hashes_are_not() {
        let read = |scope: &str| {
            let wire = json!({
                "epoch": "0000000000000001", "from": 1, "next": 2, "model": "m", "age": 3,
                "events": [{"type": "removed", "scope": scope, "path": [], "medium": "tape"}],
            });
            Batch::read(wire.to_string().as_bytes(), None)
        };
        assert!(read("000000000000000a").is_ok());
        for scope in ["", "a", "000000000000000g", "+00000000000000a"] {
            assert!(read(scope).is_err(), "{scope}");
        }
        assert!("0".parse::<TenantKey>().is_err());
    }

    #[test]
    fn a_follower_asks_for_what_comes_after_and_begins_anew_where_that_is_not_to_be_had() {
        let mut follower = Follower::default();
        assert_eq!(follower.query(), "");
        let events = [stored(1), stored(2)];
        let kinds = |follower: &mut Follower, batch: &Batch| {
            let events = follower.follow(batch);
            events
                .map(|event| *event == Event::Cleared)
                .collect::<Vec<_>>()
        };
        // A full snapshot.
        let all = batch(7, 10, true, &events);
        assert_eq!(kinds(&mut follower, &all), [true, false, false]);
        assert_eq!(follower.query(), "epoch=0000000000000007&since=12");
        // A continuation.
        let more = batch(7, 12, false, &events);
        assert_eq!(kinds(&mut follower, &more), [false, false]);
        // The same batch again, and events of another epoch, do not continue it.
        for other in [more, batch(8, 14, false, &events)] {
            let mut follower = follower;
            assert_eq!(kinds(&mut follower, &other), [true]);
            assert_eq!(follower.query(), "");
        }
    }
}
