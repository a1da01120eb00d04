//! Whose request it is: what keeps tenants apart in a gateway, and what the engine keeps apart by.

use crate::feed::TenantKey;

/// Whose request it is. Trees, policies and memories of chats are kept for every tenant and model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant<'a> {
    /// What the gateway calls the tenant; empty, the default: the one that all requests belong to where tenants are not
    /// told apart.
    pub name: &'a str,
    /// [`TenantKey::of`] the salt that the engine gets with the request; the default: none.
    ///
    /// An engine shares no KV state between salts, so neither do trees. Its feed names tenants by this key alone.
    pub key: TenantKey,
}

impl<'a> Tenant<'a> {
    /// The tenant of that name, whose requests go out without a salt.
    #[must_use]
    pub fn named(name: &'a str) -> Self {
        Self {
            name,
            key: TenantKey::default(),
        }
    }
}
