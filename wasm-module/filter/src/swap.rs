//! Changes of shared data by several workers: compare-and-swap, retried when another worker was faster.
//!
//! Compare-and-swap cannot guard the creation of a key: keys are created while the plugin loads, on Envoy's main thread first.

use crate::host::{Host, HostError};

/// Creates the value under `key`, if there is none.
pub(crate) fn create(host: &impl Host, key: &str, value: &[u8]) -> Result<(), HostError> {
    if host.shared_data(key)?.is_none() {
        host.set_shared_data(key, value, None)?;
    }
    Ok(())
}

/// Replaces a value, as returned by `read`, with `next` of it. If another worker changed it meanwhile, it is read and
/// computed again. Returns the old value; `None` if others were faster at every attempt. With `seen`, the value and its
/// number, the first read is saved.
pub(crate) fn change<H: Host, T>(
    host: &H,
    key: &str,
    mut seen: Option<(T, u32)>,
    read: impl Fn(&H, &str) -> Result<(T, u32), HostError>,
    next: impl Fn(&T) -> Vec<u8>,
) -> Result<Option<T>, HostError> {
    for _ in 0..ATTEMPTS {
        let (value, number) = match seen.take() {
            Some(seen) => seen,
            None => read(host, key)?,
        };
        if host.set_shared_data(key, &next(&value), Some(number))? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// Most attempts. A lost race costs a microsecond, and the winner has made its change.
const ATTEMPTS: u32 = 16;
