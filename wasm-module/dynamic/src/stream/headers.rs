//! Access to headers, and responses from the filter.
#![allow(
    unsafe_code,
    reason = "calls into Envoy, each with objects that Envoy gave to the running hook"
)]

use foreword_filter::HostError;

use super::{Envoy, NO_SUCH_THING, bytes, refused};
use crate::abi::{self, EnvoyBuffer, ModuleBuffer, ModuleHttpHeader};

impl Envoy<'_> {
    pub(super) fn header(
        &self,
        kind: u32,
        name: &str,
        at: usize,
        call: &'static str,
    ) -> Result<Option<Vec<u8>>, HostError> {
        let filter = self.filter(call)?;
        let mut value = EnvoyBuffer::NOTHING;
        let name = ModuleBuffer::of(name.as_bytes());
        // SAFETY: `filter` is the running hook's; `value` is written before the call returns, and copied before
        // anything can change the header.
        unsafe {
            let found = abi::envoy_dynamic_module_callback_http_get_header(
                filter,
                kind,
                name,
                &raw mut value,
                at,
                std::ptr::null_mut(),
            );
            Ok(found.then(|| bytes(&value).to_vec()))
        }
    }

    pub(super) fn set_header(
        &self,
        kind: u32,
        name: &str,
        value: ModuleBuffer,
        call: &'static str,
    ) -> Result<(), HostError> {
        let filter = self.filter(call)?;
        let name = ModuleBuffer::of(name.as_bytes());
        // SAFETY: `filter` is the running hook's; name and value outlive the call, which copies them.
        let done = unsafe {
            abi::envoy_dynamic_module_callback_http_set_header(filter, kind, name, value)
        };
        if done {
            Ok(())
        } else {
            Err(refused(call, NO_SUCH_THING))
        }
    }

    /// Responds to the client instead of forwarding the request.
    pub(super) fn send_response(&self, status: u16, headers: &[(String, String)], body: &[u8]) {
        let Ok(filter) = self.filter("respond") else {
            return;
        };
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let mut headers = of_headers(&headers);
        // SAFETY: `filter` is the running hook's; headers, body and details outlive the call, which copies them.
        unsafe {
            abi::envoy_dynamic_module_callback_http_send_response(
                filter,
                status.into(),
                headers.as_mut_ptr(),
                headers.len(),
                ModuleBuffer::of(body),
                ModuleBuffer::of(b"foreword"),
            );
        }
    }
}

/// Converts headers to Envoy's form, borrowing the texts.
pub(super) fn of_headers(headers: &[(&str, &str)]) -> Vec<ModuleHttpHeader> {
    let header = |(name, value): &(&str, &str)| ModuleHttpHeader {
        key: ModuleBuffer::of(name.as_bytes()),
        value: ModuleBuffer::of(value.as_bytes()),
    };
    headers.iter().map(header).collect()
}
