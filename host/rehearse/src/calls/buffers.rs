//! Host calls that read and change bodies, and read configurations.

use super::{Calls, bytes, found, give, offset, refused, write_number};
use crate::abi::status;
use wasmtime::Result;

pub(super) fn define(calls: &mut Calls<'_>) -> Result<()> {
    calls.define(
        "proxy_get_buffer_bytes",
        |vm, [buffer, start, size, at, size_at]| {
            let buffer = found(vm.data().buffer(buffer))?;
            let start = start.cast_unsigned();
            let Some(end) = start.checked_add(size.cast_unsigned()) else {
                return refused(status::BAD_ARGUMENT);
            };
            let end = (end as usize).min(buffer.len());
            // If the range is empty, Envoy leaves the module's variables as they are.
            let part = buffer.get(start as usize..end).unwrap_or_default().to_vec();
            if part.is_empty() {
                return Ok(());
            }
            give(vm, &part, at, size_at)
        },
    )?;
    calls.define("proxy_get_buffer_status", |vm, [buffer, at, flags_at]| {
        let size = found(vm.data().buffer(buffer))?.len();
        write_number(vm, at, u32::try_from(size).unwrap_or(u32::MAX))?;
        write_number(vm, flags_at, 0)
    })?;
    calls.define(
        "proxy_set_buffer_bytes",
        |vm, [buffer, start, size, at, length]| {
            let new = bytes(vm, at, length)?;
            let body = found(vm.data_mut().body(buffer))?;
            match set(body, offset(start), offset(size), new) {
                true => Ok(()),
                false => refused(status::BAD_ARGUMENT),
            }
        },
    )
}

/// Changes a body as Envoy does: with `start` 0, replaces its first `size` bytes; with `start` at or past its end,
/// appends. Any other `start` changes nothing and returns false.
fn set(body: &mut Vec<u8>, start: usize, size: usize, new: Vec<u8>) -> bool {
    if start == 0 {
        if size >= body.len() {
            *body = new;
        } else {
            body.splice(..size, new);
        }
        return true;
    }
    let is_behind = start >= body.len();
    if is_behind {
        body.extend(new);
    }
    is_behind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_changed_at_its_ends_and_nowhere_else() {
        for (start, size, result) in [
            (0, 0, Some("newbody")),
            (0, 2, Some("newdy")),
            (0, 4, Some("new")),
            (0, usize::MAX, Some("new")),
            (4, 0, Some("bodynew")),
            (usize::MAX, 9, Some("bodynew")),
            (1, 2, None),
        ] {
            let mut body = b"body".to_vec();
            let done = set(&mut body, start, size, b"new".to_vec());
            assert_eq!(done, result.is_some());
            assert_eq!(body, result.unwrap_or("body").as_bytes());
        }
    }
}
