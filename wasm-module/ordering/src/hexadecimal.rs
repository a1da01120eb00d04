//! Hashes and bytes as hexadecimal digits.

/// Appends two lower-case digits for each byte. With `write!`, sixteen hashes take a microsecond of a request in a VM.
pub fn push(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 0xf] {
            text.extend(char::from_digit(digit.into(), 16));
        }
    }
}

/// Returns a hash as 16 digits.
#[must_use]
pub fn hash(bits: u64) -> String {
    format!("{bits:016x}")
}

/// Returns the hash of exactly 16 digits, of either case.
pub(crate) fn parse_hash(digits: &str) -> Option<u64> {
    (digits.len() == 16 && all_digits(digits))
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Returns whether the text has no sign, which std's parsers would accept.
pub(crate) fn all_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
