//! The text of a JSON string, with a map from its offsets to bytes of the body.

use super::search::find;
use crate::work::looked;
use std::borrow::Cow;
use std::ops::Range;

/// The unescaped text of a JSON string, with a map back to the bytes of the string.
///
/// It is only for searching, since an invalid escape becomes U+FFFD: text of the new body is copied from the old one.
#[derive(Debug)]
pub(crate) struct Text<'a> {
    pub(crate) plain: Cow<'a, str>,
    places: Places,
}

impl<'a> Text<'a> {
    /// Returns the unescaped text of `inner`, a valid JSON string without its quotes, with the map back to it.
    pub(crate) fn new(inner: &'a str) -> Self {
        let mut places = Places::default();
        Self {
            plain: unescaped(inner, Some(&mut places)),
            places,
        }
    }

    /// Returns the range of the JSON string's bytes that encode `range` of the unescaped text.
    pub(crate) fn source(&self, range: &Range<usize>) -> Range<usize> {
        self.places.behind(range.start)..self.places.behind(range.end)
    }
}

/// A map from offsets in the unescaped text of a JSON string to offsets in the string's bytes, its source. An escape of
/// n plain bytes is represented by its last n source bytes, so positions are mapped by counting set bits. There is one
/// bit for each byte of the source.
///
/// ```text
///   source   a \ n b \ u 0 0 e 9 c        plain   a ⏎ b é é c
///   bits     1 0 1 1 0 0 0 0 1 1 1
/// ```
#[derive(Debug, Default)]
pub(super) struct Places(Vec<Word>);

/// The part of the map for 64 adjacent bytes of the JSON string. Each byte has a bit in `bits`, which is set if the
/// byte stands for a byte of the unescaped text.
#[derive(Clone, Debug)]
struct Word {
    bits: u64,
    /// Number of bytes of the unescaped text that are encoded before these 64 bytes of the JSON string.
    before: usize,
}

impl Places {
    /// Makes this the map for a JSON string of `bytes` bytes without escapes, in which each byte stands for itself.
    fn all(&mut self, bytes: usize) {
        let word = Word {
            bits: u64::MAX,
            before: 0,
        };
        self.0 = vec![word; bytes / BITS + 1];
    }

    /// Marks the bytes of the JSON string in this range as standing for no byte of the unescaped text.
    fn skip(&mut self, bytes: Range<usize>) {
        for at in bytes {
            if let Some(word) = self.0.get_mut(at / BITS) {
                word.bits &= !(1 << (at % BITS));
            }
        }
    }

    /// Computes [`Word::before`] for every word of the map. Call it after the last [`Places::skip`].
    fn count(&mut self) {
        let mut before = 0;
        for word in &mut self.0 {
            word.before = before;
            before += word.bits.count_ones() as usize;
        }
    }

    /// Returns the offset in the JSON string after the bytes that encode the first `plain` bytes of the unescaped text.
    fn behind(&self, plain: usize) -> usize {
        let passed = self.0.partition_point(|word| word.before < plain);
        let Some((at, word)) = passed
            .checked_sub(1)
            .and_then(|at| Some((at, self.0.get(at)?)))
        else {
            return plain;
        };
        let mut bits = word.bits;
        let mut left = (plain - word.before).saturating_sub(1);
        let mut passed = 0;
        // By steps of eight source bytes, then plain byte by plain byte.
        while bits != 0 && left >= (bits & 0xff).count_ones() as usize {
            left -= (bits & 0xff).count_ones() as usize;
            bits >>= 8;
            passed += 8;
        }
        for _ in 0..left {
            bits &= bits.wrapping_sub(1);
        }
        at * BITS + passed + bits.trailing_zeros() as usize + 1
    }
}

const BITS: usize = u64::BITS as usize;

/// Returns the unescaped text of a JSON string. If it has escapes, overwrites `places` with the map from the text to
/// the string; otherwise leaves it unchanged.
pub(super) fn unescaped<'a>(inner: &'a str, mut places: Option<&mut Places>) -> Cow<'a, str> {
    let mut next = find(inner, 0, b'\\');
    if next.is_none() {
        return Cow::Borrowed(inner);
    }
    if let Some(places) = &mut places {
        places.all(inner.len());
    }
    let mut plain = String::with_capacity(inner.len());
    let mut copied = 0;
    while let Some(at) = next {
        if at > copied {
            plain.push_str(inner.get(copied..at).unwrap_or_default());
        }
        let (character, after) = unescape(inner.get(at + 1..).unwrap_or_default());
        plain.push(character);
        copied = inner.len() - after.len();
        looked(copied - at);
        if let Some(places) = &mut places {
            places.skip(at..copied.saturating_sub(character.len_utf8()));
        }
        // Adjacent escapes are frequent.
        next = match after.as_bytes().first() {
            Some(b'\\') => Some(copied),
            _ => find(inner, copied, b'\\'),
        };
    }
    plain.push_str(inner.get(copied..).unwrap_or_default());
    if let Some(places) = places {
        places.count();
    }
    Cow::Owned(plain)
}

/// Iterates over the characters that `piece`, a part of a JSON string, encodes, each with the range of `piece` that
/// encodes it.
pub(super) fn characters(piece: &str) -> impl Iterator<Item = (char, Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = piece.get(at..)?;
        let mut chars = rest.chars();
        let (character, after) = match chars.next()? {
            '\\' => unescape(chars.as_str()),
            character => (character, chars.as_str()),
        };
        let range = at..piece.len() - after.len();
        looked(range.len());
        at = range.end;
        Some((character, range))
    })
}

/// Returns whether `piece`, a part of a JSON string, encodes only white space.
pub(crate) fn is_blank(piece: &str) -> bool {
    characters(piece).all(|(character, _)| character.is_whitespace())
}

/// Decodes an escape of a JSON string; `rest` is the text after its backslash. Returns the character and the text after
/// the escape.
fn unescape(rest: &str) -> (char, &str) {
    let mut chars = rest.chars();
    let character = match chars.next() {
        Some('n') => '\n',
        Some('t') => '\t',
        Some('r') => '\r',
        Some('b') => '\u{8}',
        Some('f') => '\u{c}',
        Some('u') => return unescape_unicode(chars.as_str()),
        Some(other) => other,
        None => char::REPLACEMENT_CHARACTER,
    };
    (character, chars.as_str())
}

/// Decodes an escape of a JSON string; `rest` is the text after its `\u`. Returns the character, or U+FFFD if the
/// escape is invalid, and the text after the escape.
fn unescape_unicode(rest: &str) -> (char, &str) {
    let unit = |text: &str| {
        text.get(..4)
            .and_then(|digits| u16::from_str_radix(digits, 16).ok())
    };
    let Some(high) = unit(rest) else {
        return (char::REPLACEMENT_CHARACTER, rest);
    };
    let after = rest.get(4..).unwrap_or_default();
    if let Some(low) = after.strip_prefix("\\u").and_then(unit)
        && let Some(Ok(character)) = char::decode_utf16([high, low]).next()
        && character > '\u{ffff}'
    {
        return (character, after.get(6..).unwrap_or_default());
    }
    (
        char::from_u32(high.into()).unwrap_or(char::REPLACEMENT_CHARACTER),
        after,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_without_escapes_is_borrowed() {
        let text = Text::new("abc é");
        assert!(matches!(text.plain, Cow::Borrowed("abc é")));
        assert_eq!(text.source(&(1..3)), 1..3);
    }

    #[test]
    fn offsets_lead_back_over_every_kind_of_escape() {
        let inner = r#"a\n\u003cb\"\ud83d\ude00c\ud800d\/"#;
        let text = Text::new(inner);
        assert_eq!(text.plain, "a\n<b\"😀c\u{fffd}d/");
        let at = text.plain.find('<').unwrap();
        assert_eq!(&inner[text.source(&(at..at + 1))], r"\u003c");
        let at = text.plain.find('😀').unwrap();
        assert_eq!(&inner[text.source(&(at..at + 4))], r"\ud83d\ude00");
        let at = text.plain.find('d').unwrap();
        assert_eq!(&inner[text.source(&(at..at + 2))], r"d\/");
    }

    proptest! {
        #[test]
        fn agrees_with_serde(original in any::<String>(), escape_all in any::<bool>()) {
            let quoted = if escape_all {
                let units: String = original.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
                format!("\"{units}\"")
            } else {
                serde_json::to_string(&original).unwrap()
            };
            let inner = &quoted[1..quoted.len() - 1];
            let text = Text::new(inner);
            prop_assert_eq!(&text.plain, &original);
            for (at, character) in original.char_indices() {
                let source = &inner[text.source(&(at..at + character.len_utf8()))];
                let back: String = serde_json::from_str(&format!("\"{source}\"")).unwrap();
                prop_assert_eq!(back, character.to_string());
            }
        }
    }
}
