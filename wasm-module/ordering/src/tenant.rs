//! The tenant of a request: what the gateway keeps apart, and what the engine keeps apart.

use crate::feed::TenantKey;

/// The tenant of a request. Trees, policies and memories of chats are kept for every tenant and model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant<'a> {
    /// The gateway's name for the tenant. The default, the empty name, is that of all requests where tenants are not
    /// told apart.
    pub name: &'a str,
    /// [`TenantKey::of`] the salt that the engine gets with the request; the default stands for no salt.
    ///
    /// An engine shares no KV state between salts, so neither do trees. Its feed names tenants by this key alone.
    pub key: TenantKey,
}

impl<'a> Tenant<'a> {
    /// Returns the tenant of that name, whose requests are sent without a salt.
    #[must_use]
    pub fn named(name: &'a str) -> Self {
        Self {
            name,
            key: TenantKey::default(),
        }
    }
}
