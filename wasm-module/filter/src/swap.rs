//! Changes values in the proxy's shared data that several workers write: compare-and-swap, retried if another worker
//! was faster.
//!
//! Compare-and-swap cannot guard the creation of a key. So keys are created while a plugin loads, which Envoy does
//! first on its main thread.

use crate::host::{Host, HostError};

/// Creates the value under `key` in the proxy's shared data, if there is none.
pub(crate) fn create(host: &impl Host, key: &str, value: &[u8]) -> Result<(), HostError> {
    if host.shared_data(key)?.is_none() {
        host.set_shared_data(key, value, None)?;
    }
    Ok(())
}

/// Makes the value under `key` in the proxy's shared data empty, if there is one.
pub(crate) fn empty(host: &impl Host, key: &str) -> Result<(), HostError> {
    if host
        .shared_data(key)?
        .is_some_and(|(value, _)| !value.is_empty())
    {
        host.set_shared_data(key, &[], None)?;
    }
    Ok(())
}

/// Returns how often [`count_use`] was called for the ring buffer name `ring`.
pub(crate) fn uses(host: &impl Host, ring: &str) -> Result<u64, HostError> {
    let value = host.shared_data(&format!("foreword/uses/{ring}"))?;
    let number = value.and_then(|(value, _)| value.first_chunk().copied());
    Ok(number.map_or(0, u64::from_le_bytes))
}

/// Records that data under the ring buffer name `ring`, other than the ring buffer, was written, so that it is not taken
/// for a replaced configuration's. Of several workers' calls at the same time one may not count.
pub(crate) fn count_use(host: &impl Host, ring: &str) -> Result<(), HostError> {
    let number = uses(host, ring)?.wrapping_add(1);
    host.set_shared_data(&format!("foreword/uses/{ring}"), &bytes([number]), None)?;
    Ok(())
}

/// Returns the numbers under `key` in the proxy's shared data, as [`bytes`] encodes them, and the value's
/// compare-and-swap number. Returns an error with this status if the value is missing or has another length.
pub(crate) fn numbers<const N: usize>(
    host: &impl Host,
    key: &str,
    status: u32,
) -> Result<([u64; N], u32), HostError> {
    let missing = HostError {
        call: "shared_data",
        status,
    };
    let (bytes, number) = host.shared_data(key)?.ok_or(missing)?;
    let (fields, []) = bytes.as_chunks::<8>() else {
        return Err(missing);
    };
    let fields: [[u8; 8]; N] = fields.try_into().map_err(|_| missing)?;
    Ok((fields.map(u64::from_le_bytes), number))
}

/// Returns the bytes of numbers in the proxy's shared data.
pub(crate) fn bytes<const N: usize>(numbers: [u64; N]) -> Vec<u8> {
    numbers.map(u64::to_le_bytes).concat()
}

/// Replaces the value under `key` in the proxy's shared data by `next(value)`, and tries again if another worker
/// changed it meanwhile.
///
/// `read` returns the value and its compare-and-swap number. `seen` has both if the caller has already read them, which
/// saves the first read. Returns the old value; `None` if other workers were faster at each of [`ATTEMPTS`] attempts.
/// Returns an error if the proxy refuses a read or a write.
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

/// The maximum number of attempts to change one value. A lost race costs a microsecond, and means that another worker's
/// change was made.
const ATTEMPTS: u32 = 16;
