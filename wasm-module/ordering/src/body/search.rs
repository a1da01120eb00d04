//! Looks for a byte, eight at a time: the texts in a body are most of its bytes, and each is looked at several times.
//!
//! std's own search takes words of the machine's pointers, which have four bytes in WebAssembly.

/// Where the first `byte` (of ASCII) stands in `text`, from `from` on.
pub(super) fn find(text: &str, from: usize, byte: u8) -> Option<usize> {
    let all = u64::from(byte) * ONES;
    let at = position(text.as_bytes(), from, |word| zeros(word ^ all));
    (at < text.len()).then_some(at)
}

/// Where a byte stands, from `from` on, that cannot stand in a JSON string as it is: a quote, a backslash, a control
/// character. The text's length, if there is none.
pub(super) fn special(text: &str, from: usize) -> usize {
    const QUOTES: u64 = b'"' as u64 * ONES;
    const BACKSLASHES: u64 = b'\\' as u64 * ONES;
    position(text.as_bytes(), from, |word| {
        let controls = word.wrapping_sub(0x20 * ONES) & !word & HIGHS;
        zeros(word ^ QUOTES) | zeros(word ^ BACKSLASHES) | controls
    })
}

/// The first byte from `from` on whose bit is set in what `marks` makes of its word: the lowest one counts, others may
/// be wrong. The length of `bytes`, if there is none.
fn position(bytes: &[u8], from: usize, marks: impl Fn(u64) -> u64) -> usize {
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

/// The high bit of every byte that is zero; of bytes above the lowest such, perhaps of others too (Mycroft 1987).
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
            let first = slow(&|found| found < 0x20 || found == b'"' || found == b'\\');
            prop_assert_eq!(special(&text, from), first.unwrap_or(text.len().max(from)));
        }
    }
}
