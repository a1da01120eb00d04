//! The tenant of a request, as the gateway and the engine separate tenants.

use crate::feed::TenantKey;

/// The tenant of a request. Trees, policies and chat memories are separate for every tenant and model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant<'a> {
    /// The gateway's name for the tenant. The default, the empty name, is used for all requests if tenants are not
    /// distinguished.
    pub name: &'a str,
    /// [`TenantKey::of`] the salt sent to the engine with the request; the default stands for no salt.
    ///
    /// An engine shares no KV state between salts, so trees do not either. Its feed identifies tenants only by this key.
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

/// Returns a key for a tenant and a model, framed so that no two pairs share one.
pub(crate) fn key_of(tenant: Tenant<'_>, model: &str) -> String {
    let Tenant { name, key } = tenant;
    format!("{}:{name}{key};{model}", name.len())
}
