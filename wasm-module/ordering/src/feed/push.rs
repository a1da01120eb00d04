//! Messages (pushes) between gateways of different proxies, exchanged through the server of an engine's feed.
//!
//! ```text
//!   {"gateway": "1f0c…", "key": "9a3e…", "payload": "c0ffee…"}            a push, as a gateway sends and receives it
//!   {"epoch": "5c0f…", "next": 17, "others": 3, "pushes": [{…}, {…}]}    pushes that a gateway has not received yet
//! ```
//!
//! A [`Push`] has updates ([`crate::PeerUpdate`]) and the tokens that the engine has yet to compute for the gateway's
//! requests. The latter is a state, not a change: a push that is lost or received twice has no lasting effect.
//!
//! With a [`FeedKey`], all of `payload` is sealed (encrypted): names, hashes, counts. The server opens a push to check
//! it, and forwards it unchanged. Updates stay encoded here, since a server may be older than the gateways that it
//! serves.

use super::key::{FeedKey, KeyCheck};
use super::wire::agree;
use super::{Epoch, ReadError};
use crate::bytes::{BadBytes, Reader, Writer};
use crate::hexadecimal;
use serde::{Deserialize, Serialize};

/// A random number that identifies one gateway (all workers of one proxy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatewayId(pub u64);

/// A message from one gateway to the others of the same engine: the tokens that the engine has yet to compute for its
/// requests, and what it forwarded and learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// The gateway that sends the push.
    pub gateway: GatewayId,
    /// A number that no other push of this gateway has, so that no two pushes look equal when sealed (encrypted).
    pub number: u64,
    /// Hash of the settings that gateways must have in common to use each other's `updates`. All gateways use the
    /// outstanding tokens, whatever their settings.
    pub audience: u64,
    /// Estimated tokens that the engine has yet to compute for this gateway's requests.
    pub outstanding: u64,
    /// Updates about forwarded requests, oldest first, each as [`crate::PeerUpdate::encode_remote`] encodes it.
    pub updates: Vec<Vec<u8>>,
}

/// A [`Push`] as gateways send it to each other, encrypted (sealed) if they have a [`FeedKey`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedPush {
    /// The gateway that sends the push.
    pub gateway: GatewayId,
    #[serde(default)]
    key: Option<KeyCheck>,
    /// The encoded [`Push`] as hexadecimal digits. If the gateways have a [`FeedKey`], it was encrypted (sealed) with
    /// that key before.
    payload: String,
}

/// The answer of the server through which gateways exchange pushes: the pushes of other gateways that the requesting
/// gateway has not received yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pushes {
    /// The epoch (lifetime of the server) in which the position `next` is valid.
    pub epoch: Epoch,
    /// The position after these pushes in the server's queue, from which the gateway's next request continues.
    pub next: u64,
    /// Number of other gateways that are connected to the server now.
    pub others: u32,
    /// The pushes of other gateways, oldest first.
    pub pushes: Vec<SealedPush>,
}

/// The reason why a push of a gateway is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The sender and the receiver do not use the same [`FeedKey`].
    #[error(transparent)]
    Key(ReadError),
    /// `payload` is not hexadecimal, or the [`FeedKey`] does not open it.
    #[error("payload: its key does not open it")]
    Seal,
    /// `payload` exceeds [`MAX_PUSH_BYTES`] when decoded from hexadecimal digits.
    #[error("payload: {bytes} bytes, more than the limit of {limit}", limit = MAX_PUSH_BYTES)]
    TooLong {
        /// Length of the refused payload in bytes, decoded from hexadecimal digits.
        bytes: usize,
    },
    /// The push has more than [`MAX_PUSH_UPDATES`] updates about requests.
    #[error("payload: {updates} updates, more than the limit of {limit}", limit = MAX_PUSH_UPDATES)]
    TooMany {
        /// Number of updates about requests in the refused push.
        updates: usize,
    },
    /// The payload, decrypted if it was sealed, is not an encoded push.
    #[error("payload: {0}")]
    Bytes(BadBytes),
    /// The sender named inside `payload` is not the one that [`SealedPush::gateway`] names.
    #[error("gateway: another one than its push names")]
    OtherGateway,
}

impl Push {
    /// Returns the push as it is sent to other gateways, encrypted (sealed) with `key` if that is not `None`.
    #[must_use]
    pub fn sealed(&self, key: Option<&FeedKey>) -> SealedPush {
        let mut to = Writer(Vec::with_capacity(256));
        to.byte(VERSION);
        to.bytes(&self.gateway.0.to_le_bytes());
        to.bytes(&self.number.to_le_bytes());
        to.bytes(&self.audience.to_le_bytes());
        to.number(self.outstanding);
        to.list(&self.updates, |to, update| {
            to.number(update.len() as u64);
            to.bytes(update);
        });
        let bytes = match key {
            Some(key) => key.seal_bytes(&to.0),
            None => to.0,
        };
        let mut payload = String::with_capacity(2 * bytes.len());
        hexadecimal::push(&mut payload, &bytes);
        SealedPush {
            gateway: self.gateway,
            key: key.map(FeedKey::check),
            payload,
        }
    }
}

impl SealedPush {
    /// Returns the length in bytes of the hexadecimal `payload`, which is nearly that of the whole push on the wire.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.payload.len()
    }

    /// Opens (decrypts) and decodes a push. With a key it must be sealed with that key, without one it must not be
    /// sealed.
    ///
    /// # Errors
    /// Returns a [`PushError`] for any other push, and for one beyond the limits.
    pub fn open(&self, key: Option<&FeedKey>) -> Result<Push, PushError> {
        agree(key, self.key).map_err(PushError::Key)?;
        let bytes = self.payload.len() / 2;
        if bytes > MAX_PUSH_BYTES {
            return Err(PushError::TooLong { bytes });
        }
        let bytes = hexadecimal::bytes(&self.payload).ok_or(PushError::Seal)?;
        let bytes = match key {
            Some(key) => key.open_bytes(&bytes).ok_or(PushError::Seal)?,
            None => bytes,
        };
        let push = read(&bytes).map_err(PushError::Bytes)?;
        if push.updates.len() > MAX_PUSH_UPDATES {
            let updates = push.updates.len();
            return Err(PushError::TooMany { updates });
        }
        if push.gateway != self.gateway {
            return Err(PushError::OtherGateway);
        }
        Ok(push)
    }
}

impl PushError {
    /// Returns whether the push was refused because sender and receiver do not use the same [`FeedKey`].
    #[must_use]
    pub fn is_about_the_key(self) -> bool {
        matches!(self, Self::Key(_))
    }
}

fn read(bytes: &[u8]) -> Result<Push, BadBytes> {
    let mut from = Reader::new(bytes);
    if from.byte()? != VERSION {
        return Err(from.bad("version 1"));
    }
    let push = Push {
        gateway: GatewayId(from.hash()?),
        number: from.hash()?,
        audience: from.hash()?,
        outstanding: from.number()?,
        updates: from.list(Reader::blob)?,
    };
    from.end()?;
    Ok(push)
}

super::hexadecimal_id!(GatewayId, "a gateway's id is 16 hexadecimal digits");

const VERSION: u8 = 1;

/// The maximum length in bytes of the encoded payload of a push, its seal (encryption) included, before it is written
/// as hexadecimal digits.
pub const MAX_PUSH_BYTES: usize = 64 << 10;
/// The maximum number of updates about forwarded requests in one push.
pub const MAX_PUSH_UPDATES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn push(updates: Vec<Vec<u8>>) -> Push {
        Push {
            gateway: GatewayId(7),
            number: 3,
            audience: 9,
            outstanding: 1_234,
            updates,
        }
    }

    proptest! {
        #[test]
        fn a_push_opens_with_its_key_alone(
            secret in any::<Option<[u8; 32]>>(), number in any::<u64>(),
            updates in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5),
        ) {
            let key = secret.map(|secret| FeedKey::new(&secret));
            let push = Push { number, outstanding: number, ..push(updates) };
            let sealed = push.sealed(key.as_ref());
            let json = serde_json::to_vec(&sealed).unwrap();
            let read: SealedPush = serde_json::from_slice(&json).unwrap();
            prop_assert_eq!(read.open(key.as_ref()), Ok(push));
            let other = FeedKey::new(b"other");
            prop_assert!(sealed.open(Some(&other)).unwrap_err().is_about_the_key());
            if key.is_some() {
                prop_assert!(sealed.open(None).unwrap_err().is_about_the_key());
            }
        }
    }

    #[test]
    fn a_sealed_push_shows_nothing_and_no_two_look_equal() {
        let key = FeedKey::new(&[7; 32]);
        let updates = vec![b"tenant red".to_vec()];
        let mut hidden = String::new();
        hexadecimal::push(&mut hidden, b"tenant red");
        let open = serde_json::to_string(&push(updates.clone()).sealed(None)).unwrap();
        assert!(open.contains(&hidden));
        let one = push(updates);
        let two = Push {
            number: 4,
            ..one.clone()
        };
        let [one, two] = [one, two].map(|push| push.sealed(Some(&key)));
        assert!(!serde_json::to_string(&one).unwrap().contains(&hidden));
        assert_ne!(one.payload[..40], two.payload[..40]);
    }

    #[test]
    fn a_push_that_is_changed_too_long_or_of_another_gateway_is_an_error_that_says_so() {
        let key = FeedKey::new(&[7; 32]);
        let refusal = |payload: &str, key: Option<&FeedKey>| {
            let sealed = push(Vec::new()).sealed(key);
            let payload = payload.to_owned();
            SealedPush { payload, ..sealed }.open(key).unwrap_err()
        };
        for words in ["", "00", "0", "zz", &"00".repeat(40)] {
            assert_eq!(refusal(words, Some(&key)), PushError::Seal);
        }
        assert!(refusal("", None).to_string().contains("more bytes"));
        assert!(refusal("02", None).to_string().contains("version 1"));
        let long = refusal(&"0".repeat(2 * MAX_PUSH_BYTES + 2), None).to_string();
        assert!(
            long.contains("65537 bytes, more than the limit of 65536"),
            "{long}"
        );
        let many = push(vec![Vec::new(); MAX_PUSH_UPDATES + 1]).sealed(None);
        let many = many.open(None).unwrap_err().to_string();
        assert!(
            many.contains("257 updates, more than the limit of 256"),
            "{many}"
        );
        let sealed = push(Vec::new()).sealed(Some(&key));
        let renamed = SealedPush {
            gateway: GatewayId(8),
            ..sealed
        };
        assert_eq!(renamed.open(Some(&key)), Err(PushError::OtherGateway));
    }
}
