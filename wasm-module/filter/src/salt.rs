//! The salts that keep tenants apart in the engine's prefix cache.
//!
//! ```text
//!   salt = hex(HMAC-SHA-256(key, "foreword cache salt 1" ‖ 0 ‖ length of the name, 8 bytes ‖ name))
//! ```
//!
//! Without the key, a tenant's salt cannot be computed from its name, nor can salts be distinguished from random
//! strings. All salts have one length, so none is the beginning of another. All workers and gateways with one key
//! derive the same salts; another key means another engine cache for all tenants.

use std::fmt;

use foreword_ordering::feed::TenantKey;
use foreword_ordering::{Tenant, hexadecimal};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Derives cache salts from tenants' names.
pub(crate) struct Salts {
    keyed: Hmac<Sha256>,
}

/// A tenant's name and, if the configuration enables cache salts, the tenant's salt.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    name: String,
    salt: Option<String>,
}

impl Salts {
    /// Returns a deriver of salts with the secret `key` of any length. `None` never occurs, since HMAC accepts every
    /// length.
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        let mut keyed = Hmac::new_from_slice(key).ok()?;
        keyed.update(b"foreword cache salt 1\0");
        Some(Self { keyed })
    }

    fn of(&self, name: &str) -> String {
        let mut mac = self.keyed.clone();
        mac.update(&(name.len() as u64).to_be_bytes());
        mac.update(name.as_bytes());
        let mut salt = String::new();
        hexadecimal::push(&mut salt, &mac.finalize().into_bytes());
        salt
    }
}

impl Identity {
    pub(crate) fn new(name: String, salts: Option<&Salts>) -> Self {
        Self {
            salt: salts.map(|salts| salts.of(&name)),
            name,
        }
    }

    pub(crate) fn salt(&self) -> Option<&str> {
        self.salt.as_deref()
    }

    /// Returns the tenant as the ordering core tells tenants apart: by its name, and by a hash of its cache salt (the
    /// default key if the configuration enables no cache salts).
    pub(crate) fn tenant(&self) -> Tenant<'_> {
        Tenant {
            name: &self.name,
            key: self.salt().map_or_else(TenantKey::default, TenantKey::of),
        }
    }
}

/// Prints only the type's name: neither salt nor tenant name.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn salt(key: &[u8], name: &str) -> String {
        Salts::new(key).unwrap().of(name)
    }

    #[test]
    fn the_derivation_is_fixed() {
        // printf 'foreword cache salt 1\0\0\0\0\0\0\0\0\4acme' | openssl dgst -sha256 -mac hmac -macopt hexkey:00…1f
        let key: Vec<u8> = (0..32).collect();
        assert_eq!(
            salt(&key, "acme"),
            "ee064e9ddbff2bff7bda62013265502b2d61f9056e40c96c0097b0a9d57b184f"
        );
    }

    #[test]
    fn names_and_keys_tell_salts_apart() {
        let names = ["", "a", "b", "aa", "a\0", "acme", "ACME"];
        let keys = [[0; 32], [1; 32]];
        let salts = keys
            .iter()
            .flat_map(|key| names.map(|name| salt(key, name)));
        let mut salts: Vec<_> = salts.collect();
        assert!(salts.iter().all(|salt| salt.len() == 64));
        salts.sort();
        salts.dedup();
        assert_eq!(salts.len(), 14);
    }

    #[test]
    fn a_tenants_key_is_that_of_its_salt() {
        let salts = Salts::new(&[7; 32]).unwrap();
        let identity = Identity::new("acme".into(), Some(&salts));
        assert_eq!(identity.tenant().key, TenantKey::of(&salts.of("acme")));
        let plain = Identity::new("acme".into(), None);
        assert_eq!(
            (plain.salt(), plain.tenant().key),
            (None, TenantKey::default())
        );
    }
}
