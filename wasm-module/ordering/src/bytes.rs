//! The encoding of the values that workers send to each other.
//!
//! Numbers and lengths are LEB128, hashes are 8 bytes in little-endian order, an option begins with a byte 0 or 1.
//! Input is untrusted: the reader compares every length with the number of bytes left before it allocates. Invalid
//! bytes are an error with their position.

/// An error of `Reader`: what was expected, and the offset in the input at which it was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {what} at byte {at}")]
pub struct BadBytes {
    what: &'static str,
    at: usize,
}

/// An output buffer; each method appends one value in the encoding that workers use.
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.byte(number.to_le_bytes()[0]);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    pub(crate) fn list<T>(&mut self, list: &[T], each: impl Fn(&mut Self, &T)) {
        self.number(list.len() as u64);
        for item in list {
            each(self, item);
        }
    }

    pub(crate) fn option<T>(&mut self, option: Option<T>, some: impl FnOnce(&mut Self, T)) {
        self.byte(option.is_some().into());
        if let Some(value) = option {
            some(self, value);
        }
    }
}

/// Input bytes, and the offset of the next byte to read.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns an error if bytes are left to read.
    pub(crate) fn end(&self) -> Result<(), BadBytes> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(self.bad("nothing more"))
        }
    }

    pub(crate) fn hash(&mut self) -> Result<u64, BadBytes> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn byte(&mut self) -> Result<u8, BadBytes> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], BadBytes> {
        let array = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk);
        let array = *array.ok_or_else(|| self.bad("more bytes"))?;
        self.at += N;
        Ok(array)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, BadBytes> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.bad("0 or 1")),
        }
    }

    pub(crate) fn number(&mut self) -> Result<u64, BadBytes> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                break;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.bad("a number of 64 bits"))
    }

    pub(crate) fn narrow<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, BadBytes> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| self.bad(what))
    }

    /// Reads the length of a list or a text; an error if it exceeds the number of bytes left, since each element takes
    /// at least one.
    pub(crate) fn length(&mut self) -> Result<usize, BadBytes> {
        let length = self.number()?;
        let left = self.bytes.len().saturating_sub(self.at);
        // Compared before it is narrowed, so that every platform returns the same error.
        match usize::try_from(length) {
            Ok(length) if length <= left => Ok(length),
            _ => Err(self.bad("as many bytes as the length says")),
        }
    }

    /// Reads a length and that many bytes; an error if fewer are left.
    pub(crate) fn blob(&mut self) -> Result<Vec<u8>, BadBytes> {
        let length = self.length()?;
        let bytes = self.bytes.get(self.at..self.at + length);
        self.at += length;
        Ok(bytes.unwrap_or_default().to_vec())
    }

    pub(crate) fn text(&mut self) -> Result<Box<str>, BadBytes> {
        let length = self.length()?;
        let bytes = self
            .bytes
            .get(self.at..self.at + length)
            .unwrap_or_default();
        let text = str::from_utf8(bytes).map_err(|_| self.bad("UTF-8"))?;
        self.at += length;
        Ok(text.into())
    }

    pub(crate) fn list<T>(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<T, BadBytes>,
    ) -> Result<Vec<T>, BadBytes> {
        (0..self.length()?).map(|_| each(self)).collect()
    }

    pub(crate) fn option<T>(
        &mut self,
        some: impl FnOnce(&mut Self) -> Result<T, BadBytes>,
    ) -> Result<Option<T>, BadBytes> {
        if self.flag()? {
            some(self).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(crate) fn bad(&self, what: &'static str) -> BadBytes {
        BadBytes { what, at: self.at }
    }
}
