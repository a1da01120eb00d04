//! Labels between tagged documents: text that may say which document is which, so that these must not be exchanged.
//!
//! ```text
//!   Old contract:              Document 1:              <item>1. <doc>A</doc></item>
//!   <doc>A</doc>               <doc>A</doc>             <item>2. <doc>B</doc></item>
//!   New contract:              Document 2:
//!   <doc>B</doc>               <doc>B</doc>
//!
//!   two groups                 one group: the labels    one group: the same tag
//!                              number places
//! ```

use super::tags::{Span, is_counted, name_at};
use crate::work::looked;
use std::ops::Range;

/// Divides the tagged documents at `spans` of a text into groups, and returns the number of documents in each. Only
/// documents of one group may be exchanged. A label, which is text between two documents that may say which is which,
/// begins a new group. There is one exception: in the first group, a label that also ends the text before the first
/// document, such as `Document 1:`, begins none, since each document has it. Takes time linear in the length of the
/// text up to the last document.
pub(super) fn groups(text: &str, spans: &[Span]) -> Vec<usize> {
    let ends = spans.iter().map(|span| span.whole.end);
    let starts = spans.iter().skip(1).map(|span| span.whole.start);
    let gaps = ends.zip(starts).zip(1..);
    let labels = gaps.map(|((end, start), place)| label(text, end..start, place));
    let labels: Vec<String> = labels.collect();
    if labels.iter().all(String::is_empty) {
        return vec![spans.len()];
    }
    let start = spans.first().map_or(0, |span| span.whole.start);
    let mut before = label(text, 0..start, 0);
    let mut counts = vec![1];
    for label in labels {
        match counts.last_mut() {
            Some(count) if before.ends_with(&label) => *count += 1,
            _ => {
                counts.push(1);
                before.clear();
            }
        }
    }
    counts
}

/// Returns the label (text that may say which document is which) that a range of `text` before a document gives it: the
/// words, names of opening tags, symbols and numbers in that range. Two numbers are left out where they only count:
/// `place`, the document's index among those of the text, and `place + 1`, behind no other words than
/// [`COUNTED`](super::tags::COUNTED) in their line, clause or element: `Version 1` is a name. In the result, a line break
/// precedes a word that begins a line, a clause or an element, and a space any other word: a label that ends with
/// `signed` is not the same as one that ends with `not signed` or `unsigned`.
fn label(text: &str, range: Range<usize>, place: usize) -> String {
    let part = text.get(range).unwrap_or_default();
    looked(part.len());
    let mut label = Label::default();
    // True until the first word or number of a line or element.
    let mut begins_line = true;
    let mut at = 0;
    while let Some(character) = part.get(at..).and_then(|rest| rest.chars().next()) {
        let start = at;
        at += character.len_utf8();
        if character.is_ascii_digit() {
            let digits = part.bytes().skip(at).take_while(u8::is_ascii_digit);
            at += digits.count();
            let number = part.get(start..at).unwrap_or_default();
            // `1 January` is a name, and so is `Version 1.1`.
            let rest = part.get(at..).unwrap_or_default();
            let is_named = rest
                .strip_prefix(' ')
                .is_some_and(|rest| rest.chars().next().is_some_and(char::is_alphabetic));
            let counts = match begins_line {
                true => !is_named,
                false => label.has_only_counted(),
            };
            if counts && [Ok(place), Ok(place + 1)].contains(&number.parse()) {
                label.mark = label.mark.or(Some(' '));
                continue;
            }
            begins_line = false;
            label.begin_word();
            label.words.push_str(number);
        } else if character.is_alphabetic()
            || is_symbol(character)
            || label.mark.is_none() && matches!(character, '#' | '+')
        {
            begins_line = false;
            label.begin_word();
            label.words.push(character);
        } else if matches!(character, '\n' | '.' | ':' | ';' | '!' | '?' | '<' | '>') {
            label.mark = Some('\n');
            begins_line |= matches!(character, '\n' | '<');
            if character == '<' && part.as_bytes().get(at) == Some(&b'/') {
                at = tag_end(part, at).unwrap_or(at);
            }
        } else {
            label.mark = label.mark.or(Some(' '));
        }
    }
    label.words
}

/// A label that is being read.
struct Label {
    words: String,
    /// The mark before the next word; `None` within a word.
    mark: Option<char>,
    /// Offset in `words` at which the last word begins.
    last: usize,
    /// True if the words before the last one in its clause are all among [`COUNTED`](super::tags::COUNTED).
    only_counted: bool,
}

impl Default for Label {
    fn default() -> Self {
        Self {
            words: String::new(),
            mark: Some('\n'),
            last: 0,
            only_counted: true,
        }
    }
}

impl Label {
    /// Returns whether all words so far of the last word's clause are among [`COUNTED`](super::tags::COUNTED).
    fn has_only_counted(&self) -> bool {
        self.only_counted && is_counted(self.words.get(self.last..).unwrap_or_default())
    }

    /// Appends the mark before the next word, which then begins; no effect within a word.
    fn begin_word(&mut self) {
        if let Some(mark) = self.mark.take() {
            self.only_counted = mark == '\n' || self.has_only_counted();
            self.words.push(mark);
            self.last = self.words.len();
        }
    }
}

/// Returns whether a character that is neither letter nor digit may tell documents apart, as `✅` may and a dash, a
/// bullet or a full-width colon may not.
fn is_symbol(character: char) -> bool {
    !matches!(character, '\0'..='\u{bf}' | '\u{2000}'..='\u{206f}' | '\u{2500}'..='\u{257f}'
        | '\u{3000}'..='\u{303f}' | '\u{ff00}'..='\u{ffef}')
        && !character.is_alphanumeric()
        && !character.is_whitespace()
}

/// Returns the position after the closing tag whose slash is at `at`; `None` if there is no closing tag.
fn tag_end(text: &str, at: usize) -> Option<usize> {
    let name = name_at(text, at + 1);
    let is_tag = !name.is_empty() && text.as_bytes().get(name.end) == Some(&b'>');
    is_tag.then_some(name.end + 1)
}

#[cfg(test)]
mod tests {
    use super::super::tags;
    use super::*;

    /// Returns the number of documents in each group into which labels divide the documents of `text`.
    fn found(text: &str) -> Vec<usize> {
        groups(text, &tags::spans(text, &["doc".to_owned()], &[]))
    }

    #[test]
    fn a_label_that_says_which_document_follows_ends_the_group() {
        for (text, expected) in [
            (
                "Old contract:\n<doc>a</doc>\nNew contract:\n<doc>b</doc>\nWhat changed?",
                &[1, 1][..],
            ),
            (
                "Source: a.txt\n<doc>a</doc>\nSource: b.txt\n<doc>b</doc>",
                &[1, 1],
            ),
            (
                "<doc>a</doc>\n(the old one)\n<doc>b</doc>\n(the new one)",
                &[1, 1],
            ),
            ("not signed:<doc>a</doc>signed:<doc>b</doc>", &[1, 1]),
            ("unsigned:<doc>a</doc>signed:<doc>b</doc>", &[1, 1]),
            (
                "<x><i n='a'><doc>a</doc></i><i n='b'><doc>b</doc></i></x>",
                &[1, 1],
            ),
            (
                "<doc>a</doc><doc>b</doc> Theirs: <doc>c</doc><doc>d</doc>",
                &[2, 2],
            ),
            ("旧：<doc>a</doc>新：<doc>b</doc>", &[1, 1]),
            ("<old><doc>a</doc></old>\n<new><doc>b</doc></new>", &[1, 1]),
            (
                "Report 2022:\n<doc>a</doc>\nReport 2023:\n<doc>b</doc>",
                &[1, 1],
            ),
            (
                "Version 1:\n<doc>a</doc>\nVersion 2:\n<doc>b</doc>",
                &[1, 1],
            ),
            ("Q1: <doc>a</doc>\nQ2: <doc>b</doc>", &[1, 1]),
            (
                "Version 1.0:\n<doc>a</doc>\nVersion 1.1:\n<doc>b</doc>",
                &[1, 1],
            ),
            ("Vol. 1 <doc>a</doc>\nVol. 2 <doc>b</doc>", &[1, 1]),
            ("Version: 1 <doc>a</doc>\nVersion: 2 <doc>b</doc>", &[1, 1]),
            (
                "<version>1</version><doc>a</doc><version>2</version><doc>b</doc>",
                &[1, 1],
            ),
            ("At 12:01 <doc>a</doc>\nAt 12:02 <doc>b</doc>", &[1, 1]),
            ("1 January: <doc>a</doc>\n2 January: <doc>b</doc>", &[1, 1]),
            (
                "The player document 1:\n<doc>a</doc>\nThe player document 2:\n<doc>b</doc>",
                &[1, 1],
            ),
            (
                "<draft n='1'><doc>a</doc></draft>\n<draft n='2'><doc>b</doc></draft>",
                &[1, 1],
            ),
            ("C++: <doc>a</doc>\nC#: <doc>b</doc>", &[1, 1]),
            ("✅ <doc>a</doc>\n❌ <doc>b</doc>", &[1, 1]),
            (
                "<doc>a</doc>\nthen came\n<doc>b</doc>\nthen came\n<doc>c</doc>",
                &[1, 1, 1],
            ),
            (
                "A\n<doc>a</doc>\nB\n<doc>b</doc>\nB\n<doc>c</doc>\n<doc>d</doc>",
                &[1, 1, 2],
            ),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn a_label_that_numbers_places_ends_no_group() {
        for (text, expected) in [
            (
                "Document 1:\n<doc>a</doc>\nDocument 2:\n<doc>b</doc>\nWhy?",
                2,
            ),
            (
                "Read. **Document [1]** <doc>a</doc>; **Document [2]** <doc>b</doc>",
                2,
            ),
            (
                "<items><i id=\"1\"><doc>a</doc></i>\n<i id=\"2\"><doc>b</doc></i></items>",
                2,
            ),
            (
                "<items><item>1. <doc>a</doc></item> --- <item>2. <doc>b</doc></item></items>",
                2,
            ),
            (
                "Search result 1:\n<doc>a</doc>\nSearch result 2:\n<doc>b</doc>",
                2,
            ),
            ("doc1: <doc>a</doc>\ndoc2: <doc>b</doc>", 2),
            ("Doc. 1: <doc>a</doc>\nDoc. 2: <doc>b</doc>", 2),
            ("Sources:\n1) <doc>a</doc>\n2) <doc>b</doc>", 2),
            (
                "<item>1. <doc>a</doc></item><item>2. <doc>b</doc></item>",
                2,
            ),
            (
                "Context 1 of 2: <doc>a</doc>\nContext 2 of 2: <doc>b</doc>",
                2,
            ),
            ("<doc>a</doc>\n###\n<doc>b</doc>\n—\n<doc>c</doc>", 3),
            ("Words <doc>a</doc>", 1),
        ] {
            assert_eq!(found(text), [expected], "{text}");
        }
    }
}
