//! Hashes of a text that leave out its volatile parts (which change between requests): white space, dates and ids,
//! numbers, or names.
//!
//! If two texts differ but their hashes without dates are equal, they differ only in a date. So the index of recent
//! requests can classify differences without storing text. All hashes are computed in one pass over the text, escaped
//! as in JSON.
//!
//! ```text
//!   Current time: 2026-11-22 14:03:09, for Anna Berg at desk 12.
//!   └─plain─────┘ └─────time───────┘       └─data──┘      └ number
//! ```

use super::cause::Volatile;
use smallvec::SmallVec;
use std::ops::Range;

/// Hashes of a text, each of which leaves out some kinds of words that may change between requests. If two texts differ
/// but one of these hashes is equal, they differ only in what that hash leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// Hash of the text without white space. Hashes can be [joined](Solid::then), so texts that were split at different
    /// places can be compared.
    pub(super) solid: Solid,
    /// Hash of the text without dates, times and ids.
    pub(super) timeless: u32,
    /// Hash of the text without dates, times, ids and numbers.
    pub(super) numberless: u32,
    /// Hash of the text without dates, times, ids, numbers, names and other values; in a text of the form `label:
    /// value`, without the value.
    pub(super) valueless: u32,
    /// Hash of the text's words, independent of their order.
    pub(super) bag: u32,
    /// True if the hashed text has dates or times.
    pub(super) has_time: bool,
    /// True if the hashed text has ids.
    pub(super) has_id: bool,
}

impl Marks {
    /// Returns the hashes of `text`, which is escaped as in a JSON string.
    pub(super) fn of(text: &str) -> Self {
        Self::of_words(text, &words(text))
    }

    fn of_words(text: &str, words: &[Word]) -> Self {
        let mut marks = Self {
            solid: Solid::of(text),
            ..Self::default()
        };
        // One stream serves all hashes until a word is left out of some of them.
        let mut streams = [Stream::default(); 3];
        let mut running = 1;
        let label = label_end(text, words);
        let mut done = 0;
        for word in words {
            let between = text.get(done..word.range.start).unwrap_or_default();
            done = word.range.end;
            let hash = word.hash;
            marks.bag = marks.bag.wrapping_add(folded(hash));
            marks.has_time |= word.class == Class::Time;
            marks.has_id |= word.class == Class::Id;
            let hides = [
                matches!(word.class, Class::Time | Class::Id),
                matches!(word.class, Class::Time | Class::Id | Class::Number),
                word.class != Class::Plain || label.is_some_and(|end| word.range.start >= end),
            ];
            if running == 1 && hides.contains(&true) {
                streams = [streams[0]; 3];
                running = streams.len();
            }
            for (stream, hides) in streams.iter_mut().zip(hides).take(running) {
                stream.take(between, hash, hides);
            }
        }
        let rest = text.get(done..).unwrap_or_default();
        for stream in streams.iter_mut().take(running) {
            stream.between(rest);
        }
        if running == 1 {
            streams = [streams[0]; 3];
        }
        let [timeless, numberless, valueless] = streams.map(|stream| folded(stream.hash));
        Self {
            timeless,
            numberless,
            valueless,
            ..marks
        }
    }

    /// Returns the kind of volatile value that is the only difference between two texts with these hashes; `None` if
    /// they differ in more.
    pub(super) fn differ_by(&self, other: &Self) -> Option<Volatile> {
        if self.timeless == other.timeless {
            let is_time = self.has_time && (other.has_time || !self.has_id);
            return Some(if is_time {
                Volatile::DateTime
            } else {
                Volatile::Id
            });
        }
        if self.numberless == other.numberless {
            return Some(Volatile::Number);
        }
        (self.valueless == other.valueless).then_some(Volatile::Value)
    }
}

/// A hash of a text's bytes other than white space, with their number. It is a polynomial, so the hash of two joined
/// texts can be computed from the hashes of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Solid {
    hash: u64,
    bytes: u32,
}

impl Solid {
    const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

    fn of(text: &str) -> Self {
        let mut solid = Self::default();
        let mut bytes = text.bytes();
        while let Some(mut byte) = bytes.next() {
            if byte == b'\\' {
                byte = match bytes.next() {
                    Some(b'n' | b't' | b'r') | None => continue,
                    // An escape gets a bit that ASCII does not use, to distinguish it from its letter.
                    Some(escape) => escape | 0x80,
                };
            } else if byte.is_ascii_whitespace() {
                continue;
            }
            solid.hash = (solid.hash.wrapping_mul(Self::BASE)).wrapping_add(u64::from(byte) + 1);
            solid.bytes = solid.bytes.saturating_add(1);
        }
        solid
    }

    /// Returns the hash of two joined texts: the one with this hash, followed by the one with the hash `other`.
    pub(super) fn then(self, other: Self) -> Self {
        let shifted = self.hash.wrapping_mul(Self::BASE.wrapping_pow(other.bytes));
        Self {
            hash: shifted.wrapping_add(other.hash),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Returns whether this is the hash of a text that some adjacent ones of `texts` make when joined; false for an empty
    /// text. O(texts).
    pub(super) fn joins_some(self, texts: &[Self]) -> bool {
        let shift = Self::BASE.wrapping_pow(self.bytes);
        // The hashes of the texts before the first joined one, and up to the last one.
        let (mut before, mut all) = (Self::default(), Self::default());
        let mut starts = texts.iter();
        let joined = texts.iter().any(|text| {
            all = all.then(*text);
            while all.bytes.saturating_sub(before.bytes) > self.bytes
                && let Some(start) = starts.next()
            {
                before = before.then(*start);
            }
            before.hash.wrapping_mul(shift).wrapping_add(self.hash) == all.hash
                && all.bytes.saturating_sub(before.bytes) == self.bytes
        });
        joined && !self.is_empty()
    }

    /// Returns whether the hashed text has nothing but white space.
    pub(super) fn is_empty(self) -> bool {
        self.bytes == 0
    }
}

/// A running hash of a text's words and of the text between them. Words that are left out count as one constant,
/// however many are adjacent.
#[derive(Clone, Copy, Default)]
struct Stream {
    hash: u64,
    is_hiding: bool,
}

impl Stream {
    fn take(&mut self, between: &str, word: u64, hides: bool) {
        if hides && self.is_hiding && is_joint(between) {
            return;
        }
        self.between(between);
        self.push(if hides { HIDDEN } else { word });
        self.is_hiding = hides;
    }

    fn between(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let mut in_space = false;
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let is_escaped_space =
                byte == b'\\' && matches!(bytes.get(at + 1), Some(b'n' | b't' | b'r'));
            at += 1 + usize::from(is_escaped_space);
            if is_escaped_space || byte.is_ascii_whitespace() {
                in_space = true;
                continue;
            }
            if std::mem::take(&mut in_space) {
                self.push(u64::from(b' '));
            }
            self.push(u64::from(byte));
        }
        if in_space {
            self.push(u64::from(b' '));
        }
    }

    fn push(&mut self, value: u64) {
        self.hash = mixed(self.hash, value);
    }
}

/// The value that is hashed in place of a word that may differ, so that texts that differ in it alone hash alike.
const HIDDEN: u64 = 0x5851_f42d_4c95_7f2d;

/// Returns whether two words with this text between them may be one value, such as a date: `Tue, Jun 16`, `12:03 /
/// 13:04`.
fn is_joint(between: &str) -> bool {
    between.len() <= 3 && between.bytes().all(|byte| b" ,.-/|".contains(&byte))
}

fn mixed(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95)
}

fn hash_of(word: &str) -> u64 {
    word.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn folded(hash: u64) -> u32 {
    (hash >> 32) as u32 ^ hash as u32
}

/// The class of a word, judged by its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Plain,
    Time,
    Id,
    Number,
    /// A name, a mail address or a path: capitals inside a sentence, or characters that plain words do not have.
    Value,
}

#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) range: Range<usize>,
    /// Hash of the bytes of the word.
    hash: u64,
    pub(super) class: Class,
}

/// The words of a text, in order. The part of a document that a gateway reads has about fifty.
pub(super) type Words = SmallVec<[Word; 64]>;

/// Splits a text, escaped as in a JSON string, into words and classifies them. Numbers next to a date are part of that
/// date.
pub(super) fn words(text: &str) -> Words {
    let bytes = text.as_bytes();
    let mut words = Words::new();
    let mut at = 0;
    let mut begins = true;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'\\' {
            let skipped = if bytes.get(at + 1) == Some(&b'u') {
                6
            } else {
                2
            };
            begins |= bytes.get(at + 1) == Some(&b'n');
            at += skipped;
            continue;
        }
        if !is_of_word(byte) {
            begins |= matches!(byte, b'.' | b'!' | b'?' | b'\n' | b'#' | b'*' | b'>' | b':');
            at += 1;
            continue;
        }
        let start = at;
        while bytes.get(at).copied().is_some_and(is_of_word) {
            at += 1;
        }
        // Punctuation at the ends of a word belongs to the sentence.
        let whole = bytes.get(start..at).unwrap_or_default();
        let is_start = |byte: &u8| matches!(byte, b'.' | b':' | b'-' | b'+' | b'\'');
        let is_end = |byte: &u8| is_start(byte) || matches!(byte, b'/' | b'%');
        let end = whole.iter().rposition(|byte| !is_end(byte));
        let end = end.map_or(start, |end| start + end + 1);
        let from = whole.iter().position(|byte| !is_start(byte));
        let range = from.map_or(end, |from| (start + from).min(end))..end;
        let word = text.get(range.clone()).unwrap_or_default();
        if !word.is_empty() {
            words.push(Word {
                range,
                hash: hash_of(word),
                class: class_of(word, begins),
            });
        }
        begins = matches!(whole.last(), Some(b'.' | b':'));
    }
    join_dates(text, &mut words);
    words
}

fn is_of_word(byte: u8) -> bool {
    /// A bit for each ASCII byte, set if the byte may be part of a word. A table, since this runs for every byte of a
    /// text.
    const OF_WORD: [u64; 2] = [of_word(0), of_word(64)];
    let [low, high] = OF_WORD;
    let bits = if byte < 64 { low } else { high };
    byte >= 0x80 || bits >> (byte & 63) & 1 == 1
}

/// Returns, for each of the 64 ASCII characters from `first` on, a bit that is set if it may be part of a word.
const fn of_word(first: u8) -> u64 {
    let mut bits = 0;
    let mut nth = 0;
    while nth < 64 {
        let byte = first + nth;
        let is_sign = matches!(
            byte,
            b'_' | b'-' | b'.' | b':' | b'@' | b'+' | b'/' | b'%' | b'\''
        );
        if byte.is_ascii_alphanumeric() || is_sign {
            bits |= 1 << nth;
        }
        nth += 1;
    }
    bits
}

/// Returns the class of a word, judged by its form. `begins` is true if the word begins a sentence.
fn class_of(word: &str, begins: bool) -> Class {
    let bytes = word.as_bytes();
    let (mut digits, mut letters, mut has_at) = (0, 0, false);
    for byte in bytes {
        digits += usize::from(byte.is_ascii_digit());
        letters += usize::from(byte.is_ascii_alphabetic());
        has_at |= *byte == b'@';
    }
    if digits > 0 {
        if is_time(word) {
            return Class::Time;
        }
        if letters == 0 {
            return Class::Number;
        }
        if is_ordinal(word, digits, letters) {
            return Class::Number;
        }
        if is_id(word, digits, letters) {
            return Class::Id;
        }
        return Class::Value;
    }
    if is_calendar(word) {
        return Class::Time;
    }
    if letters >= 24 && bytes.iter().all(u8::is_ascii_hexdigit) {
        return Class::Id;
    }
    let is_name = bytes.first().is_some_and(u8::is_ascii_uppercase) && !begins;
    if is_name || has_at || word.starts_with('/') && word.len() > 1 {
        return Class::Value;
    }
    Class::Plain
}

/// Returns whether a word is a date or a time: `2026-11-22`, `22/11/2026`, `14:03`, `2026-11-22T14:03:09.123Z`,
/// `14h03`.
fn is_time(word: &str) -> bool {
    let mut shape: SmallVec<[u8; 32]> = SmallVec::new();
    for byte in word.bytes().take(40) {
        let class = if byte.is_ascii_digit() { b'9' } else { byte };
        shape.push(class);
    }
    let starts = |opening: &[u8]| shape.starts_with(opening);
    starts(b"9999-99-99")
        || starts(b"9999/99/99")
        || starts(b"9999.99.99")
        || starts(b"99/99/9999")
        || starts(b"99.99.9999")
        || starts(b"99-99-9999")
        || is_slashed(&shape)
        || starts(b"99:99")
        || starts(b"9:99")
        || starts(b"99999999T999")
        || starts(b"99h99")
}

/// Returns whether a word, with `9` for each digit, is a date like `8/22/2026`.
fn is_slashed(shape: &[u8]) -> bool {
    let mut parts = shape.split(|byte| *byte == b'/');
    let is_part =
        |part: &[u8]| (1..=4).contains(&part.len()) && part.iter().all(|byte| *byte == b'9');
    parts.clone().count() == 3 && parts.all(is_part)
}

fn is_ordinal(word: &str, digits: usize, letters: usize) -> bool {
    letters == 2
        && digits <= 4
        && ["st", "nd", "rd", "th", "am", "pm", "AM", "PM", "ms"]
            .iter()
            .any(|end| word.ends_with(end))
}

/// Returns whether a word is an id: at least eight hexadecimal digits, with or without dashes (a UUID); a known prefix
/// and at least four more bytes (`session_8f3a`); or at least eight ASCII letters and digits, two or more of each, that
/// alternate at least three times. `digits` and `letters` are their numbers in the word.
fn is_id(word: &str, digits: usize, letters: usize) -> bool {
    let bytes = word.as_bytes();
    let hexadecimal = bytes.iter().filter(|byte| byte.is_ascii_hexdigit()).count();
    let dashes = bytes.iter().filter(|byte| **byte == b'-').count();
    if hexadecimal + dashes == bytes.len() && hexadecimal >= 8 {
        return true;
    }
    let known = [
        "req", "sess", "session", "trace", "span", "conv", "txn", "corr", "run", "job", "user",
        "chat", "msg", "id", "request", "ticket", "thread", "call", "cch",
    ];
    if let Some((prefix, rest)) = word.split_once(['-', '_', ':'])
        && known.contains(&prefix.to_ascii_lowercase().as_str())
        && rest.len() >= 4
    {
        return true;
    }
    // Number of changes between letters and digits.
    let mut turns = 0;
    let kinds = bytes.iter().map(u8::is_ascii_digit);
    for (kind, next) in kinds.clone().zip(kinds.skip(1)) {
        turns += usize::from(kind != next);
    }
    digits + letters >= 8 && digits >= 2 && letters >= 2 && turns >= 3
}

/// Returns whether a word is a month, a weekday, a time zone, `am` or `pm`.
fn is_calendar(word: &str) -> bool {
    const NAMES: [&str; 19] = [
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
    ];
    // The longest name is `September`.
    if !matches!(word.len(), 2..=9) {
        return false;
    }
    if matches!(
        word,
        "AM" | "PM" | "am" | "pm" | "UTC" | "GMT" | "CET" | "CEST" | "EST"
    ) {
        return true;
    }
    if !word.as_bytes().first().is_some_and(u8::is_ascii_uppercase) {
        return false;
    }
    let is_it = |name: &str| word.eq_ignore_ascii_case(name);
    let is_short = matches!(word.len(), 3 | 4) && !is_it("mars") && !is_it("sate");
    NAMES.iter().any(|name| {
        let short = name.get(..word.len());
        is_it(name) || is_short && name.len() > word.len() && short.is_some_and(is_it)
    })
}

/// Changes the class of numbers next to a month, a weekday or a time to [`Class::Time`].
fn join_dates(text: &str, words: &mut [Word]) {
    let is_near = |left: &Word, right: &Word| {
        let between = text.get(left.range.end..right.range.start);
        between.is_some_and(is_joint)
    };
    for at in 1..words.len() {
        let (left, right) = words.split_at_mut(at);
        if let (Some(left), Some(right)) = (left.last_mut(), right.first_mut())
            && is_near(left, right)
        {
            match (left.class, right.class) {
                (Class::Time, Class::Number) => right.class = Class::Time,
                (Class::Number, Class::Time) => left.class = Class::Time,
                _ => {}
            }
        }
    }
}

/// Returns the offset at which the value starts if the text has the form `label: value`: a label of at most 48 bytes,
/// and a value of at most 64 bytes and two plain words, since a longer one may be an instruction. `None` for any other
/// text.
fn label_end(text: &str, words: &[Word]) -> Option<usize> {
    let colon = text.find(": ")?;
    let is_of_label = |byte: u8| byte.is_ascii_alphanumeric() || b" _-*#()/\t'>".contains(&byte);
    let is_label = colon <= 48 && text.bytes().take(colon).all(is_of_label);
    let value = text.get(colon + 2..)?;
    let value = value.trim_end_matches(['\\', 'n', 'r', '\n', '\r', ' ']);
    let behind = words.iter().filter(|word| word.range.start > colon);
    let plain = behind.clone().filter(|word| word.class == Class::Plain);
    let is_value = (1..=64).contains(&value.len()) && behind.count() <= 8 && plain.count() <= 2;
    (is_label && is_value).then_some(colon + 2)
}

/// Returns the form of a text: each character replaced by its class, so that `2026-11-22 14:03` becomes
/// `9999-99-99 99:99` and a person can recognise the kind of value without seeing it. The form is of the text's first
/// value that may change between requests (a date or time, else an id, number or name), or of the text's beginning if
/// there is none; at most [`MAX_SHAPE`] characters.
pub(super) fn shape(text: &str) -> String {
    let words = words(text);
    let wanted = [Class::Time, Class::Id, Class::Number, Class::Value];
    let found =
        (wanted.iter()).find_map(|class| words.iter().position(|word| word.class == *class));
    let range = found.map_or(0..text.len(), |first| {
        let value = words.get(first..).unwrap_or_default();
        let goes_on = |pair: &&[Word]| {
            matches!(pair, [one, next] if next.class != Class::Plain
                && text.get(one.range.end..next.range.start).is_some_and(is_joint))
        };
        let last = value.windows(2).take_while(goes_on).count();
        let place = |at: usize| {
            value
                .get(at)
                .map(|word| word.range.clone())
                .unwrap_or_default()
        };
        place(0).start..place(last).end
    });
    let shown = text.get(range).unwrap_or_default().chars();
    shown
        .take(MAX_SHAPE)
        .map(|char| match char {
            '0'..='9' => '9',
            _ if char.is_uppercase() => 'A',
            _ if char.is_alphabetic() => 'a',
            _ if char.is_ascii_punctuation() || char == ' ' => char,
            _ => '_',
        })
        .collect()
}

/// The maximum length of the form of a text that [`shape`] returns, in characters.
pub(super) const MAX_SHAPE: usize = 24;

/// Hashes of a document's text by which variants of the document (with another score, or edited) are recognised.
#[derive(Clone, Copy, Debug)]
pub(super) struct DocumentMarks {
    /// Hash of the text without what a retriever wrote: the attributes of the document's tag; its number, score, rank,
    /// distance or id; and its time of retrieval.
    pub(super) apart: u32,
    /// Eight one-byte minima of hashes of pairs of adjacent words (MinHash): those of a text and of its edited version
    /// are mostly equal.
    pub(super) sketch: [u8; 8],
    pub(super) marks: Marks,
}

impl DocumentMarks {
    /// Returns the hashes of a document's text, by which variants of the document are recognised.
    pub(super) fn of(text: &str) -> Self {
        let found = words(text);
        // A tag's end is not part of a word and begins a sentence, so the words after it are those of the text alone.
        let inner = tag_end(text);
        let tag = found.iter().take_while(|word| word.range.start < inner);
        let behind = found.get(tag.count()..).unwrap_or_default();
        Self {
            apart: apart_from_rank(text, inner, behind),
            sketch: sketch(behind),
            marks: Marks::of_words(text, &found),
        }
    }
}

/// Returns [`DocumentMarks::apart`] for `text` from byte `start` on: a hash that leaves out the numbers, scores, ids
/// and times that a retriever wrote. `words` are the words of that part of the text.
fn apart_from_rank(text: &str, start: usize, words: &[Word]) -> u32 {
    let mut stream = Stream::default();
    let mut done = start;
    let mut wants = 0_u8;
    for (at, word) in words.iter().enumerate() {
        let bytes = text.get(word.range.clone()).unwrap_or_default();
        let between = text.get(done..word.range.start).unwrap_or_default();
        done = word.range.end;
        let is_value = matches!(word.class, Class::Number | Class::Id | Class::Time);
        // A number that begins the text, followed by a bracket or punctuation: `[3] …`, `3. …`.
        let is_count = at == 0
            && word.class == Class::Number
            && text
                .get(done..)
                .is_some_and(|rest| rest.starts_with([']', ')', '.', ':']));
        let is_float = word.class == Class::Number
            && (bytes.starts_with("0.") || bytes.starts_with("1.0") || bytes.ends_with('%'))
            && bytes.len() >= 3;
        let hides = is_count || is_float || is_value && wants > 0;
        stream.take(between, word.hash, hides);
        if RANKS.iter().any(|rank| bytes.eq_ignore_ascii_case(rank)) {
            wants = 3;
        } else if !hides {
            wants = wants.saturating_sub(1);
        }
    }
    stream.between(text.get(done..).unwrap_or_default());
    folded(stream.hash)
}

/// Words after which a number, id or time counts as written by the retriever.
const RANKS: [&str; 18] = [
    "score",
    "rank",
    "distance",
    "relevance",
    "similarity",
    "id",
    "index",
    "position",
    "retrieved",
    "timestamp",
    "cosine",
    "confidence",
    "weight",
    "context",
    "result",
    "passage",
    "_score",
    "rerank_score",
];

/// Returns the offset after the tag with which a text begins; 0 if it begins with none.
fn tag_end(text: &str) -> usize {
    let is_tag =
        text.starts_with('<') && text.as_bytes().get(1).is_some_and(u8::is_ascii_alphabetic);
    let end = if is_tag { text.find('>') } else { None };
    end.map_or(0, |end| end + 1)
}

/// Returns the minima of the hashes of pairs of adjacent words; see [`DocumentMarks::sketch`].
fn sketch(words: &[Word]) -> [u8; 8] {
    let mut least = [u64::MAX; 8];
    let mut before = 0;
    for word in words {
        let mut pair = mixed(before, word.hash);
        before = word.hash;
        for least in &mut least {
            *least = pair.min(*least);
            pair = mixed(pair, 0x2545_f491_4f6c_dd1d);
        }
    }
    least.map(|least| (least >> 28) as u8)
}

/// Returns whether two sketches (minima of word hashes) agree in at least half of their bytes, so that the texts are
/// probably versions of one document.
pub(super) fn are_alike(one: [u8; 8], other: [u8; 8]) -> bool {
    one.iter()
        .zip(&other)
        .filter(|(one, other)| one == other)
        .count()
        >= 4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(text: &str) -> u32 {
        DocumentMarks::of(text).apart
    }

    fn sketched(text: &str) -> [u8; 8] {
        DocumentMarks::of(text).sketch
    }

    fn differ(one: &str, other: &str) -> Option<Volatile> {
        Marks::of(one).differ_by(&Marks::of(other))
    }

    #[test]
    fn adjacent_texts_that_make_another_are_found() {
        let of = |text: &str| Solid::of(text);
        let texts = ["abc", "de", "f", "ghij"].map(of);
        for (joined, is_there) in [
            ("abc", true),
            ("def", true),
            ("de f g h i j", true),
            ("abcdefghij", true),
            ("bc", false),
            ("abcf", false),
            ("ed", false),
            ("abcdefghijk", false),
            ("", false),
        ] {
            assert_eq!(of(joined).joins_some(&texts), is_there, "{joined}");
        }
        assert!(!of("a").joins_some(&[]));
    }

    #[test]
    fn clocks_of_all_kinds_are_left_out() {
        for (one, other) in [
            (
                "Current time: 2026-11-22 14:03:09",
                "Current time: 2026-11-23 01:59:10",
            ),
            (
                "Today's date: Tue Jun 16 2026",
                "Today's date: Wed Jul 1 2026",
            ),
            (
                "It is 3:04 PM on Friday, August 21, 2026.",
                "It is 11:15 AM on Monday, May 4, 2026.",
            ),
            (
                "now=2026-11-22T14:03:09.123456Z",
                "now=2026-11-22T15:00:00.000001Z",
            ),
            ("2. Date: 8/22/2026", "2. Date: 12/1/2026"),
            (r"Time: 14:03\nGo on.", r"Time: 09:00\nGo on."),
        ] {
            assert_eq!(differ(one, other), Some(Volatile::DateTime), "{one}");
        }
    }

    #[test]
    fn ids_numbers_and_names_are_told_apart() {
        let uuid = |end: &str| format!("Session 123e4567-e89b-12d3-a456-42661417{end} is open.");
        assert_eq!(differ(&uuid("4000"), &uuid("9999")), Some(Volatile::Id));
        assert_eq!(
            differ("See req_8f3Ab19c now", "See req_77aa0z11 now"),
            Some(Volatile::Id)
        );
        assert_eq!(
            differ("You have 5 tokens left.", "You have 61 tokens left."),
            Some(Volatile::Number)
        );
        assert_eq!(
            differ(
                "You talk to Anna Berg at desk 12.",
                "You talk to Tom Hale at desk 7."
            ),
            Some(Volatile::Value)
        );
        assert_eq!(
            differ("User: anna", "User: bob smith"),
            Some(Volatile::Value)
        );
    }

    #[test]
    fn what_tells_a_model_what_to_do_is_no_value() {
        for (one, other) in [
            ("Answer briefly.", "Answer in detail."),
            ("Rule: always cite a source", "Rule: never cite a source"),
            ("Be formal.", "Be casual and warm."),
        ] {
            assert_eq!(differ(one, other), None, "{one}");
        }
    }

    #[test]
    fn white_space_leaves_no_mark_and_texts_join() {
        let (one, other) = (Marks::of(r"a  b\n\nc"), Marks::of("a b c"));
        assert_eq!(one.solid, other.solid);
        assert_eq!(
            Marks::of("a b").solid.then(Marks::of(r"\nc").solid),
            one.solid
        );
        assert_ne!(Marks::of("ab d").solid, one.solid);
        assert!(Marks::of(r" \n").solid.is_empty());
    }

    #[test]
    fn the_order_of_words_leaves_the_bag_as_it_is() {
        let (one, other) = (r#"{\"a\": 1, \"b\": 2}"#, r#"{\"b\": 2, \"a\": 1}"#);
        assert_eq!(Marks::of(one).bag, Marks::of(other).bag);
        assert_ne!(Marks::of(one).solid, Marks::of(other).solid);
    }

    #[test]
    fn a_shape_holds_no_word_of_the_text() {
        assert_eq!(
            shape("Current time: 2026-11-22 14:03 for you"),
            "9999-99-99 99:99"
        );
        assert_eq!(shape("You talk to Anna today"), "Aaaa");
        assert_eq!(shape("secret words"), "aaaaaa aaaaa");
        assert!(shape(&"Secret words ".repeat(20)).len() <= MAX_SHAPE);
    }

    #[test]
    fn what_a_retriever_writes_into_a_block_leaves_no_mark() {
        for (one, other) in [
            (
                r#"<doc id=\"1\" score=\"0.91\">Rivers run.</doc>"#,
                r#"<doc id=\"3\" score=\"0.4\">Rivers run.</doc>"#,
            ),
            ("[1] Rivers run.", "[4] Rivers run."),
            (r"Rivers run.\nscore: 0.8121", r"Rivers run.\nscore: 0.11"),
            (r"Rank: 1\nRivers run.", r"Rank: 9\nRivers run."),
            (r"[CONTEXT 0]:\nRivers run.", r"[CONTEXT 2]:\nRivers run."),
        ] {
            assert_eq!(apart(one), apart(other), "{one}");
        }
        assert_ne!(apart("Route 12 is long."), apart("Route 13 is long."));
        assert_ne!(apart("Rivers run."), apart("Rivers stand."));
    }

    #[test]
    fn a_text_that_was_changed_a_little_is_alike_and_another_is_not() {
        let text: String = (0..60).map(|word| format!("w{} ", word * 7 % 41)).collect();
        let other: String = (0..60).map(|word| format!("v{} ", word * 5 % 37)).collect();
        assert!(are_alike(
            sketched(&text),
            sketched(&text.replacen("w7 ", "x ", 1))
        ));
        assert!(!are_alike(sketched(&text), sketched(&other)));
    }
}
