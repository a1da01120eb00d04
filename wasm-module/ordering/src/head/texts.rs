//! Divides the system messages at a prompt's beginning into texts and units (lines or sentences).
//!
//! ```text
//!   "You are Ada.\nBe brief. Today is Monday.\n"        a text, as between quotes
//!    └── unit ──┘  └ unit ─┘ └──── unit ────┘           a line, or the sentences of a line
//! ```
//!
//! A unit can be removed as if it had never been there: a whole line is removed with its line break, a sentence with
//! the spaces before or after it.

use super::decision::merged;
use crate::body::scan::fields;
use crate::body::text::Text;
use crate::body::{Message, Parsed, Role, inner_of, offset_in, range_in};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// One text of the system messages at a prompt's beginning, divided into lines and sentences.
pub(super) struct SystemText<'a> {
    /// Offset in the body of the text's first byte, after the opening quote.
    pub(super) start: usize,
    pub(super) source: &'a str,
    /// The JSON of the content part that holds the text; `None` if the content is a single string.
    pub(super) part: Option<&'a str>,
    pub(super) text: Text<'a>,
    /// True if this text or a later one has a cache marker of the client. Then none of its volatile spans (texts that
    /// change between requests) moves or is replaced by its first value.
    pub(super) is_marked: bool,
    pub(super) units: Vec<Unit>,
}

/// A line of a system text, or a sentence of a line: the smallest part that can be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Range of the line or sentence in the unescaped text, without surrounding spaces.
    pub(super) range: Range<usize>,
    /// Range, in the unescaped text, of the line to which this line or sentence belongs, line break included.
    pub(super) line: Range<usize>,
    /// Hash of the line's or sentence's text; 0 if it holds documents.
    pub(super) hash: u64,
    /// True if the line or sentence holds documents. Then it is neither searched nor removed.
    pub(super) is_barrier: bool,
}

/// The texts of the system messages at a prompt's beginning. Texts beyond the limits on texts, lines and sentences are
/// left out or cut short; `unread` counts them.
pub(super) struct SystemTexts<'a> {
    pub(super) texts: Vec<SystemText<'a>>,
    /// Number of texts not read to their end because the request has too many texts, lines or sentences.
    pub(super) unread: u32,
}

impl<'a> SystemTexts<'a> {
    /// Reads the system messages at the prompt's beginning, up to [`MAX_TEXTS`] texts and [`MAX_UNITS`] lines and
    /// sentences. O(bytes).
    pub(super) fn of(parsed: &Parsed<'a>) -> Self {
        let opening = (parsed.messages.iter()).take_while(|message| message.role == Role::System);
        let mut read = Self {
            texts: Vec::new(),
            unread: 0,
        };
        let mut units = MAX_UNITS;
        // Number of texts up to the last cache marker.
        let mut marked = 0;
        for message in opening {
            let documents = documents_of(message);
            if let Some(source) = inner_of(message.content) {
                read.add(parsed.text, source, None, &documents, &mut units);
                continue;
            }
            let mut scan = crate::body::scan::Scan::new(message.content);
            for part in scan.elements().unwrap_or_default() {
                let text = fields(part, ["text", "cache_control", "cachePoint"]);
                let [text, mark, point] = text.unwrap_or_default();
                if let Some(source) = text.and_then(inner_of) {
                    read.add(parsed.text, source, Some(part), &documents, &mut units);
                }
                if mark.or(point).is_some() {
                    marked = read.texts.len();
                }
            }
        }
        for text in read.texts.iter_mut().take(marked) {
            text.is_marked = true;
        }
        read
    }

    fn add(
        &mut self,
        body: &str,
        source: &'a str,
        part: Option<&'a str>,
        documents: &[Range<usize>],
        left: &mut usize,
    ) {
        if self.texts.len() >= MAX_TEXTS || *left == 0 {
            self.unread += 1;
            return;
        }
        let text = Text::new(source);
        let start = offset_in(body, source);
        let (units, is_whole) = units(&text, start, documents, *left);
        *left -= units.len();
        self.unread += u32::from(!is_whole);
        self.texts.push(SystemText {
            start,
            source,
            part,
            text,
            is_marked: false,
            units,
        });
    }
}

impl<'a> SystemText<'a> {
    /// Converts a range of the unescaped text to a range of the body.
    pub(super) fn in_body(&self, range: &Range<usize>) -> Range<usize> {
        let source = self.text.source(range);
        self.start + source.start..self.start + source.end
    }

    /// Returns the bytes of the body that a range of the unescaped text stands for.
    pub(super) fn raw(&self, range: &Range<usize>) -> &'a str {
        self.source.get(self.text.source(range)).unwrap_or_default()
    }

    /// Returns whether the unescaped text has nothing but white space outside the ranges `cut`, which must be sorted.
    pub(super) fn is_blank_without(&self, cut: &[Range<usize>]) -> bool {
        let starts = std::iter::once(0).chain(cut.iter().map(|range| range.end));
        let ends = cut.iter().map(|range| range.start);
        let mut left = starts.zip(ends.chain([self.text.plain.len()]));
        left.all(|(start, end)| {
            let words = self.text.plain.get(start..end);
            words.is_some_and(|words| words.trim().is_empty())
        })
    }

    /// Returns the ranges of the unescaped text to remove so that the lines and sentences for which `gone` is true
    /// disappear: their text with its line breaks or spaces.
    pub(super) fn without(&self, gone: &[bool]) -> Vec<Range<usize>> {
        let mut out: Vec<Range<usize>> = Vec::new();
        let units: Vec<(&Unit, bool)> = self.units.iter().zip(gone.iter().copied()).collect();
        for units in units.chunk_by(|(one, _), (next, _)| one.line == next.line) {
            if let Some((unit, _)) = units
                .first()
                .filter(|_| units.iter().all(|(_, gone)| *gone))
            {
                let (line, plain) = (&unit.line, self.text.plain.as_bytes());
                let is_open = line.end == plain.len() && plain.last() != Some(&b'\n');
                out.push(line.start - usize::from(is_open && line.start > 0)..line.end);
                continue;
            }
            // Units are removed with the spaces before them, those that begin a line with the spaces after them.
            let (mut kept, mut opening) = (None, None);
            for run in units.chunk_by(|(_, one), (_, next)| one == next) {
                let (Some((first, is_gone)), Some((last, _))) = (run.first(), run.last()) else {
                    continue;
                };
                match kept {
                    _ if !is_gone => {
                        out.extend(opening.take().map(|start| start..first.range.start));
                        kept = Some(last.range.end);
                    }
                    Some(end) => out.push(end..last.range.end),
                    None => opening = Some(first.range.start),
                }
            }
        }
        merged(out)
    }
}

/// Returns the ranges of the body from the first to the last document of each group of documents in a message, sorted.
/// Adjacent groups that are divided only by labels, such as "Old contract:", make one range from the first document of
/// the first group to the last document of the last.
fn documents_of(message: &Message<'_>) -> Vec<Range<usize>> {
    let groups = (message.groups).chunk_by(|one, next| one.is_labelled && next.is_labelled);
    let hulls = groups.filter_map(|groups| {
        let [first, last] = [groups.first()?.place.hull()?, groups.last()?.place.hull()?];
        Some(first.start..last.end)
    });
    merged(hulls.collect())
}

/// Divides a text into its lines, and each line into sentences. Returns these parts, at most the first `most`, and true
/// if they are the whole text. `start` is the text's offset in the body; `documents` are sorted ranges of the body that
/// contain documents.
fn units(
    text: &Text<'_>,
    start: usize,
    documents: &[Range<usize>],
    most: usize,
) -> (Vec<Unit>, bool) {
    let plain = &*text.plain;
    let mut units = Vec::new();
    let mut at = 0;
    for line in plain.split_inclusive('\n') {
        let whole = at..at + line.len();
        at = whole.end;
        for sentence in sentences(line) {
            let range = whole.start + sentence.start..whole.start + sentence.end;
            if units.len() >= most {
                // If the limit is reached inside a line, that line is left out: it could not be removed as a whole.
                let is_other = |unit: &Unit| unit.line != whole;
                units.truncate(units.iter().rposition(is_other).map_or(0, |last| last + 1));
                return (units, false);
            }
            let is_barrier = !documents.is_empty() && {
                let source = text.source(&range);
                let source = start + source.start..start + source.end;
                let next = documents.partition_point(|hole| hole.end <= source.start);
                documents
                    .get(next)
                    .is_some_and(|hole| hole.start < source.end)
            };
            let words = plain.get(range.clone()).unwrap_or_default();
            units.push(Unit {
                hash: match is_barrier {
                    true => 0,
                    false => xxh3_64_with_seed(words.as_bytes(), 5),
                },
                range,
                line: whole.clone(),
                is_barrier,
            });
        }
    }
    (units, true)
}

/// Returns the ranges of the sentences in a line, without the spaces between them.
fn sentences(line: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let end = line.trim_end().len();
    let mut start = line.len() - line.trim_start().len();
    if start >= end {
        return found;
    }
    let bytes = line.as_bytes();
    let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
    let first = start;
    for at in first..end {
        // In Chinese and Japanese, no space follows the mark that ends a sentence.
        let behind = at + IDEOGRAPHIC_BYTES;
        let mark = bytes.get(at..behind).unwrap_or_default();
        let is_lead = matches!(byte(at), 0xe3 | 0xef);
        if is_lead && behind < end && IDEOGRAPHIC.iter().any(|known| known.as_bytes() == mark) {
            found.push(start..behind);
            let rest = line.get(behind..).unwrap_or_default();
            start = line.len() - rest.trim_start().len();
            continue;
        }
        let ends = matches!(byte(at), b'.' | b'!' | b'?') && byte(at + 1) == b' ' && at + 2 < end;
        if !ends {
            continue;
        }
        // After an initial or an abbreviation (`J. Smith`, `Dr. Who`) no sentence begins.
        let word = (start..at).rev();
        let word = word.take_while(|at| byte(*at).is_ascii_alphanumeric());
        let next = byte(at + 2);
        if word.count() > 2 && !next.is_ascii_lowercase() && next != b' ' {
            found.push(start..at + 1);
            start = at + 2;
        }
    }
    found.push(start..end);
    found
}

/// Ranges of elements to remove from JSON arrays, added in the order of the body. Adjacent elements are one range.
#[derive(Debug, Default)]
pub(super) struct RemovedElements(Vec<Range<usize>>);

impl RemovedElements {
    /// Adds the range of `element`, a slice of `body`, together with the comma that would be left over. Returns false,
    /// and adds nothing, if no element of the array would be left.
    pub(super) fn add(&mut self, body: &str, element: &str) -> bool {
        let element = range_in(body, element);
        let touches = |last: &Range<usize>| last.end == element.start;
        let earlier = self.0.last().filter(|last| touches(last));
        let start = earlier.map_or(element.start, |last| last.start);
        let behind = body.get(element.end..).unwrap_or_default();
        let range = if let Some(next) = behind.trim_ascii_start().strip_prefix(',') {
            start..offset_in(body, next.trim_ascii_start())
        } else {
            // At the array's end, the comma after the last element that stays is left over.
            let before = body.get(..start).unwrap_or_default().trim_ascii_end();
            let Some(before) = before.strip_suffix(',') else {
                return false;
            };
            before.len()..element.end
        };
        self.0.pop_if(|last| touches(last));
        self.0.push(range);
        true
    }

    pub(super) fn into_ranges(self) -> Vec<Range<usize>> {
        self.0
    }
}

/// The punctuation marks that end sentences in Chinese and Japanese.
const IDEOGRAPHIC: [&str; 3] = ["。", "！", "？"];
const IDEOGRAPHIC_BYTES: usize = 3;

/// The maximum number of lines and sentences read in the system texts of one request; later text is not changed.
pub(super) const MAX_UNITS: usize = 2_048;

/// The maximum number of system texts read in one request.
const MAX_TEXTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn texts(system: &str) -> Vec<Vec<String>> {
        let body = format!(r#"{{"system":{system},"messages":[]}}"#);
        let parsed = crate::parse(body.as_bytes(), &Config::default()).unwrap();
        let texts = SystemTexts::of(&parsed).texts;
        let units = |text: &SystemText<'_>| {
            let units = text.units.iter();
            units
                .map(|unit| text.text.plain[unit.range.clone()].to_owned())
                .collect()
        };
        texts.iter().map(units).collect()
    }

    #[test]
    fn units_are_lines_and_the_sentences_of_lines() {
        assert_eq!(
            texts(r#""You are Ada. Be brief!  \n\n - Ask Dr. Who, e.g. now. It is 3.5 km.\nEnd""#),
            [[
                "You are Ada.",
                "Be brief!",
                "- Ask Dr. Who, e.g. now.",
                "It is 3.5 km.",
                "End"
            ]]
        );
        assert_eq!(
            texts(r#""你是助手。现在是14:03。 请回答！好吗？""#),
            [["你是助手。", "现在是14:03。", "请回答！", "好吗？"]]
        );
        assert_eq!(
            texts(r#"[{"type":"text","text":"a"},{"type":"text","text":""}]"#).len(),
            2
        );
    }

    #[test]
    fn what_is_left_reads_as_if_a_unit_had_never_been_there() {
        let left = |system: &str, gone: &[usize]| {
            let body = format!(r#"{{"system":"{system}","messages":[]}}"#);
            let parsed = crate::parse(body.as_bytes(), &Config::default()).unwrap();
            let text = &SystemTexts::of(&parsed).texts[0];
            let marks: Vec<bool> = (0..text.units.len()).map(|at| gone.contains(&at)).collect();
            let mut plain = text.text.plain.to_string();
            for range in text.without(&marks).into_iter().rev() {
                plain.replace_range(range, "");
            }
            plain
        };
        let lines = r"One here.\nTwo here.\nThree";
        assert_eq!(left(lines, &[1]), "One here.\nThree");
        assert_eq!(left(lines, &[2]), "One here.\nTwo here.");
        assert_eq!(left(lines, &[1, 2]), "One here.\n");
        let line = r"One here. Two here. Three here.\nFour";
        assert_eq!(left(line, &[0]), "Two here. Three here.\nFour");
        assert_eq!(left(line, &[1]), "One here. Three here.\nFour");
        assert_eq!(left(line, &[2]), "One here. Two here.\nFour");
        assert_eq!(left(line, &[0, 1]), "Three here.\nFour");
        assert_eq!(left(line, &[0, 1, 2]), "Four");
        assert_eq!(left(line, &[]), "One here. Two here. Three here.\nFour");
    }

    #[test]
    fn what_stands_before_a_marker_is_marked() {
        let body = r#"{"system":[{"text":"a"},{"text":"b","cache_control":{}},{"text":"c"}],"messages":[]}"#;
        let parsed = crate::parse(body.as_bytes(), &Config::default()).unwrap();
        let marks: Vec<bool> = SystemTexts::of(&parsed)
            .texts
            .iter()
            .map(|text| text.is_marked)
            .collect();
        assert_eq!(marks, [true, true, false]);
    }
}
