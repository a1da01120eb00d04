//! Reads the response to a call into a cluster, as Envoy hands it to the hooks that wait for it.
#![allow(unsafe_code, reason = "lists and texts of Envoy's")]

use crate::abi::{EnvoyBuffer, EnvoyHttpHeader};
use crate::stream::bytes;

/// Returns a list of Envoy's as a slice; null is an empty list.
///
/// # Safety
/// There are `length` items, for as long as the slice is in use.
pub(super) unsafe fn listed<'hook, T>(items: *const T, length: usize) -> &'hook [T] {
    if items.is_null() {
        return &[];
    }
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(items, length) }
}

/// Returns the status in the headers.
///
/// # Safety
/// The headers are the running hook's.
pub(super) unsafe fn status(headers: &[EnvoyHttpHeader]) -> Option<u16> {
    // SAFETY: by the contract.
    let mut headers =
        (headers.iter()).map(|header| unsafe { (bytes(&header.key), bytes(&header.value)) });
    let (_, status) = headers.find(|(name, _)| *name == b":status")?;
    str::from_utf8(status).ok()?.parse().ok()
}

/// Returns the whole body, unless it is longer than `limit`.
///
/// # Safety
/// The chunks are the running hook's.
pub(super) unsafe fn body(chunks: &[EnvoyBuffer], limit: usize) -> Option<Vec<u8>> {
    let size: usize = chunks.iter().map(|chunk| chunk.length).sum();
    if size > limit {
        return None;
    }
    // SAFETY: by the contract.
    let pieces: Vec<&[u8]> = chunks.iter().map(|chunk| unsafe { bytes(chunk) }).collect();
    Some(pieces.concat())
}
