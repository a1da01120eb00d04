//! The hash by which a page is found: the same in every run, so that a page can be found again on disk and be named to
//! other programs.
//!
//! ```text
//!   root(identity, salt) ──▶ [16 tokens] ──▶ [16 tokens] ──▶ …
//!                            h(root, tokens) h(h(root, tokens), tokens)
//! ```
//!
//! A page's KV state depends on every token before it, so its hash covers all of them. It also covers the tenant's salt
//! and the model's identity, so a page is never found by another tenant or another model. A client chooses its tokens
//! and could search for two sequences with the same hash. The hash is therefore SHA-256, truncated to 128 bits.

use crate::TokenId;
use sha2::{Digest, Sha256};

/// Hash of a full page and everything that precedes it: tokens, tenant's salt and model. 128 bits of SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageHash(pub u128);

impl PageHash {
    /// Returns the hash that stands for everything before the first page of a tenant's sequences. It depends on the
    /// tenant's `salt` and on the model's `identity`.
    pub fn root(identity: u64, salt: &str) -> Self {
        let hash = Sha256::new()
            .chain_update(identity.to_le_bytes())
            .chain_update(salt.as_bytes());
        Self::truncated(hash)
    }

    /// Returns the hash of the full page that holds `tokens` and follows the page, or the root, with this hash.
    pub fn then(self, tokens: &[TokenId]) -> Self {
        let mut hash = Sha256::new().chain_update(self.0.to_le_bytes());
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        Self::truncated(hash)
    }

    fn truncated(hash: Sha256) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Self(u128::from_le_bytes(bytes))
    }
}

impl std::fmt::Debug for PageHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageHash({:032x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_covers_model_tenant_and_every_token_before() {
        let page = |identity, salt, pages: &[&[TokenId]]| {
            let root = PageHash::root(identity, salt);
            pages.iter().fold(root, |before, page| before.then(page))
        };
        let hashes = [
            page(1, "", &[&[1, 2]]),
            page(2, "", &[&[1, 2]]),
            page(1, "a", &[&[1, 2]]),
            page(1, "", &[&[2, 1]]),
            page(1, "", &[&[1, 2], &[1, 2]]),
            page(1, "", &[&[3, 4], &[1, 2]]),
        ];
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(hash), "hash {index} stands twice");
        }
    }

    #[test]
    fn hashes_are_the_same_in_every_run() {
        // Pages on disk are found by these hashes, so they must not change.
        let hash = PageHash::root(7, "tenant").then(&[1, 2, 3]);
        assert_eq!(
            format!("{hash:?}"),
            "PageHash(aeda744816f37eef89663e46c080105d)"
        );
    }
}
