//! Host calls that read and change headers and trailers. Names are compared in lower case, as Envoy stores them.

use super::{Answered, Calls, Vm, bytes, give, refused, valid, write_number};
use crate::abi::{self, Headers, status};
use wasmtime::Result;

pub(super) fn define(calls: &mut Calls<'_>) -> Result<()> {
    calls.define("proxy_get_header_map_pairs", |vm, [map, at, size_at]| {
        let written = abi::written(this(vm, map)?);
        give(vm, &written, at, size_at)
    })?;
    calls.define("proxy_get_header_map_size", |vm, [map, size_at]| {
        let size = abi::written(this(vm, map)?).len();
        write_number(vm, size_at, u32::try_from(size).unwrap_or(u32::MAX))
    })?;
    calls.define("proxy_set_header_map_pairs", |vm, [map, at, size]| {
        let pairs = valid(abi::read(&bytes(vm, at, size)?))?;
        *this(vm, map)? = pairs;
        Ok(())
    })?;
    calls.define(
        "proxy_get_header_map_value",
        |vm, [map, key, key_size, at, size_at]| {
            let name = name(vm, key, key_size)?;
            let is_logging = vm.data().stream.is_logging;
            let found = match this(vm, map) {
                Err(_) if is_logging => None,
                map => map?.iter().find(|(known, _)| *known == name).cloned(),
            };
            match found {
                Some((_, value)) => give(vm, &value, at, size_at),
                None => refused(status::NOT_FOUND),
            }
        },
    )?;
    calls.define(
        "proxy_add_header_map_value",
        |vm, [map, key, key_size, at, size]| {
            let name = name(vm, key, key_size)?;
            let value = bytes(vm, at, size)?;
            this(vm, map)?.push((name, value));
            Ok(())
        },
    )?;
    calls.define(
        "proxy_replace_header_map_value",
        |vm, [map, key, key_size, at, size]| {
            let name = name(vm, key, key_size)?;
            let value = bytes(vm, at, size)?;
            replace(this(vm, map)?, name, value);
            Ok(())
        },
    )?;
    calls.define("proxy_remove_header_map_value", |vm, [map, key, size]| {
        let name = name(vm, key, size)?;
        this(vm, map)?.retain(|(known, _)| *known != name);
        Ok(())
    })
}

/// Returns the headers with this number in the ABI, or `BAD_ARGUMENT` if the callback may not see them.
fn this<'a>(vm: &'a mut Vm<'_>, map: i32) -> Answered<&'a mut Headers> {
    valid(vm.data_mut().map(map))
}

fn name(vm: &mut Vm<'_>, at: i32, size: i32) -> Answered<Vec<u8>> {
    Ok(bytes(vm, at, size)?.to_ascii_lowercase())
}

/// Sets a header: replaces its first value in place and removes further ones; appends the header if there is none.
fn replace(headers: &mut Headers, name: Vec<u8>, value: Vec<u8>) {
    let Some(first) = headers.iter().position(|(known, _)| *known == name) else {
        headers.push((name, value));
        return;
    };
    let mut at = 0;
    headers.retain(|(known, _)| {
        at += 1;
        at - 1 <= first || *known != name
    });
    if let Some((_, old)) = headers.get_mut(first) {
        *old = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_header_has_one_value_where_the_first_stood() {
        let headers = |pairs: &[(&str, &str)]| -> Headers {
            let pairs = pairs.iter();
            pairs
                .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect()
        };
        let mut map = headers(&[("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")]);
        replace(&mut map, b"a".to_vec(), b"9".to_vec());
        assert_eq!(map, headers(&[("a", "9"), ("b", "2"), ("c", "4")]));
        replace(&mut map, b"d".to_vec(), b"5".to_vec());
        assert_eq!(
            map,
            headers(&[("a", "9"), ("b", "2"), ("c", "4"), ("d", "5")])
        );
    }
}
