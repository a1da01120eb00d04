//! The tenant of a request, identified by the gateway's name for it and by the salt that is sent to the engine.

use crate::feed::TenantKey;

/// The tenant of a request. Each pair of tenant and model has its own knowledge trees, policy and memory of chats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant<'a> {
    /// The gateway's name for the tenant; empty, the default, for all requests if tenants are not distinguished.
    pub name: &'a str,
    /// The key of the `cache_salt` that is sent to the engine with the request (see [`TenantKey::of`]); the default key
    /// stands for no salt.
    ///
    /// Engines share no KV state between salts, so knowledge trees (documents believed to be cached) do not either. An
    /// engine's feed of cache events identifies tenants by this key.
    pub key: TenantKey,
}

impl<'a> Tenant<'a> {
    /// Returns the tenant with this name, whose requests are sent to the engine without a `cache_salt`.
    #[must_use]
    pub fn named(name: &'a str) -> Self {
        Self {
            name,
            key: TenantKey::default(),
        }
    }
}

/// Returns a string that identifies a tenant and a model, framed so that no two pairs have the same one.
pub(crate) fn key_of(tenant: Tenant<'_>, model: &str) -> String {
    let Tenant { name, key } = tenant;
    format!("{}:{name}{key};{model}", name.len())
}
