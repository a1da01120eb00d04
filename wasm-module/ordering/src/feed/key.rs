//! The secret key that an engine's host and its gateways share, and how hashes are sealed (encrypted) with it.
//!
//! ```text
//!   two keys of 128 bits     HMAC-SHA-256(key, "foreword feed seal 1")           first half: tags, second half: masks
//!   the key's check value    HMAC-SHA-256(key, "foreword feed check 1")          first 64 bits, in every batch
//!   a reader's token         HMAC-SHA-256(key, "foreword feed reader 1")         as `authorization: Bearer …`
//!
//!   tag    = SipHash-2-4-128(tags, kind ‖ tenant ‖ value), first 64 bits
//!   sealed = tag ‖ (value ⊕ SipHash-2-4-128(masks, kind ‖ tag))
//!
//!   any bytes   tag of 128 bits over kind ‖ bytes; masked with SipHash-2-4-128(masks, kind ‖ tag ‖ 0, 1, 2, …)
//! ```
//!
//! This is the synthetic-IV construction (Rogaway and Shrimpton, EUROCRYPT 2006) with SipHash as the pseudorandom
//! function. Equal values of one tenant look equal, as a cache's events require. Without the key, everything else looks
//! random, and the same document looks different under another tenant. With the key the value can be recovered, so a
//! follower needs no table from sealed to known values: opening takes two hashes and no memory. A value that was sealed
//! with another key, or forged, does not open, except with probability 2⁻⁶⁴. HMAC would serve as well at some fifty
//! times the cost, which matters when 40,000 documents arrive at once on a proxy's worker.

use super::TenantKey;
use crate::hexadecimal;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fmt;
use std::hash::Hasher;

/// The key with which an engine's host and its gateways seal (encrypt) the feed of cache events.
#[derive(Clone, PartialEq, Eq)]
pub struct FeedKey {
    tags: [u8; 16],
    masks: [u8; 16],
    check: KeyCheck,
    token: String,
}

/// 64 bits that identify a [`FeedKey`] and reveal nothing else about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyCheck(pub u64);

/// A tenant's key in sealed (encrypted) form. The default stands for requests without a `cache_salt` and is not sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SealedTenant {
    pub(super) tag: u64,
    pub(super) masked: u128,
}

/// The kind of a sealed (encrypted) value; a value of one kind does not open as another.
#[derive(Clone, Copy)]
enum Kind {
    Tenant = 1,
    Scope = 2,
    Document = 3,
    Bytes = 4,
}

impl FeedKey {
    /// Derives the key from a secret of any length.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        let seal = derive(secret, b"foreword feed seal 1");
        let check = derive(secret, b"foreword feed check 1");
        let mut token = String::new();
        hexadecimal::push(&mut token, &derive(secret, b"foreword feed reader 1"));
        let (tags, masks) = halves(&seal);
        let (check, _) = check.split_first_chunk().unwrap_or((&[0; 8], &[]));
        Self {
            tags,
            masks,
            check: KeyCheck(u64::from_be_bytes(*check)),
            token,
        }
    }

    /// Derives the key from a secret of 64 to 256 hexadecimal digits, as `openssl rand -hex 32` prints one; `None` for
    /// any other text.
    #[must_use]
    pub fn from_hex(digits: &str) -> Option<Self> {
        let is_long = (2 * MIN_BYTES..=2 * MAX_BYTES).contains(&digits.len());
        let key = is_long.then(|| hexadecimal::bytes(digits)).flatten()?;
        Some(Self::new(&key))
    }

    /// Returns the check value, which identifies this key without revealing it.
    #[must_use]
    pub fn check(&self) -> KeyCheck {
        self.check
    }

    /// Returns the bearer token by which an engine's host recognises gateways that have the key.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Seals (encrypts) a tenant's key; the default, of requests without a salt, stays the default.
    #[must_use]
    pub fn seal_tenant(&self, tenant: TenantKey) -> SealedTenant {
        if tenant == TenantKey::default() {
            return SealedTenant::default();
        }
        let tag = self.tag(Kind::Tenant, TenantKey::default(), tenant.0);
        let masked = tenant.0 ^ self.mask(Kind::Tenant, tag);
        SealedTenant { tag, masked }
    }

    /// Opens (decrypts) a sealed tenant's key; `None` if it was sealed with another key or forged.
    #[must_use]
    pub fn open_tenant(&self, sealed: SealedTenant) -> Option<TenantKey> {
        if sealed == SealedTenant::default() {
            return Some(TenantKey::default());
        }
        let value = sealed.masked ^ self.mask(Kind::Tenant, sealed.tag);
        let is_ours = self.tag(Kind::Tenant, TenantKey::default(), value) == sealed.tag;
        is_ours.then_some(TenantKey(value))
    }

    /// Seals (encrypts) a tenant's scope, the hash of a prompt before documents. Returns its tag (a synthetic IV) and
    /// the scope, XORed with a mask.
    pub(super) fn seal_scope(&self, tenant: TenantKey, scope: u64) -> (u64, u64) {
        let tag = self.tag(Kind::Scope, tenant, scope.into());
        (tag, scope ^ low(self.mask(Kind::Scope, tag)))
    }

    pub(super) fn open_scope(&self, tenant: TenantKey, (tag, masked): (u64, u64)) -> Option<u64> {
        let scope = masked ^ low(self.mask(Kind::Scope, tag));
        (self.tag(Kind::Scope, tenant, scope.into()) == tag).then_some(scope)
    }

    /// Seals (encrypts) a tenant's document. Returns its tag (a synthetic IV), and its fingerprint and its token count,
    /// both XORed with a mask.
    pub(super) fn seal_document(
        &self,
        tenant: TenantKey,
        fingerprint: u64,
        tokens: u32,
    ) -> (u64, u64, u32) {
        let tag = self.tag(Kind::Document, tenant, document(fingerprint, tokens));
        let mask = self.mask(Kind::Document, tag);
        (tag, fingerprint ^ low(mask), tokens ^ high(mask))
    }

    pub(super) fn open_document(
        &self,
        tenant: TenantKey,
        (tag, fingerprint, tokens): (u64, u64, Option<u32>),
    ) -> Option<(u64, u32)> {
        let mask = self.mask(Kind::Document, tag);
        let fingerprint = fingerprint ^ low(mask);
        let tokens = tokens.map_or(0, |tokens| tokens ^ high(mask));
        let is_ours = self.tag(Kind::Document, tenant, document(fingerprint, tokens)) == tag;
        is_ours.then_some((fingerprint, tokens))
    }

    /// Seals (encrypts) bytes of any length; the result is [`SEAL_BYTES`] longer. Equal bytes give equal results.
    pub(super) fn seal_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let tag = self.tag_of_bytes(bytes);
        let mut sealed = Vec::with_capacity(bytes.len() + SEAL_BYTES);
        sealed.extend_from_slice(&tag.to_le_bytes());
        sealed.extend_from_slice(bytes);
        if let Some((_, masked)) = sealed.split_first_chunk_mut::<SEAL_BYTES>() {
            self.mask_bytes(tag, masked);
        }
        sealed
    }

    /// Opens (decrypts) sealed bytes; `None` if they were sealed with another key or modified.
    pub(super) fn open_bytes(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (tag, masked) = sealed.split_first_chunk::<SEAL_BYTES>()?;
        let tag = u128::from_le_bytes(*tag);
        let mut bytes = masked.to_vec();
        self.mask_bytes(tag, &mut bytes);
        (self.tag_of_bytes(&bytes) == tag).then_some(bytes)
    }

    fn tag_of_bytes(&self, bytes: &[u8]) -> u128 {
        let mut hasher = SipHasher24::new_with_key(&self.tags);
        hasher.write(&[Kind::Bytes as u8]);
        hasher.write(bytes);
        hasher.finish128().as_u128()
    }

    /// Encrypts `bytes` in place: XORs them with a mask (keystream) that is derived from `tag`. A second call with the
    /// same tag decrypts them.
    fn mask_bytes(&self, tag: u128, bytes: &mut [u8]) {
        for (number, block) in (0_u64..).zip(bytes.chunks_mut(SEAL_BYTES)) {
            let mut hasher = SipHasher24::new_with_key(&self.masks);
            hasher.write(&[Kind::Bytes as u8]);
            hasher.write(&tag.to_le_bytes());
            hasher.write(&number.to_le_bytes());
            let mask = hasher.finish128().as_u128().to_le_bytes();
            for (byte, mask) in block.iter_mut().zip(mask) {
                *byte ^= mask;
            }
        }
    }

    fn tag(&self, kind: Kind, tenant: TenantKey, value: u128) -> u64 {
        let mut input = [0; 33];
        let (first, rest) = input.split_at_mut(1);
        first.copy_from_slice(&[kind as u8]);
        let (whose, what) = rest.split_at_mut(16);
        whose.copy_from_slice(&tenant.to_bytes());
        what.copy_from_slice(&value.to_le_bytes());
        SipHasher24::new_with_key(&self.tags).hash(&input).h1
    }

    fn mask(&self, kind: Kind, tag: u64) -> u128 {
        let mut input = [0; 9];
        let (first, rest) = input.split_at_mut(1);
        first.copy_from_slice(&[kind as u8]);
        rest.copy_from_slice(&tag.to_le_bytes());
        SipHasher24::new_with_key(&self.masks)
            .hash(&input)
            .as_u128()
    }
}

/// Prints only the check value, which may be public.
impl fmt::Debug for FeedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FeedKey({:016x})", self.check.0)
    }
}

/// Derives 32 bytes from `secret` by HMAC-SHA-256; `label` names their purpose, and each purpose gets other bytes. HMAC
/// accepts secrets of every length, so this cannot fail.
fn derive(secret: &[u8], label: &[u8]) -> [u8; 32] {
    Hmac::<Sha256>::new_from_slice(secret)
        .map(|mut mac| {
            mac.update(label);
            mac.finalize().into_bytes().into()
        })
        .unwrap_or_default()
}

fn halves(bytes: &[u8; 32]) -> ([u8; 16], [u8; 16]) {
    match bytes.as_chunks::<16>() {
        ([first, second], _) => (*first, *second),
        _ => ([0; 16], [0; 16]),
    }
}

fn document(fingerprint: u64, tokens: u32) -> u128 {
    u128::from(tokens) << 64 | u128::from(fingerprint)
}

fn low(bits: u128) -> u64 {
    (bits & u128::from(u64::MAX)) as u64
}

fn high(bits: u128) -> u32 {
    (bits >> 64 & u128::from(u32::MAX)) as u32
}

const MIN_BYTES: usize = 32;
const MAX_BYTES: usize = 128;
/// Length of the tag that sealing (encryption) puts before bytes of any length, in bytes.
pub(super) const SEAL_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_derivation_is_fixed() {
        // printf 'foreword feed reader 1' | openssl dgst -sha256 -mac hmac -macopt hexkey:00…1f
        let key: Vec<u8> = (0..32).collect();
        let key = FeedKey::new(&key);
        assert_eq!(
            key.token(),
            "2e2b0c3faaf3b29f246efc1d9a7406f34fe873e89d1fb76a3e3c0543d64f8528"
        );
        assert_eq!(key.check(), KeyCheck(0x9a07_52a0_fa3a_8deb));
        // A second implementation, in Python, gave the same values.
        let (tag, fingerprint, tokens) = key.seal_document(TenantKey::of("salt"), 3, 117);
        assert_eq!(
            (tag, fingerprint, tokens),
            (0xa6b3_a17f_b1ba_1c36, 0x2301_0d85_58ad_d5dd, 3_496_572_518)
        );
    }

    #[test]
    fn a_key_is_read_from_enough_digits_and_never_shown() {
        let key = FeedKey::from_hex(&"5a".repeat(32)).unwrap();
        assert_eq!(key, FeedKey::new(&[0x5a; 32]));
        assert!(!format!("{key:?}").contains(key.token()));
        for text in [
            "",
            "5a",
            &"5a".repeat(31),
            &"5".repeat(65),
            &"zz".repeat(32),
        ] {
            assert_eq!(FeedKey::from_hex(text), None, "{text}");
        }
    }

    #[test]
    fn a_document_looks_different_under_every_tenant_key_and_length() {
        let keys = [[1; 32], [2; 32]].map(|key| FeedKey::new(&key));
        let mut seen: Vec<u64> = Vec::new();
        for key in &keys {
            for tenant in ["", "a", "b"].map(TenantKey::of) {
                for tokens in [1, 2] {
                    let (tag, fingerprint, masked) = key.seal_document(tenant, 77, tokens);
                    assert_ne!((fingerprint, masked), (77, tokens));
                    seen.extend([tag, fingerprint]);
                }
            }
        }
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_with_its_key_and_tenant_alone(
            fingerprint: u64, tokens: u32, salt in "[a-z]{0,3}", bit in 0..64_u32,
        ) {
            let [key, other] = [[1; 32], [2; 32]].map(|key| FeedKey::new(&key));
            let tenant = TenantKey::of(&salt);
            let (tag, masked, length) = key.seal_document(tenant, fingerprint, tokens);
            let sealed = (tag, masked, Some(length));
            prop_assert_eq!(key.open_document(tenant, sealed), Some((fingerprint, tokens)));
            prop_assert_eq!(other.open_document(tenant, sealed), None);
            prop_assert_eq!(key.open_document(TenantKey::of("other"), sealed), None);
            let forged = (tag, masked ^ 1 << bit, Some(length));
            prop_assert_eq!(key.open_document(tenant, forged), None);

            let scope = key.seal_scope(tenant, fingerprint);
            prop_assert_eq!(key.open_scope(tenant, scope), Some(fingerprint));
            prop_assert_eq!(other.open_scope(tenant, scope), None);
            let sealed = key.seal_tenant(tenant);
            prop_assert_eq!(key.open_tenant(sealed), Some(tenant));
            prop_assert_eq!(other.open_tenant(sealed).is_some(), salt.is_empty());
        }

        #[test]
        fn sealed_bytes_open_with_their_key_alone_and_unchanged_alone(
            secret in any::<[u8; 32]>(), bytes in prop::collection::vec(any::<u8>(), 0..100), at in any::<usize>(),
        ) {
            let (key, other) = (FeedKey::new(&secret), FeedKey::new(b"other"));
            let mut sealed = key.seal_bytes(&bytes);
            prop_assert_eq!(sealed.len(), bytes.len() + SEAL_BYTES);
            prop_assert_eq!(other.open_bytes(&sealed), None);
            prop_assert_eq!(key.open_bytes(&sealed[1..]), None);
            prop_assert_eq!(key.open_bytes(&sealed), Some(bytes));
            let at = at % sealed.len();
            sealed[at] ^= 1;
            prop_assert_eq!(key.open_bytes(&sealed), None);
        }
    }
}
