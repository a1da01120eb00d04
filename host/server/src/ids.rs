//! Ids assigned by the server.

use std::hash::{BuildHasher, RandomState};

/// 128 unguessable bits: std seeds its hashers at random.
pub(crate) fn random_id() -> String {
    let half = || RandomState::new().hash_one(());
    format!("{:016x}{:016x}", half(), half())
}
