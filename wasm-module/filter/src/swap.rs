//! Changes of shared data that several workers make at once: compare-and-swap, tried again when another worker was faster.
//!
//! Compare-and-swap cannot guard the creation of a key. [`crate::agreement`] says who may create keys.

use crate::host::{Host, HostError};

/// Creates the value under `key`, if there is none.
pub(crate) fn create(host: &impl Host, key: &str, value: &[u8]) -> Result<(), HostError> {
    if host.shared_data(key)?.is_none() {
        host.set_shared_data(key, value, None)?;
    }
    Ok(())
}

/// Reads a value with `read`, and sets what `next` makes of it, unless another worker has changed it meanwhile: then it is
/// read again. Returns what the value was; `None` if others were faster at every attempt. A caller that has `seen` the
/// value and its number saves the first reading.
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

/// Most times that a worker may lose a race. A race takes a microsecond, and the winner has made its change.
const ATTEMPTS: u32 = 16;
