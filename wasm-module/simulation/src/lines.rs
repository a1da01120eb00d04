//! Reads the lines of a log, with a limit on their length.

use super::BadLine;
use std::io::{BufRead, Read, Result};

/// Most bytes of a line, more than any gateway accepts.
pub const MAX_LINE_BYTES: u64 = 64 << 20;

/// The lines of a reader. A line longer than the limit (64 MiB by default) is skipped without being stored.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    limit: u64,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
}

impl<R: BufRead> Lines<R> {
    /// Reads the lines of `reader`.
    pub fn new(reader: R) -> Self {
        Self::within(reader, MAX_LINE_BYTES)
    }

    /// Reads the lines of `reader`, with at most `limit` bytes each.
    pub fn within(reader: R, limit: u64) -> Self {
        Self {
            reader,
            limit,
            line: Vec::new(),
            number: 0,
            bytes: 0,
        }
    }

    /// Returns the number of the last line read, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the next line, with its line break; `None` at the end.
    ///
    /// # Errors
    /// Returns the reader's error. The inner error is [`BadLine::TooLong`]; the next call then returns the line after
    /// it.
    #[expect(clippy::should_implement_trait, reason = "a line borrows the reader")]
    pub fn next(&mut self) -> Result<Option<std::result::Result<&[u8], BadLine>>> {
        self.line.clear();
        let mut reader = (&mut self.reader).take(self.limit + 1);
        let read = reader.read_until(b'\n', &mut self.line)? as u64;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read;
        if read > self.limit && !self.line.ends_with(b"\n") {
            self.bytes += self.reader.skip_until(b'\n')? as u64;
            return Ok(Some(Err(BadLine::TooLong { limit: self.limit })));
        }
        Ok(Some(Ok(&self.line)))
    }
}

/// Returns a line without the byte order mark that some editors and exports write before a file's first line.
pub(crate) fn without_byte_order_mark(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_beyond_the_limit_is_passed_over_and_the_next_one_read() {
        let mut lines = Lines::within(&b"1234\n12345\n\nend"[..], 4);
        assert_eq!(lines.next().unwrap(), Some(Ok(&b"1234\n"[..])));
        let too_long = BadLine::TooLong { limit: 4 };
        assert_eq!(lines.next().unwrap(), Some(Err(too_long)));
        assert_eq!(lines.next().unwrap(), Some(Ok(&b"\n"[..])));
        assert_eq!(lines.next().unwrap(), Some(Ok(&b"end"[..])));
        assert_eq!(lines.next().unwrap(), None);
        assert_eq!((lines.number(), lines.bytes()), (4, 15));
    }
}
