//! [Batches](Batch) of cache events in JSON: as they are, or sealed (encrypted) with a [`FeedKey`].
//!
//! | | not sealed | sealed |
//! | --- | --- | --- |
//! | `key` | `null` | the key's check value, 16 digits |
//! | `tenant` | 32 digits, or none | 48 digits, or none |
//! | `scope`, a document | 16 digits | 32 digits: tag, then masked bits |
//! | a stored document's tokens | the number | the number, masked |

use super::key::{FeedKey, KeyCheck, SealedTenant};
use super::{Batch, Epoch, Event, Pages, TenantKey};
use crate::document::Fingerprint;
use crate::hexadecimal;
use crate::tree::Scope;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A [`Batch`] of cache events as it is sent to gateways, encrypted (sealed) or not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wire {
    epoch: Epoch,
    from: u64,
    next: u64,
    #[serde(default)]
    reset: bool,
    model: String,
    #[serde(default)]
    pages: Pages,
    #[serde(default)]
    key: Option<KeyCheck>,
    events: Vec<WireEvent>,
}

/// The reason why bytes cannot be read as a [`Batch`] of cache events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The bytes are not JSON in the shape of a [`Batch`].
    #[error("no batch of events: line {line}, column {column}")]
    Json {
        /// Line of the error in the JSON, from 1.
        line: usize,
        /// Column of the error in the JSON, as serde counts it.
        column: usize,
    },
    /// A hash is malformed, or was not sealed (encrypted) with the key that the batch names.
    #[error("no batch of events: a hash that its key does not open")]
    Hash,
    /// The feed of cache events is sealed (encrypted), and the reader has no key.
    #[error("the feed is sealed, and no key is configured for it")]
    Sealed,
    /// The reader has a key, and the feed of cache events is not sealed (encrypted).
    #[error("the feed is not sealed, although a key is configured for it")]
    NotSealed,
    /// The feed of cache events is sealed (encrypted) with another key than the reader's.
    #[error("the feed is sealed with another key")]
    OtherKey,
}

impl ReadError {
    /// Returns whether reading failed because the engine's host and the reader do not use the same [`FeedKey`].
    #[must_use]
    pub fn is_about_the_key(self) -> bool {
        matches!(self, Self::Sealed | Self::NotSealed | Self::OtherKey)
    }
}

impl Batch {
    /// Returns the batch as it is sent to gateways, encrypted (sealed) with `key` if that is not `None`.
    #[must_use]
    pub fn wire(&self, key: Option<&FeedKey>) -> Wire {
        Wire {
            epoch: self.epoch,
            from: self.from,
            next: self.next,
            reset: self.reset,
            model: self.model.clone(),
            pages: self.pages,
            key: key.map(FeedKey::check),
            events: (self.events.iter())
                .map(|event| WireEvent::of(event, key))
                .collect(),
        }
    }

    /// Reads a batch from JSON. With a key it must be sealed (encrypted) with that key, without one it must not be
    /// sealed.
    ///
    /// # Errors
    /// Returns a [`ReadError`] for any other bytes.
    pub fn read(json: &[u8], key: Option<&FeedKey>) -> Result<Self, ReadError> {
        let wire: Wire = serde_json::from_slice(json).map_err(|error| ReadError::Json {
            line: error.line(),
            column: error.column(),
        })?;
        wire.open(key)
    }
}

/// Checks that a reader can read a feed of cache events: that the reader's `key` (`None` if it has none) is the one
/// whose check value the feed's batches name in `theirs` (`None` if the feed is not sealed, that is, encrypted).
/// Returns an error if the keys differ or only one side has a key: a reader with a key refuses an unsealed feed.
pub(super) fn agree(key: Option<&FeedKey>, theirs: Option<KeyCheck>) -> Result<(), ReadError> {
    match (key.map(FeedKey::check), theirs) {
        (None, Some(_)) => Err(ReadError::Sealed),
        (Some(_), None) => Err(ReadError::NotSealed),
        (ours, theirs) if ours != theirs => Err(ReadError::OtherKey),
        _ => Ok(()),
    }
}

impl Wire {
    fn open(self, key: Option<&FeedKey>) -> Result<Batch, ReadError> {
        agree(key, self.key)?;
        let events = self.events.into_iter().map(|event| event.open(key));
        Ok(Batch {
            epoch: self.epoch,
            from: self.from,
            next: self.next,
            reset: self.reset,
            model: self.model,
            pages: self.pages,
            events: events.collect::<Option<_>>().ok_or(ReadError::Hash)?,
        })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireEvent {
    Stored {
        #[serde(default)]
        tenant: Digits,
        scope: Digits,
        path: Vec<(Digits, u32)>,
    },
    Removed {
        #[serde(default)]
        tenant: Digits,
        scope: Digits,
        path: Vec<Digits>,
    },
    Cleared,
}

impl WireEvent {
    fn of(event: &Event, key: Option<&FeedKey>) -> Self {
        match event {
            Event::Stored {
                tenant,
                scope,
                path,
            } => Self::Stored {
                tenant: Digits::tenant(*tenant, key),
                scope: Digits::scope(*tenant, *scope, key),
                path: (path.iter())
                    .map(|&(document, tokens)| Digits::document(*tenant, document, tokens, key))
                    .collect(),
            },
            Event::Removed {
                tenant,
                scope,
                path,
            } => Self::Removed {
                tenant: Digits::tenant(*tenant, key),
                scope: Digits::scope(*tenant, *scope, key),
                path: (path.iter())
                    .map(|&document| Digits::document(*tenant, document, 0, key).0)
                    .collect(),
            },
            Event::Cleared => Self::Cleared,
        }
    }

    fn open(self, key: Option<&FeedKey>) -> Option<Event> {
        Some(match self {
            Self::Stored {
                tenant,
                scope,
                path,
            } => {
                let tenant = tenant.to_tenant(key)?;
                Event::Stored {
                    tenant,
                    scope: scope.to_scope(tenant, key)?,
                    path: (path.into_iter())
                        .map(|(document, tokens)| document.to_document(tenant, Some(tokens), key))
                        .collect::<Option<_>>()?,
                }
            }
            Self::Removed {
                tenant,
                scope,
                path,
            } => {
                let tenant = tenant.to_tenant(key)?;
                let documents = path.into_iter().map(|document| {
                    let (document, _) = document.to_document(tenant, None, key)?;
                    Some(document)
                });
                Event::Removed {
                    tenant,
                    scope: scope.to_scope(tenant, key)?,
                    path: documents.collect::<Option<_>>()?,
                }
            }
            Self::Cleared => Event::Cleared,
        })
    }
}

/// A hash of up to 24 bytes, possibly with the tag of its seal (encryption), as hexadecimal digits in JSON. Read
/// without an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Digits {
    #[default]
    None,
    Eight(u64),
    Sixteen(u128),
    TwentyFour(u64, u128),
}

impl Digits {
    fn tenant(tenant: TenantKey, key: Option<&FeedKey>) -> Self {
        match key {
            _ if tenant == TenantKey::default() => Self::None,
            None => Self::Sixteen(tenant.0),
            Some(key) => {
                let SealedTenant { tag, masked } = key.seal_tenant(tenant);
                Self::TwentyFour(tag, masked)
            }
        }
    }

    fn to_tenant(self, key: Option<&FeedKey>) -> Option<TenantKey> {
        match (self, key) {
            (Self::None, _) => Some(TenantKey::default()),
            (Self::Sixteen(bits), None) => Some(TenantKey(bits)),
            (Self::TwentyFour(tag, masked), Some(key)) => {
                key.open_tenant(SealedTenant { tag, masked })
            }
            _ => None,
        }
    }

    fn scope(tenant: TenantKey, scope: Scope, key: Option<&FeedKey>) -> Self {
        key.map_or(Self::Eight(scope.0), |key| {
            Self::pair(key.seal_scope(tenant, scope.0))
        })
    }

    fn to_scope(self, tenant: TenantKey, key: Option<&FeedKey>) -> Option<Scope> {
        match (self, key) {
            (Self::Eight(bits), None) => Some(Scope(bits)),
            (Self::Sixteen(bits), Some(key)) => key.open_scope(tenant, split(bits)).map(Scope),
            _ => None,
        }
    }

    fn document(
        tenant: TenantKey,
        document: Fingerprint,
        tokens: u32,
        key: Option<&FeedKey>,
    ) -> (Self, u32) {
        let Some(key) = key else {
            return (Self::Eight(document.0), tokens);
        };
        let (tag, masked, tokens) = key.seal_document(tenant, document.0, tokens);
        (Self::pair((tag, masked)), tokens)
    }

    fn to_document(
        self,
        tenant: TenantKey,
        tokens: Option<u32>,
        key: Option<&FeedKey>,
    ) -> Option<(Fingerprint, u32)> {
        match (self, key) {
            (Self::Eight(bits), None) => Some((Fingerprint(bits), tokens.unwrap_or(0))),
            (Self::Sixteen(bits), Some(key)) => {
                let (tag, masked) = split(bits);
                let (document, tokens) = key.open_document(tenant, (tag, masked, tokens))?;
                Some((Fingerprint(document), tokens))
            }
            _ => None,
        }
    }

    fn pair((tag, masked): (u64, u64)) -> Self {
        Self::Sixteen(u128::from(tag) << 64 | u128::from(masked))
    }

    fn parse(text: &str) -> Option<Self> {
        if !hexadecimal::all_digits(text) {
            return None;
        }
        Some(match text.len() {
            0 => Self::None,
            16 => Self::Eight(u64::from_str_radix(text, 16).ok()?),
            32 => Self::Sixteen(u128::from_str_radix(text, 16).ok()?),
            48 => {
                let (tag, masked) = text.split_at_checked(16)?;
                Self::TwentyFour(
                    u64::from_str_radix(tag, 16).ok()?,
                    u128::from_str_radix(masked, 16).ok()?,
                )
            }
            _ => return None,
        })
    }
}

fn split(bits: u128) -> (u64, u64) {
    ((bits >> 64) as u64, (bits & u128::from(u64::MAX)) as u64)
}

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Eight(bits) => write!(f, "{bits:016x}"),
            Self::Sixteen(bits) => write!(f, "{bits:032x}"),
            Self::TwentyFour(tag, masked) => write!(f, "{tag:016x}{masked:032x}"),
        }
    }
}

impl Serialize for Digits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Digits;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("16, 32 or 48 hexadecimal digits, or none")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Digits, E> {
                Digits::parse(text).ok_or_else(|| E::custom("expected hexadecimal digits"))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl Serialize for KeyCheck {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Digits::Eight(self.0))
    }
}

impl<'de> Deserialize<'de> for KeyCheck {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Digits::deserialize(deserializer)? {
            Digits::Eight(bits) => Ok(Self(bits)),
            _ => Err(D::Error::custom("expected 16 hexadecimal digits")),
        }
    }
}

impl fmt::Display for SealedTenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return Ok(());
        }
        Digits::TwentyFour(self.tag, self.masked).fmt(f)
    }
}

impl std::str::FromStr for SealedTenant {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match Digits::parse(text) {
            Some(Digits::None) => Ok(Self::default()),
            Some(Digits::TwentyFour(tag, masked)) => Ok(Self { tag, masked }),
            _ => Err("a tenant of a sealed feed is empty or 48 hexadecimal digits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn batch(salt: &str, scope: u64, path: &[(u64, u32)]) -> Batch {
        let (tenant, scope) = (TenantKey::of(salt), Scope(scope));
        let documents = path.iter().map(|&(bits, _)| Fingerprint(bits));
        let documents: Vec<Fingerprint> = documents.collect();
        let counted = path.iter().map(|&(_, tokens)| tokens);
        Batch {
            epoch: Epoch(9),
            from: 40,
            next: 43,
            reset: false,
            model: "m".into(),
            pages: Pages::default(),
            events: vec![
                Event::Stored {
                    tenant,
                    scope,
                    path: documents.iter().copied().zip(counted).collect(),
                },
                Event::Removed {
                    tenant,
                    scope,
                    path: documents,
                },
                Event::Cleared,
            ],
        }
    }

    fn written(batch: &Batch, key: Option<&FeedKey>) -> Vec<u8> {
        serde_json::to_vec(&batch.wire(key)).unwrap()
    }

    proptest! {
        #[test]
        fn a_batch_comes_back_through_either_form(
            salt in "[a-z]{0,2}", scope: u64, path in prop::collection::vec(any::<(u64, u32)>(), 0..5),
        ) {
            let batch = batch(&salt, scope, &path);
            let key = FeedKey::new(&[7; 32]);
            for key in [None, Some(&key)] {
                let read = Batch::read(&written(&batch, key), key);
                prop_assert_eq!(read.as_ref(), Ok(&batch));
            }
        }
    }

    #[test]
    fn nothing_that_tells_of_documents_is_in_a_sealed_batch() {
        let batch = batch(
            "salt",
            0x1122_3344_5566_7788,
            &[(0x99aa_bbcc_ddee_ff00, 4321)],
        );
        let open = String::from_utf8(written(&batch, None)).unwrap();
        let key = FeedKey::new(&[7; 32]);
        let sealed = String::from_utf8(written(&batch, Some(&key))).unwrap();
        let tenant = TenantKey::of("salt").to_string();
        for told in ["1122334455667788", "99aabbccddeeff00", "4321", &tenant] {
            assert!(open.contains(told), "{open}");
            assert!(!sealed.contains(told), "{sealed}");
        }
        let sealed: Value = serde_json::from_str(&sealed).unwrap();
        assert_eq!(sealed["key"], format!("{:016x}", key.check().0));
        let whose = key.seal_tenant(TenantKey::of("salt"));
        assert_eq!(sealed["events"][0]["tenant"], whose.to_string());
        assert_eq!(whose.to_string().parse(), Ok(whose));
    }

    #[test]
    fn sides_that_disagree_about_the_key_are_told_apart() {
        let batch = batch("salt", 1, &[(2, 3)]);
        let [key, other] = [[7; 32], [8; 32]].map(|key| FeedKey::new(&key));
        for (with, read, error) in [
            (None, Some(&key), ReadError::NotSealed),
            (Some(&key), None, ReadError::Sealed),
            (Some(&key), Some(&other), ReadError::OtherKey),
        ] {
            assert_eq!(Batch::read(&written(&batch, with), read), Err(error));
            assert!(error.is_about_the_key());
        }
        // A hash sealed with another key under this key's name.
        let forged = String::from_utf8(written(&batch, Some(&other))).unwrap();
        let [ours, theirs] = [&key, &other].map(|key| format!("{:016x}", key.check().0));
        let forged = forged.replace(&theirs, &ours);
        assert_eq!(
            Batch::read(forged.as_bytes(), Some(&key)),
            Err(ReadError::Hash)
        );
        assert!(!ReadError::Hash.is_about_the_key());
    }
}
