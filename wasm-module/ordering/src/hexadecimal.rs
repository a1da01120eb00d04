//! Hashes and bytes as hexadecimal digits.

/// Appends the bytes to `text` as lower-case hexadecimal digits, two for each byte. Faster than `write!`, which takes a
/// microsecond for the sixteen hashes of a request in a VM.
pub fn push(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 0xf] {
            text.extend(char::from_digit(digit.into(), 16));
        }
    }
}

/// Returns the byte that two hexadecimal digits (of either case) stand for; `None` if one of them is not such a digit.
#[must_use]
pub fn byte([high, low]: [u8; 2]) -> Option<u8> {
    let digit = |digit: u8| u8::try_from(char::from(digit).to_digit(16)?).ok();
    Some(digit(high)? << 4 | digit(low)?)
}

/// Returns the bytes that hexadecimal digits (of either case) stand for; `None` for an odd length or another character.
#[must_use]
pub fn bytes(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().copied().map(byte);
    bytes.collect::<Option<_>>().filter(|_| rest.is_empty())
}

/// Returns a 64-bit hash as 16 lower-case hexadecimal digits.
#[must_use]
pub fn hash(bits: u64) -> String {
    format!("{bits:016x}")
}

/// Parses a 64-bit hash of exactly 16 hexadecimal digits (of either case); `None` for any other text.
pub(crate) fn parse_hash(digits: &str) -> Option<u64> {
    (digits.len() == 16 && all_digits(digits))
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Returns whether every character of `text` is a hexadecimal digit. (The standard library's parsers would also accept
/// a sign.)
pub(crate) fn all_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
