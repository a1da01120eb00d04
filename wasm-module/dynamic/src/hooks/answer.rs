//! Reads the response to a cluster call, as Envoy passes it to a hook.
#![allow(unsafe_code, reason = "lists and texts of Envoy's")]

use crate::abi::{self, EnvoyBuffer, EnvoyHttpHeader};
use crate::stream::bytes;

/// Returns Envoy's list as a slice; null is an empty list.
///
/// # Safety
/// `items` must be null, or point to `length` items that are valid as long as the slice is in use.
pub(super) unsafe fn listed<'hook, T>(items: *const T, length: usize) -> &'hook [T] {
    if items.is_null() {
        return &[];
    }
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(items, length) }
}

/// Returns the status of a call with this result: the one in the headers, or 200 for a response beyond Envoy's limit, of
/// which Envoy passes nothing. Returns `None` if there was no response.
///
/// # Safety
/// The headers must be the running hook's.
pub(super) unsafe fn status(result: u32, headers: &[EnvoyHttpHeader]) -> Option<u16> {
    match result {
        abi::CALL_ANSWERED => {}
        abi::CALL_TOO_LONG => return Some(200),
        _ => return None,
    }
    // SAFETY: by the contract.
    let mut headers =
        (headers.iter()).map(|header| unsafe { (bytes(&header.key), bytes(&header.value)) });
    let (_, status) = headers.find(|(name, _)| *name == b":status")?;
    str::from_utf8(status).ok()?.parse().ok()
}

/// Returns the whole body; `None` if it exceeds Envoy's limit or has more than `limit` bytes.
///
/// # Safety
/// The chunks must be the running hook's.
pub(super) unsafe fn body(result: u32, chunks: &[EnvoyBuffer], limit: usize) -> Option<Vec<u8>> {
    let size: usize = chunks.iter().map(|chunk| chunk.length).sum();
    if result == abi::CALL_TOO_LONG || size > limit {
        return None;
    }
    // SAFETY: by the contract.
    let pieces: Vec<&[u8]> = chunks.iter().map(|chunk| unsafe { bytes(chunk) }).collect();
    Some(pieces.concat())
}
