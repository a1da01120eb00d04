//! Hashes and bytes as hexadecimal digits.

/// Writes two lower-case digits for each byte; sixteen hashes by `write!` are a microsecond of a request in a VM.
pub fn push(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 0xf] {
            text.extend(char::from_digit(digit.into(), 16));
        }
    }
}

/// A hash in 16 digits.
#[must_use]
pub fn hash(bits: u64) -> String {
    format!("{bits:016x}")
}

/// The hash that exactly 16 digits, of either case, stand for.
pub(crate) fn parse_hash(digits: &str) -> Option<u64> {
    (digits.len() == 16 && all_digits(digits))
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Whether there is no sign, which the parsers of std would take.
pub(crate) fn all_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
