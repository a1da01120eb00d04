//! Numbers and encodings of proxy-wasm ABI 0.2.1, from [the
//! specification](https://github.com/proxy-wasm/spec/tree/main/abi-versions/v0.2.1), and where it says nothing, from
//! Envoy's host (`proxy-wasm-cpp-host`, `src/exports.cc`).

/// Status codes of host calls.
pub(crate) mod status {
    pub(crate) const OK: i32 = 0;
    pub(crate) const NOT_FOUND: i32 = 1;
    pub(crate) const BAD_ARGUMENT: i32 = 2;
    pub(crate) const INVALID_MEMORY_ACCESS: i32 = 6;
    pub(crate) const EMPTY: i32 = 7;
    pub(crate) const CAS_MISMATCH: i32 = 8;
    pub(crate) const INTERNAL_FAILURE: i32 = 10;
    pub(crate) const UNIMPLEMENTED: i32 = 12;
}

/// Names and values of headers, in order.
pub type Headers = Vec<(Vec<u8>, Vec<u8>)>;

/// Encodes headers: their number, the two lengths of each, then names and values, each followed by a 0 byte.
pub(crate) fn written(map: &Headers) -> Vec<u8> {
    let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = Vec::from(number(map.len()));
    for (name, value) in map {
        bytes.extend(number(name.len()));
        bytes.extend(number(value.len()));
    }
    for (name, value) in map {
        bytes.extend(name);
        bytes.push(0);
        bytes.extend(value);
        bytes.push(0);
    }
    bytes
}

/// Decodes headers, with names in lower case; `None` if `bytes` is malformed. An empty encoding has no headers.
pub(crate) fn read(bytes: &[u8]) -> Option<Headers> {
    if bytes.is_empty() {
        return Some(Headers::new());
    }
    let number = |at: usize| -> Option<usize> {
        let bytes = bytes.get(at..at.checked_add(4)?)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let count = number(0)?;
    let mut at = 4_usize.checked_add(count.checked_mul(8)?)?;
    // Checked before memory is reserved for so many headers.
    if at > bytes.len() {
        return None;
    }
    let mut headers = Headers::with_capacity(count);
    for index in 0..count {
        let mut field = |length: usize| -> Option<Vec<u8>> {
            let end = at.checked_add(length)?;
            let field = bytes.get(at..end)?;
            at = end.checked_add(1)?;
            Some(field.to_vec())
        };
        let lengths = (number(4 + 8 * index)?, number(8 + 8 * index)?);
        let name = field(lengths.0)?.to_ascii_lowercase();
        headers.push((name, field(lengths.1)?));
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_read_as_it_was_written() {
        let pair = |name: &str, value: &str| (name.into(), value.into());
        for map in [
            vec![],
            vec![pair("a", "")],
            vec![pair(":path", "/v1"), pair("x", "y\0z")],
        ] {
            assert_eq!(read(&written(&map)), Some(map));
        }
        assert_eq!(read(b""), Some(vec![]));
    }

    #[test]
    fn what_is_no_map_is_refused_whatever_it_claims() {
        let map = written(&vec![(b"name".to_vec(), b"value".to_vec())]);
        for end in 1..map.len() - 1 {
            assert_eq!(read(&map[..end]), None, "{end} bytes");
        }
        for claim in [1, 2, u32::MAX] {
            assert_eq!(read(&claim.to_le_bytes()), None);
        }
        let mut long = map;
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(read(&long), None);
    }
}
