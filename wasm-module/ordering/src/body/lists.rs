//! Finds documents that plain text marks by its lines: numbered lists, rules, headings.
//!
//! ```text
//!   numbered   [1] Text.          rules   ---             headings   # Title
//!              [2] Text.                  Text.                      Text.
//!                                         ---                        # Title
//!              Question?                  Text.                      Text.
//!                                         ---
//! ```
//!
//! Plain text may look like this without being documents: numbered steps, a conversation, code. So these formats are
//! opt-in, are not looked for in fenced code, and need a marked end of each document. A list whose last document may
//! continue over an unknown number of paragraphs is not changed.

use super::search::{find, pass, trimmed, trimmed_start};
use super::tags::Span;
use crate::policy::MAX_CANDIDATES;
use crate::work::looked;
use fxhash::FxHashSet;
use std::ops::Range;

/// The author of a text that may hold a list of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Author {
    /// A tool: the text is only the tool's result, so the last document ends with the text.
    Tool,
    /// Any other author, such as a user: text may follow the last document.
    Other,
}

/// The lines of a text that mark documents (numbers in brackets, rules of dashes, headings), found in one pass.
#[derive(Debug, Default)]
pub(super) struct Lines {
    author: Option<Author>,
    end: usize,
    items: Vec<Item>,
    rules: Vec<Range<usize>>,
    /// For each heading, the start of its line and the range of its title.
    headings: Vec<(usize, Range<usize>)>,
}

/// An item of a numbered list in a text: a line that begins with a number in brackets, and the lines up to the next
/// one.
#[derive(Debug)]
struct Item {
    start: usize,
    /// Range of the digits of the item's number, without brackets.
    digits: Range<usize>,
    /// Offset in the text at which the list item's part before its first blank line ends; `None` if it has no blank
    /// line.
    blank: Option<usize>,
    /// True if more text of the list item follows its first blank line.
    is_parted: bool,
    /// True if the list item's part before its first blank line has several lines.
    is_long: bool,
}

/// The maximum number of items that are read of one numbered list; the text of later items becomes part of the last
/// one. It exceeds the largest possible `documents.max`, so a body with so many documents is forwarded unchanged
/// anyway. It also limits the cost of a body whose numbers are chosen to collide in the hash set.
const MAX_ITEMS: usize = MAX_CANDIDATES as usize + 1;

impl Lines {
    /// Finds the lines that may mark documents in a text that `author` wrote, except in fenced code.
    pub(super) fn read(text: &str, author: Author) -> Self {
        let mut lines = Self {
            author: Some(author),
            end: text.len(),
            ..Self::default()
        };
        let mut seen: FxHashSet<u32> = FxHashSet::default();
        let mut is_fenced = false;
        let mut start = 0;
        while start < text.len() {
            let newline = find(text, start, b'\n');
            let end = newline.map_or(text.len(), |newline| newline + 1);
            let words = trimmed_start(text, start..end);
            let rest = text.get(words.clone()).unwrap_or_default();
            let is_fence = rest.starts_with("```");
            is_fenced ^= is_fence;
            let is_marking = !is_fenced && !is_fence && !words.is_empty();
            if !(is_marking && lines.mark(text, &(start..end), &words, &mut seen)) {
                lines.extend_item(words.is_empty(), start, newline.is_some());
            }
            start = end;
        }
        lines
    }

    /// Records a `line` that may mark a document: a line of dashes, a heading, or a number in brackets that is not in
    /// `seen`, to which it is added. `words` is the line without its leading white space. Returns true if the line
    /// begins a list item.
    fn mark(
        &mut self,
        text: &str,
        line: &Range<usize>,
        words: &Range<usize>,
        seen: &mut FxHashSet<u32>,
    ) -> bool {
        let begins = words.start == line.start;
        match text.as_bytes().get(words.start) {
            Some(b'-') => {
                let dashes = pass(text, words.start, |byte| byte == b'-');
                if dashes - words.start >= 3 && trimmed_start(text, dashes..words.end).is_empty() {
                    self.rules.push(without_end(text, line));
                }
            }
            Some(b'#') if begins => {
                let title = trimmed(text, line.start + 1..line.end);
                let is_marked = text.as_bytes().get(line.start + 1) == Some(&b' ');
                if is_marked && !title.is_empty() {
                    self.headings.push((line.start, title));
                }
            }
            Some(b'[') if begins && self.items.len() < MAX_ITEMS => {
                if let Some((number, digits)) = number_of(text, line) {
                    // A number that has occurred before is a citation.
                    if seen.insert(number) {
                        self.items.push(Item {
                            start: line.start,
                            digits,
                            blank: None,
                            is_parted: false,
                            is_long: false,
                        });
                        return true;
                    }
                }
            }
            _ => {}
        }
        false
    }

    /// Extends the last list item, if there is one, by the line that starts at `start`. `is_blank` is true for a line
    /// of white space, `is_ended` for a line with a line break.
    fn extend_item(&mut self, is_blank: bool, start: usize, is_ended: bool) {
        let Some(item) = self.items.last_mut() else {
            return;
        };
        if !is_blank {
            item.is_parted |= item.blank.is_some();
            item.is_long |= item.blank.is_none();
        } else if is_ended && item.blank.is_none() {
            item.blank = start.checked_sub(1);
        }
    }

    /// Returns the items of a numbered list as documents: each begins with a line that begins with a number in
    /// brackets, all numbers are different, and the number is the document's id. Empty if there are fewer than two, or
    /// if the end of the last one is unknown.
    ///
    /// Items are moved with their numbers, so that an answer's `[3]` keeps its meaning. Outside a tool's result, the
    /// last item ends at a blank line before further text, or with its only line: the last of several lines might be a
    /// question. No other item may contain a blank line.
    pub(super) fn numbered(&self, text: &str) -> Vec<Span> {
        let is_tool = self.author == Some(Author::Tool);
        let Some((last, others)) = self.items.split_last() else {
            return Vec::new();
        };
        let is_endless = last.is_long && !last.is_parted;
        if !is_tool && (is_endless || others.iter().any(|item| item.is_parted)) {
            return Vec::new();
        }
        let end = last.blank.filter(|_| !is_tool).unwrap_or(self.end);
        let ends = self.items.iter().skip(1).map(|item| item.start);
        let items = self.items.iter().zip(ends.chain([end]));
        several(items.map(|(item, end)| Span {
            whole: trimmed(text, item.start..end),
            id: Some(item.digits.clone()),
        }))
    }

    /// Returns as documents the texts between lines of three or more dashes; in a tool's result also those before the
    /// first and after the last such line. Empty if there are fewer than two.
    pub(super) fn ruled(&self, text: &str) -> Vec<Span> {
        let (Some(first), Some(last)) = (self.rules.first(), self.rules.last()) else {
            return Vec::new();
        };
        let (start, end) = match self.author {
            Some(Author::Tool) => (0, self.end),
            _ => (first.end, last.start),
        };
        let mut pieces = Vec::new();
        let mut at = start;
        let rules = self.rules.iter();
        for rule in rules.filter(|rule| rule.start >= start && rule.end <= end) {
            pieces.push(at..rule.start);
            at = rule.end;
        }
        pieces.push(at..end);
        let spans = pieces.into_iter().map(|piece| Span {
            whole: trimmed(text, piece),
            id: None,
        });
        several(spans.filter(|span| !span.whole.is_empty()))
    }

    /// Returns as documents the sections of a tool's result under first-level headings, each with its title as its id.
    /// Empty if there are fewer than two, or if no tool wrote the text.
    pub(super) fn headed(&self, text: &str) -> Vec<Span> {
        if self.author != Some(Author::Tool) {
            return Vec::new();
        }
        let ends = self.headings.iter().skip(1).map(|(start, _)| *start);
        let sections = self.headings.iter().zip(ends.chain([self.end]));
        several(sections.map(|((start, title), end)| Span {
            whole: trimmed(text, *start..end),
            id: Some(title.clone()),
        }))
    }
}

/// Returns the documents if there are at least two, since one document alone cannot be reordered; otherwise an empty
/// list.
fn several(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let spans: Vec<Span> = spans.collect();
    if spans.len() < 2 { Vec::new() } else { spans }
}

/// Returns the range of a line without the line break at its end.
fn without_end(text: &str, line: &Range<usize>) -> Range<usize> {
    let bytes = text.as_bytes().get(line.clone()).unwrap_or_default();
    let ends = bytes.iter().rev();
    let end = ends
        .take_while(|byte| matches!(byte, b'\n' | b'\r'))
        .count();
    looked(end + 1);
    line.start..line.end - end
}

/// Returns the number in brackets with which a line begins, and the range of its digits; `None` if there is none or no
/// text follows it on the line.
fn number_of(text: &str, line: &Range<usize>) -> Option<(u32, Range<usize>)> {
    let digits = line.start + 1..pass(text, line.start + 1, |byte| byte.is_ascii_digit());
    if text.as_bytes().get(digits.end) != Some(&b']') {
        return None;
    }
    looked(digits.len());
    let number = text.get(digits.clone())?.parse().ok()?;
    let words = trimmed_start(text, digits.end + 1..line.end);
    (!words.is_empty()).then_some((number, digits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Find = fn(&str, Author) -> Vec<Span>;

    fn numbered(text: &str, author: Author) -> Vec<Span> {
        Lines::read(text, author).numbered(text)
    }

    fn ruled(text: &str, author: Author) -> Vec<Span> {
        Lines::read(text, author).ruled(text)
    }

    fn headed(text: &str, author: Author) -> Vec<Span> {
        Lines::read(text, author).headed(text)
    }

    /// Returns the documents that `find` finds in `text`, each as its whole text and its id, empty if it has none.
    fn found(find: Find, text: &str, author: Author) -> Vec<(&str, &str)> {
        let spans = find(text, author).into_iter();
        spans
            .map(|span| (&text[span.whole], span.id.map_or("", |id| &text[id])))
            .collect()
    }

    #[test]
    fn numbered_items_end_where_that_is_marked() {
        let text = "Context:\n[1] One\n\nmore\n\n[2]  Two\r\n[3] [4] Three\n\nQuestion [1]?";
        assert_eq!(found(numbered, text, Author::Other), []);
        assert_eq!(
            found(numbered, &text.replace("\n\nmore", "\nmore"), Author::Other),
            [
                ("[1] One\nmore", "1"),
                ("[2]  Two", "2"),
                ("[3] [4] Three", "3")
            ]
        );
        assert_eq!(
            found(numbered, "[0] a\n\nb\n[1] c\n\nd", Author::Tool),
            [("[0] a\n\nb", "0"), ("[1] c\n\nd", "1")]
        );
        assert_eq!(
            found(numbered, "[17] a\n[17] cited\n[4] b", Author::Other),
            [("[17] a\n[17] cited", "17"), ("[4] b", "4")]
        );
        // The last line may be a question.
        for text in ["[1] a\n[2] b\n[3] c\nHow?", "[1] a\n[2] b\n[3] c\nHow?\n\n"] {
            assert_eq!(found(numbered, text, Author::Other), []);
            assert_eq!(found(numbered, text, Author::Tool).len(), 3);
        }
    }

    #[test]
    fn what_is_no_numbered_list_is_text() {
        for text in [
            "[1] alone",
            "[1] a\n[1] b",
            "[1]\n[2]",
            " [1] a\n [2] b",
            "[+1] a\n[+2] b",
            "[99999999999] a\n[2] b",
            "```\n[1] a\n[2] b\n```",
            "",
        ] {
            assert_eq!(found(numbered, text, Author::Other), [], "{text}");
        }
    }

    #[test]
    fn rules_stand_around_documents_and_in_results_between_them() {
        let text = "Context:\n---\nA\n\na\n----\nB\n---\nWhy?";
        assert_eq!(
            found(ruled, text, Author::Other),
            [("A\n\na", ""), ("B", "")]
        );
        assert_eq!(
            found(ruled, text, Author::Tool),
            [("Context:", ""), ("A\n\na", ""), ("B", ""), ("Why?", "")]
        );
        for text in ["---\nA\n---", "a --- b", "--\nA\n--\nB\n--", "---", ""] {
            assert_eq!(found(ruled, text, Author::Other), [], "{text}");
        }
    }

    #[test]
    fn headings_head_sections_of_results_alone() {
        let text = "Found:\n# A b \nx\n## C\n```\n# no\n```\n# D\ny\n";
        assert_eq!(
            found(headed, text, Author::Tool),
            [("# A b \nx\n## C\n```\n# no\n```", "A b"), ("# D\ny", "D")]
        );
        assert_eq!(found(headed, text, Author::Other), []);
        assert_eq!(found(headed, "# \n#x\n# A", Author::Tool), []);
    }

    /// The earlier implementation of the search for numbered lists, rules and headings, with one pass or several for
    /// each: a slow model for tests.
    mod slow {
        use super::{Author, Span};
        use fxhash::FxHashSet;
        use std::ops::Range;

        /// Returns the items of a numbered list as documents: each begins with a line that begins with a number in
        /// brackets, and the number, different for each, is the document's id.
        ///
        /// Items move with their numbers, so that an answer's `[3]` keeps its meaning. Outside a tool's result the last
        /// item ends at a blank line or has one line, and then no other item may contain a blank line.
        pub(super) fn numbered(text: &str, author: Author) -> Vec<Span> {
            let mut seen: FxHashSet<u32> = FxHashSet::default();
            let starts: Vec<(usize, Range<usize>)> = lines(text)
                .filter_map(|line| {
                    let (number, digits) = number_of(text, &line)?;
                    // A number that occurred before is a citation.
                    seen.insert(number).then_some((line.start, digits))
                })
                .collect();
            let mut ends: Vec<usize> = starts.iter().skip(1).map(|(start, _)| *start).collect();
            let Some((last, _)) = starts.last() else {
                return Vec::new();
            };
            let blank = blank_line(text, *last);
            let head = &text[*last..blank.unwrap_or(text.len())];
            let is_long = head.lines().filter(|line| !line.trim().is_empty()).count() > 1;
            let is_parted = blank.is_some_and(|blank| !text[blank..].trim().is_empty());
            if author == Author::Other && is_long && !is_parted {
                return Vec::new();
            }
            let end = match author {
                Author::Tool => text.len(),
                Author::Other => blank.unwrap_or(text.len()),
            };
            ends.push(end);
            let items: Vec<Span> = starts
                .into_iter()
                .zip(ends)
                .map(|((start, digits), end)| Span {
                    whole: trimmed(text, start..end),
                    id: Some(digits),
                })
                .collect();
            let is_marked = author == Author::Tool
                || !items.iter().any(|item| {
                    let item = text.get(item.whole.clone()).unwrap_or_default();
                    blank_line(item, 0).is_some()
                });
            several(items.into_iter().filter(|_| is_marked))
        }

        /// Returns as documents the texts between lines of three or more dashes; in a tool's result also those before
        /// the first and after the last such line.
        pub(super) fn ruled(text: &str, author: Author) -> Vec<Span> {
            let is_rule = |line: &Range<usize>| {
                let line = text.get(line.clone()).unwrap_or_default().trim();
                line.len() >= 3 && line.bytes().all(|byte| byte == b'-')
            };
            let rules: Vec<Range<usize>> = lines(text).filter(is_rule).collect();
            let (Some(first), Some(last)) = (rules.first(), rules.last()) else {
                return Vec::new();
            };
            let (start, end) = match author {
                Author::Tool => (0, text.len()),
                Author::Other => (first.end, last.start),
            };
            let mut pieces = Vec::new();
            let mut at = start;
            for rule in rules
                .iter()
                .filter(|rule| rule.start >= start && rule.end <= end)
            {
                pieces.push(at..rule.start);
                at = rule.end;
            }
            pieces.push(at..end);
            let spans = pieces.into_iter().map(|piece| Span {
                whole: trimmed(text, piece),
                id: None,
            });
            several(spans.filter(|span| !span.whole.is_empty()))
        }

        /// Returns as documents the sections of a tool's result under first-level headings, each with its title as its
        /// id.
        pub(super) fn headed(text: &str, author: Author) -> Vec<Span> {
            if author != Author::Tool {
                return Vec::new();
            }
            let title = |line: Range<usize>| {
                let words = text.get(line.clone())?.strip_prefix("# ")?;
                let start = line.end - words.len();
                let title = trimmed(text, start..line.end);
                (!title.is_empty()).then_some((line.start, title))
            };
            let headings: Vec<(usize, Range<usize>)> = lines(text).filter_map(title).collect();
            let ends = headings.iter().skip(1).map(|(start, _)| *start);
            let ends: Vec<usize> = ends.chain([text.len()]).collect();
            let sections = headings.into_iter().zip(ends);
            several(sections.map(|((start, title), end)| Span {
                whole: trimmed(text, start..end),
                id: Some(title),
            }))
        }

        /// Returns the documents if there are at least two, since one alone cannot be reordered; otherwise an empty
        /// list.
        fn several(spans: impl Iterator<Item = Span>) -> Vec<Span> {
            let spans: Vec<Span> = spans.collect();
            if spans.len() < 2 { Vec::new() } else { spans }
        }

        /// Returns the ranges of the lines of `text` that are not in fenced code, without their line breaks.
        fn lines(text: &str) -> impl Iterator<Item = Range<usize>> {
            let mut start = 0;
            let mut is_fenced = false;
            text.split_inclusive('\n').filter_map(move |line| {
                let range = start..start + line.trim_end_matches(['\n', '\r']).len();
                start += line.len();
                let is_fence = line.trim_start().starts_with("```");
                is_fenced ^= is_fence;
                (!is_fenced && !is_fence).then_some(range)
            })
        }

        /// Returns the number in brackets with which a line begins, and the range of its digits; `None` if there is
        /// none, or if no text follows it.
        fn number_of(text: &str, line: &Range<usize>) -> Option<(u32, Range<usize>)> {
            let rest = text.get(line.clone())?.strip_prefix('[')?;
            let (digits, words) = rest.split_once(']')?;
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            let number = digits.parse().ok().filter(|_| is_number)?;
            let start = line.start + 1;
            (!words.trim().is_empty()).then_some((number, start..start + digits.len()))
        }

        /// Returns the position, at or after `from`, of the first line end that is followed by a blank line; `None` if
        /// there is none.
        fn blank_line(text: &str, from: usize) -> Option<usize> {
            let mut at = from;
            loop {
                at += text.get(at..)?.find('\n')?;
                let behind = text.get(at + 1..)?;
                let line = behind.split_once('\n').map_or(behind, |(line, _)| line);
                if line.trim().is_empty() && behind.len() > line.len() {
                    return Some(at);
                }
                at += 1;
            }
        }

        /// Returns `range` without the white space at its ends.
        fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
            let part = text.get(range.clone()).unwrap_or_default();
            let start = range.start + (part.len() - part.trim_start().len());
            start..start + part.trim().len()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn agrees_with_readings_that_take_their_time(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "[1] ", "[2] ", "[03]", "[", "]", "---", "-", "----\n", "# ", "#", "## ", "```", "\n", "\n\n", "\r\n", "\r",
                    " ", "\t", "\u{a0}", "x", "word ", "7", "\n[4] y", "\n# T", "\n---\n",
                ]),
                0..24,
            ),
            is_tool in any::<bool>(),
        ) {
            let text = pieces.concat();
            let author = if is_tool { Author::Tool } else { Author::Other };
            prop_assert_eq!(numbered(&text, author), slow::numbered(&text, author), "{:?}", text);
            prop_assert_eq!(ruled(&text, author), slow::ruled(&text, author), "{:?}", text);
            prop_assert_eq!(headed(&text, author), slow::headed(&text, author), "{:?}", text);
        }
    }
}
