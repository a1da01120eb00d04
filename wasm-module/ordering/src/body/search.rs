//! Text searches for all code that reads a body. They count the bytes they look at (module [`crate::work`]), so that
//! tests can bound the cost of a request.
//!
//! Single bytes are searched eight at a time, since texts are most of a body and are searched several times. The
//! standard library's search uses words of pointer size, which is four bytes in WebAssembly.
#![allow(
    clippy::disallowed_methods,
    reason = "what the standard library looks at is counted here"
)]

use crate::work::looked;
use std::ops::Range;

/// Returns the position of the first byte of `text`, at or after `from`, that equals `byte` (an ASCII character);
/// `None` if there is none.
pub(super) fn find(text: &str, from: usize, byte: u8) -> Option<usize> {
    find_any(text, from, [byte])
}

/// Returns the position of the first byte of `text`, at or after `from`, that equals one of `bytes` (ASCII characters);
/// `None` if there is none.
pub(super) fn find_any<const N: usize>(text: &str, from: usize, bytes: [u8; N]) -> Option<usize> {
    let all = bytes.map(|byte| u64::from(byte) * ONES);
    let at = position(text.as_bytes(), from, |word| {
        all.iter().fold(0, |marked, all| marked | zeros(word ^ all))
    });
    (at < text.len()).then_some(at)
}

/// Returns the position, at or after `from`, of the first byte that a JSON string cannot contain unescaped: a quote, a
/// backslash, a control character. Returns the text's length if there is none.
pub(super) fn special(text: &str, from: usize) -> usize {
    const QUOTES: u64 = b'"' as u64 * ONES;
    const BACKSLASHES: u64 = b'\\' as u64 * ONES;
    position(text.as_bytes(), from, |word| {
        let controls = word.wrapping_sub(0x20 * ONES) & !word & HIGHS;
        zeros(word ^ QUOTES) | zeros(word ^ BACKSLASHES) | controls
    })
}

/// Returns the position, at or after `from`, of the first `<` in the text of a JSON string, literal or escaped as
/// `\u003c`; `None` if there is none. Other escapes, which are frequent in ordinary text, are passed eight bytes at a
/// time.
pub(super) fn find_bracket(text: &str, from: usize) -> Option<usize> {
    const BRACKETS: u64 = b'<' as u64 * ONES;
    const BACKSLASHES: u64 = b'\\' as u64 * ONES;
    const US: u64 = b'u' as u64 * ONES;
    let bytes = text.as_bytes();
    let mut from = from;
    loop {
        // Mark the byte before the first word if it is a backslash.
        let mut before = match from.checked_sub(1).and_then(|at| bytes.get(at)) {
            Some(b'\\') => 1 << 7,
            _ => 0,
        };
        let at = position(bytes, from, |word| {
            let backslashes = zeros(word ^ BACKSLASHES);
            let escapes = (backslashes << 8 | before) & zeros(word ^ US);
            before = backslashes >> 56;
            zeros(word ^ BRACKETS) | escapes
        });
        match bytes.get(at)? {
            b'<' => return Some(at),
            b'u' if at > 0 => {
                let escape = bytes.get(at - 1..at + 5).unwrap_or_default();
                if escape.eq_ignore_ascii_case(b"\\u003c") && is_escape(text, at - 1) {
                    return Some(at - 1);
                }
            }
            _ => {}
        }
        from = at + 1;
    }
}

/// Returns whether the backslash at offset `at` begins an escape of a JSON string, rather than being escaped itself.
pub(super) fn is_escape(text: &str, at: usize) -> bool {
    let before = text.as_bytes().get(..at).unwrap_or_default().iter().rev();
    let backslashes = before.take_while(|byte| **byte == b'\\').count();
    looked(backslashes + 1);
    backslashes % 2 == 0
}

/// Returns the position, at or after `from`, of the first byte for which `is_one` is false; the text's length if there
/// is none.
pub(super) fn pass(text: &str, from: usize, is_one: impl Fn(u8) -> bool) -> usize {
    let bytes = text.as_bytes().get(from..).unwrap_or_default();
    let passed = bytes.iter().take_while(|byte| is_one(**byte)).count();
    looked(passed + 1);
    from + passed
}

/// Returns the position, at or after `from`, of the first byte that is not ASCII white space, or the text's length.
pub(super) fn pass_space(text: &str, from: usize) -> usize {
    pass(text, from, |byte| byte.is_ascii_whitespace())
}

/// Returns `text` without JSON white space at its ends.
pub(super) fn trimmed_json(text: &str) -> &str {
    let trimmed = text.trim_matches([' ', '\t', '\n', '\r']);
    looked(text.len() - trimmed.len() + 2);
    trimmed
}

/// Returns `text` without ASCII white space at its ends.
pub(super) fn trimmed_ascii(text: &str) -> &str {
    let trimmed = text.trim_ascii();
    looked(text.len() - trimmed.len() + 2);
    trimmed
}

/// Returns `text` without ASCII white space at its end.
pub(super) fn trimmed_ascii_end(text: &str) -> &str {
    let trimmed = text.trim_ascii_end();
    looked(text.len() - trimmed.len() + 1);
    trimmed
}

/// Returns the position of the last byte of `text` that equals `byte` (an ASCII character); `None` if there is none.
pub(super) fn find_last(text: &str, byte: u8) -> Option<usize> {
    let found = text.bytes().rposition(|other| other == byte);
    looked(text.len() - found.unwrap_or(0));
    found
}

/// Returns whether `text` contains the string `words`.
pub(super) fn has(text: &str, words: &str) -> bool {
    find_words(text, 0, words).is_some()
}

/// Returns the position of the first occurrence of the string `words` in `text` at or after `from`; `None` if there is
/// none.
pub(super) fn find_words(text: &str, from: usize, words: &str) -> Option<usize> {
    let rest = text.get(from..)?;
    let found = rest.find(words);
    looked(found.map_or(rest.len(), |at| at + words.len()));
    Some(from + found?)
}

/// Returns `range`, a range of `text`, without the white space at its beginning.
pub(super) fn trimmed_start(text: &str, range: Range<usize>) -> Range<usize> {
    let part = text.get(range.clone()).unwrap_or_default();
    let space = part.len() - part.trim_start().len();
    looked(space + 1);
    range.start + space..range.end
}

/// Returns `range`, a range of `text`, without the white space at its end.
pub(super) fn trimmed_end(text: &str, range: Range<usize>) -> Range<usize> {
    let part = text.get(range.clone()).unwrap_or_default();
    let words = part.trim_end().len();
    looked(part.len() - words + 1);
    range.start..range.start + words
}

/// Returns `range`, a range of `text`, without the white space at both ends.
pub(super) fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    trimmed_end(text, trimmed_start(text, range))
}

/// Returns the position, at or after `from`, of the first byte that `marks` flags; the length of `bytes` if it flags
/// none. `marks` gets eight bytes as a little-endian number, and the lowest bit set in its result determines the byte.
fn position(bytes: &[u8], from: usize, marks: impl FnMut(u64) -> u64) -> usize {
    let at = unmarked(bytes, from, marks);
    looked((at + 1).min(bytes.len()).saturating_sub(from));
    at
}

fn unmarked(bytes: &[u8], from: usize, mut marks: impl FnMut(u64) -> u64) -> usize {
    let (words, rest) = bytes.get(from..).unwrap_or_default().as_chunks();
    let mut at = from;
    for word in words {
        let marked = marks(u64::from_le_bytes(*word));
        if marked != 0 {
            return at + (marked.trailing_zeros() / u8::BITS) as usize;
        }
        at += size_of::<u64>();
    }
    let mut word = [0; size_of::<u64>()];
    for (to, byte) in word.iter_mut().zip(rest) {
        *to = *byte;
    }
    let marked = marks(u64::from_le_bytes(word));
    let last = (marked.trailing_zeros() / u8::BITS) as usize;
    at + last.min(rest.len())
}

/// Returns a number with the high bit set in every byte that is zero in `word`, and possibly in bytes above the lowest
/// zero byte (A. Mycroft, 1987).
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGHS
}

const ONES: u64 = u64::MAX / 0xff;
const HIGHS: u64 = ONES << 7;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_search_byte_by_byte(
            text in r#"[a-c"\\<\x00-\x21\x7fé😀]{0,40}"#,
            from in 0_usize..44,
        ) {
            let slow = |wanted: &dyn Fn(u8) -> bool| {
                let mut bytes = text.bytes().enumerate().skip(from);
                bytes.find(|(_, byte)| wanted(*byte)).map(|(at, _)| at)
            };
            for byte in [b'<', b'\\', b'a', 0] {
                prop_assert_eq!(find(&text, from, byte), slow(&|found| found == byte));
            }
            let either = slow(&|found| found == b'a' || found == b'<');
            prop_assert_eq!(find_any(&text, from, [b'<', b'a']), either);
            let first = slow(&|found| found < 0x20 || found == b'"' || found == b'\\');
            prop_assert_eq!(special(&text, from), first.unwrap_or(text.len().max(from)));
        }

        #[test]
        fn finds_brackets_however_they_are_written(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "<", "\\u003c", "\\u003C", "\\\\", "\\n", "\\u003d", "u003c", "u", "abcdefg", "é", "\\u0075", "\\\"",
                ]),
                0..16,
            ),
            from in 0_usize..20,
        ) {
            let source = pieces.concat();
            // A search continues after a whole character, not within an escape.
            let starts = super::super::text::characters(&source).map(|(_, range)| range.start);
            let from = starts.filter(|at| *at >= from).min().unwrap_or(source.len());
            let slow = super::super::text::characters(&source)
                .find(|(character, range)| *character == '<' && range.start >= from);
            prop_assert_eq!(find_bracket(&source, from), slow.map(|(_, range)| range.start), "{}", source);
        }

        #[test]
        fn agrees_with_the_standard_librarys_trimming(text in "[ \n\t\u{a0}\u{3000}a<]{0,20}") {
            let slow = |part: &str| part.as_ptr() as usize - text.as_ptr() as usize;
            let range = trimmed(&text, 0..text.len());
            prop_assert_eq!(&text[range.clone()], text.trim());
            prop_assert!(text.trim().is_empty() || range.start == slow(text.trim()));
        }
    }
}
