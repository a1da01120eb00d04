//! Lines of a log, each within a bound.

use super::BadLine;
use std::io::{BufRead, Read, Result};

/// Bytes of a line: more than any gateway lets through.
pub const MAX_LINE_BYTES: u64 = 64 << 20;

/// Lines of a reader; one that is longer than the limit, 64 MiB unless said otherwise, is passed over without being held.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    limit: u64,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
}

impl<R: BufRead> Lines<R> {
    /// The lines of `reader`, from the first.
    pub fn new(reader: R) -> Self {
        Self::within(reader, MAX_LINE_BYTES)
    }

    /// The lines of `reader` with so many bytes at most.
    pub fn within(reader: R, limit: u64) -> Self {
        Self {
            reader,
            limit,
            line: Vec::new(),
            number: 0,
            bytes: 0,
        }
    }

    /// Lines read so far: the number, from 1, of the one that was read last.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next line, with its end; `None`: there is none.
    ///
    /// # Errors
    /// It cannot be read. [`BadLine::TooLong`] within: the next call returns the line behind it.
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
