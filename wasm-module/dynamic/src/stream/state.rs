//! Further data on a request: filter state for access logs, and attributes.
#![allow(
    unsafe_code,
    reason = "calls into Envoy, each with objects that Envoy gave to the running hook"
)]

use foreword_filter::HostError;

use super::{Envoy, NO_SUCH_THING, Scope, bytes, refused};
use crate::abi::{self, EnvoyBuffer, ModuleBuffer};

impl Envoy<'_> {
    /// Writes access-log fields to filter state, unless the first one is already there.
    pub(super) fn write_fields(&self, fields: &[(&str, String)]) -> Result<(), HostError> {
        const CALL: &str = "set_log_fields";
        let filter = self.filter(CALL)?;
        // Envoy uses these names for the fields that a Wasm filter writes, so one log format serves both shells.
        let key = |name| format!("wasm.foreword.{name}");
        let Some((first, _)) = fields.first() else {
            return Ok(());
        };
        // SAFETY: `filter` is the running hook's.
        let known = unsafe {
            let key = key(first);
            abi::envoy_dynamic_module_callback_http_has_filter_state(
                filter,
                ModuleBuffer::of(key.as_bytes()),
            )
        };
        if known {
            return Ok(());
        }
        for (name, value) in fields {
            let key = key(name);
            // SAFETY: `filter` is the running hook's; Envoy copies key and value.
            let done = unsafe {
                abi::envoy_dynamic_module_callback_http_set_filter_state_bytes(
                    filter,
                    ModuleBuffer::of(key.as_bytes()),
                    ModuleBuffer::of(value.as_bytes()),
                )
            };
            if !done {
                return Err(refused(CALL, NO_SUCH_THING));
            }
        }
        Ok(())
    }

    /// Returns the attribute `upstream.address`, the only one that the filter reads; `None` for any other.
    pub(super) fn attribute(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError> {
        let (Scope::Request(filter), ["upstream", "address"]) = (self.scope, path) else {
            return Ok(None);
        };
        let mut value = EnvoyBuffer::NOTHING;
        // SAFETY: `filter` is the running hook's; `value` is written before the call returns, and copied at once.
        unsafe {
            let found = abi::envoy_dynamic_module_callback_http_filter_get_attribute_string(
                filter,
                abi::UPSTREAM_ADDRESS,
                &raw mut value,
            );
            Ok(found.then(|| bytes(&value).to_vec()))
        }
    }
}
