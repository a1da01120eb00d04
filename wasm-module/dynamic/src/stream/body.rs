//! Access to the bodies of requests and responses.
//!
//! A request's body is in two buffers: the part buffered by earlier hooks, and the part passed to the running one
//! (absent in the trailers' hook). The filter sees them as one.
#![allow(
    unsafe_code,
    reason = "calls into Envoy, each with objects that Envoy gave to the running hook"
)]

use super::{Envoy, bytes};
use crate::abi::{self, EnvoyBuffer};

impl Envoy<'_> {
    /// Returns the bytes of the response's current chunk; 0 in a configuration's hook.
    pub(crate) fn response_size(&self) -> usize {
        let Ok(filter) = self.filter("response_size") else {
            return 0;
        };
        // SAFETY: `filter` is the running hook's.
        unsafe {
            abi::envoy_dynamic_module_callback_http_get_body_size(
                filter,
                abi::RECEIVED_RESPONSE_BODY,
            )
        }
    }

    /// Returns the number of bytes of the request's body that have arrived; 0 in a configuration's hook.
    pub(crate) fn body_size(&self) -> usize {
        let Ok(filter) = self.filter("body_size") else {
            return 0;
        };
        // SAFETY: `filter` is the running hook's.
        let size =
            |body| unsafe { abi::envoy_dynamic_module_callback_http_get_body_size(filter, body) };
        self.bodies(filter).into_iter().flatten().map(size).sum()
    }

    /// Returns the buffers of the request's body, in order. If Envoy passes on a body that an earlier filter buffered,
    /// both buffers are the same one, which is returned once.
    pub(super) fn bodies(&self, filter: abi::HttpFilterEnvoyPtr) -> [Option<u32>; 2] {
        // SAFETY: `filter` is the running hook's.
        let same = unsafe {
            abi::envoy_dynamic_module_callback_http_received_buffered_request_body(filter)
        };
        let buffered = (!same).then_some(abi::BUFFERED_REQUEST_BODY);
        [buffered, Some(abi::RECEIVED_REQUEST_BODY)]
    }

    /// Returns the bytes of one of the buffers.
    pub(super) fn chunk(&self, filter: abi::HttpFilterEnvoyPtr, kind: u32) -> Vec<u8> {
        let mut body = Vec::new();
        // SAFETY: `filter` is the running hook's; Envoy writes as many pieces as it has just counted, and the body does
        // not change before they are copied.
        unsafe {
            let count = abi::envoy_dynamic_module_callback_http_get_body_chunks_size(filter, kind);
            let mut pieces = vec![EnvoyBuffer::NOTHING; count];
            if count > 0
                && abi::envoy_dynamic_module_callback_http_get_body_chunks(
                    filter,
                    kind,
                    pieces.as_mut_ptr(),
                )
            {
                for piece in &pieces {
                    body.extend_from_slice(bytes(piece));
                }
            }
        }
        body
    }
}
