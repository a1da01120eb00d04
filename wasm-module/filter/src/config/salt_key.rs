//! The secret keys in the configuration: of tenants' cache salts, and of engines' event feeds.

use std::fmt;

use foreword_ordering::hexadecimal;

/// A secret key from which tenants' cache salts are derived, or with which an engine's event feed is sealed
/// (encrypted).
#[derive(Clone, PartialEq, Eq)]
pub enum SaltKey {
    /// The bytes of the key.
    Bytes(Vec<u8>),
    /// Name of the proxy's environment variable that contains the key in hexadecimal digits. A key that is configured
    /// so does not appear on admin pages, which show configurations.
    Environment(String),
}

impl SaltKey {
    /// Decodes a key of 32 to 128 bytes from hexadecimal digits; `None` if the length is another or a character is not
    /// a digit.
    pub(crate) fn from_hex(hex: &str) -> Option<Vec<u8>> {
        let is_long = (2 * MIN_KEY_BYTES..=2 * MAX_KEY_BYTES).contains(&hex.len());
        is_long.then(|| hexadecimal::bytes(hex)).flatten()
    }
}

/// Prints the number of bytes or the variable's name, but no byte of the key.
impl fmt::Debug for SaltKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "SaltKey({} bytes)", bytes.len()),
            Self::Environment(name) => write!(f, "SaltKey(${name})"),
        }
    }
}

const MIN_KEY_BYTES: usize = 32;
const MAX_KEY_BYTES: usize = 128;
