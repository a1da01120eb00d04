//! Ids that the server gives.

use std::hash::{BuildHasher, RandomState};

/// 128 bits that nobody can guess: std keys its hashers at random.
pub(crate) fn random_id() -> String {
    let half = || RandomState::new().hash_one(());
    format!("{:016x}{:016x}", half(), half())
}
