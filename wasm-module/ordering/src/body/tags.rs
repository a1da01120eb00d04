//! Finds tagged documents in a text, such as `<document id="a">…</document>`. A wrapper around them is ordinary text.
//!
//! One pass finds every tag with a configured name; later steps use only these marks. An opening tag's attributes are
//! read at most once, up to the second opening tag after it. So the cost is linear in the text.
//!
//! ```text
//!   See <doc id=1>. <docs> \n<doc id=2> x </doc> \n<doc id=3> y </doc> </docs>
//!       [          ]           [       ]     [    ]   [       ]     [    ]          marks, by name
//! ```

use super::search::{find, find_last, pass, pass_space, trimmed_start};
use smallvec::SmallVec;
use std::ops::Range;

/// A document in a text, given by ranges of the text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The range of the whole document in the text; with tags, from `<` to the closing tag's `>`.
    pub(super) whole: Range<usize>,
    /// The range of the document's id in the text; `None` if it has none or an empty one.
    pub(super) id: Option<Range<usize>>,
}

/// Returns the documents in `text`, in order and without nesting: those in tags with one of the `names` or, if there
/// are none, those in tags with the first name of `loose` that encloses two or more. A tag that is never closed is
/// ordinary text, and so is one whose attributes contain more than one other opening tag.
pub(super) fn spans(text: &str, names: &[String], loose: &[String]) -> Vec<Span> {
    let tags = Tags::read(text, names, loose);
    let strict = tags.spans(|name| name < names.len());
    if !strict.is_empty() {
        return strict;
    }
    let loose = (names.len()..tags.openings.len())
        .filter(|name| tags.openings.get(*name).is_some_and(|count| *count > 1));
    let mut kinds = loose.map(|name| tags.spans(|other| other == name));
    kinds.find(|spans| spans.len() > 1).unwrap_or_default()
}

/// Returns the end of the closing tag of a wrapper (an element around documents) if one follows the offset `end` after
/// white space; otherwise `end`.
pub(super) fn wrapper_end(text: &str, end: usize) -> usize {
    let tag = trimmed_start(text, end..text.len()).start;
    let is_closing = text.get(tag..).is_some_and(|tag| tag.starts_with("</"));
    if !is_closing {
        return end;
    }
    let name = name_at(text, tag + 2);
    let close = trimmed_start(text, name.end..text.len()).start;
    match text.as_bytes().get(close) {
        Some(b'>') if !name.is_empty() && name.len() <= MAX_NAME_BYTES => close + 1,
        _ => end,
    }
}

/// The tags of a text that have a configured name.
struct Tags<'t> {
    text: &'t str,
    /// The positions of the tags, in the order of the text.
    marks: Vec<Mark>,
    /// Number of opening tags of each configured name, by the name's index among the configured names.
    openings: SmallVec<[u32; 8]>,
    /// For each configured name, by its index among the configured names: the index in `marks` of the first tag that
    /// closes it, or [`NONE`].
    closings: SmallVec<[u32; 8]>,
}

/// A tag in a text, opening or closing. A text may consist of nothing but tags, so this record is kept small: positions
/// have 32 bits, and tags beyond the first 4 GiB count as text.
#[derive(Clone, Copy)]
struct Mark {
    /// Position of the tag's `<` in the text.
    at: u32,
    /// Position after the tag's name in an opening tag; position after the whole tag for a closing one.
    end: u32,
    /// For a closing tag, the index in [`Tags::marks`] of the next tag that closes the same name, or [`NONE`].
    next: u32,
    /// Index of the tag's name among the configured names; those of the loose tags follow the others.
    name: u16,
    is_closing: bool,
}

impl Mark {
    fn at(&self) -> usize {
        self.at as usize
    }

    fn end(&self) -> usize {
        self.end as usize
    }
}

/// The index in [`Tags::marks`] that stands for no tag. An `Option` would make the record of a tag a quarter larger.
const NONE: u32 = u32::MAX;

/// The maximum length of a configured tag name, in bytes.
const MAX_NAME_BYTES: usize = 64;

impl<'t> Tags<'t> {
    fn read(text: &'t str, names: &[String], loose: &[String]) -> Self {
        let mut tags = Self {
            text,
            marks: Vec::new(),
            openings: SmallVec::from_elem(0, names.len() + loose.len()),
            closings: SmallVec::from_elem(NONE, names.len() + loose.len()),
        };
        // For each name, the last mark so far that closes it.
        let mut last = tags.closings.clone();
        let mut at = 0;
        while let Some(open) = find(text, at, b'<') {
            at = open + 1;
            let behind = text.as_bytes().get(at).copied().unwrap_or_default();
            let is_closing = behind == b'/';
            if !is_closing && !is_of_name(behind) {
                continue;
            }
            let word = name_at(text, at + usize::from(is_closing));
            let token = text.get(word.clone()).unwrap_or_default();
            let mut known = names.iter().chain(loose);
            let Some(name) = known.position(|name| name == token) else {
                continue;
            };
            let close = pass_space(text, word.end);
            let is_ended = text.as_bytes().get(close) == Some(&b'>');
            if !is_ended && (is_closing || close == word.end) {
                continue;
            }
            let end = if is_closing { close + 1 } else { word.end };
            let place = |at: usize| u32::try_from(at);
            let (Ok(start), Ok(end), Ok(here)) = (place(open), place(end), place(tags.marks.len()))
            else {
                break;
            };
            if !is_closing {
                if let Some(count) = tags.openings.get_mut(name) {
                    *count += 1;
                }
            } else if let Some(last) = last.get_mut(name) {
                let before = std::mem::replace(last, here);
                if let Some(mark) = tags.marks.get_mut(before as usize) {
                    mark.next = here;
                } else if let Some(first) = tags.closings.get_mut(name) {
                    *first = here;
                }
            }
            tags.marks.push(Mark {
                at: start,
                end,
                next: NONE,
                name: u16::try_from(name).unwrap_or(u16::MAX),
                is_closing,
            });
        }
        tags
    }

    /// Returns the documents in tags, in the order of the text. Of the configured tag names, only those whose index
    /// `is_wanted` accepts count. No two documents overlap: a tag within a document does not begin another one.
    fn spans(&self, is_wanted: impl Fn(usize) -> bool) -> Vec<Span> {
        let mut found = Vec::new();
        // The next closing tag of each name. Opening tags are visited in order, so these only advance.
        let mut closings = self.closings.clone();
        let mut at = 0;
        for (place, mark) in self.marks.iter().enumerate() {
            let name = usize::from(mark.name);
            if mark.at() < at || mark.is_closing || !is_wanted(name) {
                continue;
            }
            let Some(closing) = closings.get_mut(name) else {
                continue;
            };
            // The attributes of a tag that is never closed are not read.
            while self.closes_before(*closing, mark.end()) {
                *closing = self.next(*closing);
            }
            if *closing == NONE {
                continue;
            }
            let Some(opening) = self.opening(place) else {
                continue;
            };
            while self.closes_before(*closing, opening.end) {
                *closing = self.next(*closing);
            }
            let Some(end) = self.mark(*closing).map(Mark::end) else {
                continue;
            };
            let inner = self.inner(place, at, &opening, *closing as usize);
            let (open, id) = match inner {
                Some((inner, opening)) => (inner.at(), opening.id),
                None => (mark.at(), opening.id),
            };
            found.push(Span {
                whole: open..end,
                id,
            });
            at = end;
        }
        found
    }

    /// Returns whether `closing` is the index in `marks` of a tag (and not [`NONE`]) that begins before the byte at
    /// offset `at` of the text.
    fn closes_before(&self, closing: u32, at: usize) -> bool {
        self.mark(closing).is_some_and(|mark| mark.at() < at)
    }

    fn next(&self, closing: u32) -> u32 {
        self.mark(closing).map_or(NONE, |mark| mark.next)
    }

    fn mark(&self, place: u32) -> Option<&Mark> {
        self.marks.get(place as usize)
    }

    /// Returns the opening tag that really begins a document, if the tag at index `place` of `marks` is only mentioned
    /// in a sentence before it, as by Open WebUI: "(e.g., <source id="1">)". The result is the first tag (1) of the
    /// same name, (2) before the closing tag at index `closing` of `marks`, (3) that begins an element on a later line
    /// than `outer`, the first tag as read, ends, (4) with an id where that has none, or with the same id; any one if
    /// words precede the first tag on its line, behind the document before it, which ends at `before`. `None` if there
    /// is no such tag.
    fn inner(
        &self,
        place: usize,
        before: usize,
        outer: &Opening,
        closing: usize,
    ) -> Option<(&Mark, Opening)> {
        let first = self.marks.get(place)?;
        let is_alike = |mark: &Mark| !mark.is_closing && mark.name == first.name;
        let others = self.marks.get(place + 1..closing)?;
        if !others.iter().any(is_alike) {
            return None;
        }
        let is_mention = !line_before(self.text, before, first.at()).is_plain;
        let id = |opening: &Opening| self.text.get(opening.id.clone()?);
        let between = others.iter().enumerate();
        let mut candidates = between.filter(|(_, mark)| mark.at() >= outer.end);
        let mut from = outer.end;
        let mut begins = false;
        candidates.find_map(|(nth, mark)| {
            let line = line_before(self.text, from, mark.at());
            begins = line.is_plain && (begins || line.is_later);
            from = mark.at();
            if !begins || !is_alike(mark) {
                return None;
            }
            let opening = self.opening(place + 1 + nth)?;
            let is_real = match outer.id {
                None => opening.id.is_some(),
                Some(_) => id(&opening) == id(outer),
            };
            (is_mention || is_real).then_some((mark, opening))
        })
    }

    /// Reads the opening tag at index `place` of `marks`. `None` if it is self-closing, or if it does not end before
    /// the second opening tag that follows.
    fn opening(&self, place: usize) -> Option<Opening> {
        let behind = self.marks.get(place + 1..)?.iter();
        let limit = behind.filter(|mark| !mark.is_closing).nth(1);
        let text = self.text.get(..limit.map_or(self.text.len(), Mark::at))?;
        read_attributes(text, self.marks.get(place)?.end())
    }
}

/// The result of reading the text between the beginning of a tag's line and the tag.
struct LineBefore {
    /// True if it consists of white space, punctuation, numbers, other tags, and words that only count documents: the tag
    /// is not mentioned in a sentence.
    is_plain: bool,
    /// True if the line begins behind the offset from which it was read.
    is_later: bool,
}

/// Reads what precedes the offset `at` of a text on its line, at most back to the offset `from`.
fn line_before(text: &str, from: usize, at: usize) -> LineBefore {
    let before = text.get(from..at).unwrap_or_default();
    let line_break = find_last(before, b'\n');
    let line = before.get(line_break.map_or(0, |at| at + 1)..);
    let line = line.unwrap_or_default();
    let mut word = 0;
    let mut is_tag = false;
    let is_plain = line.bytes().enumerate().all(|(at, byte)| {
        if byte.is_ascii_alphabetic() || !byte.is_ascii() {
            return true;
        }
        let is_allowed = if is_tag {
            byte != b'<'
        } else {
            is_counted(line.get(word..at).unwrap_or_default())
        };
        is_tag = byte == b'<' || is_tag && byte != b'>';
        word = at + 1;
        is_allowed
    });
    LineBefore {
        is_plain: is_plain && !is_tag && is_counted(line.get(word..).unwrap_or_default()),
        is_later: line_break.is_some(),
    }
}

/// Returns whether `word` is one of [`COUNTED`], also in the plural, or empty.
pub(super) fn is_counted(word: &str) -> bool {
    let word = word.strip_suffix('s').unwrap_or(word);
    word.is_empty() || COUNTED.iter().any(|known| known.eq_ignore_ascii_case(word))
}

/// Words behind which a number only counts documents. Other things that are numbered, such as versions, drafts and
/// quarters, differ in what their number means.
pub(super) const COUNTED: [&str; 24] = [
    "document",
    "doc",
    "source",
    "passage",
    "paragraph",
    "context",
    "result",
    "search",
    "web",
    "retrieved",
    "item",
    "chunk",
    "snippet",
    "excerpt",
    "evidence",
    "reference",
    "text",
    "number",
    "index",
    "rank",
    "no",
    "id",
    "i",
    "n",
];

/// Returns the range of the tag name that begins at offset `at`, cut one byte after the longest name allowed; empty if
/// there is none.
pub(super) fn name_at(text: &str, at: usize) -> Range<usize> {
    let end = text.len().min(at + MAX_NAME_BYTES + 1);
    let bytes = text.as_bytes().get(at..end).unwrap_or_default();
    let length = bytes.iter().take_while(|byte| is_of_name(**byte)).count();
    crate::work::looked(length + 1);
    at..at + length
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte)
}

struct Opening {
    id: Option<Range<usize>>,
    /// Position in the text after the tag's `>`.
    end: usize,
}

/// Reads the attributes of an opening tag whose name ends at offset `at`; `None` if the tag has no end or is
/// self-closing.
fn read_attributes(text: &str, mut at: usize) -> Option<Opening> {
    let byte = |at: usize| text.as_bytes().get(at).copied();
    let mut id = None;
    loop {
        at = pass_space(text, at);
        match byte(at)? {
            b'>' => return Some(Opening { id, end: at + 1 }),
            b'/' | b'<' => return None,
            _ => {}
        }
        let is_of_key = |byte: u8| !(b"=>/<".contains(&byte) || byte.is_ascii_whitespace());
        let key = at..pass(text, at, is_of_key);
        at = key.end;
        let behind = byte(at)?;
        if key.is_empty() {
            return None;
        }
        if behind != b'=' {
            continue;
        }
        at += 1;
        let value = match byte(at)? {
            quote @ (b'"' | b'\'') => {
                let start = at + 1;
                at = find(text, start, quote)? + 1;
                start..at - 1
            }
            _ => {
                let start = at;
                at = pass(text, start, |byte| {
                    byte != b'>' && !byte.is_ascii_whitespace()
                });
                byte(at)?;
                start..at
            }
        };
        if text.get(key) == Some("id") && !value.is_empty() {
            id = Some(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the documents in `text`, each as its whole text and its id, `None` if it has none.
    fn found(text: &str) -> Vec<(&str, Option<&str>)> {
        let names = ["document".to_owned(), "doc".to_owned()];
        spans(text, &names, &[])
            .into_iter()
            .map(|span| (&text[span.whole], span.id.map(|id| &text[id])))
            .collect()
    }

    #[test]
    fn finds_tagged_documents_and_their_ids() {
        assert_eq!(
            found(
                "Read:\n<document id=\"a\" n=1>x</document>\n<doc id='b'\n>y</doc > <doc id=c>z</doc><doc>w</doc>"
            ),
            [
                ("<document id=\"a\" n=1>x</document>", Some("a")),
                ("<doc id='b'\n>y</doc >", Some("b")),
                ("<doc id=c>z</doc>", Some("c")),
                ("<doc>w</doc>", None),
            ]
        );
    }

    #[test]
    fn what_is_no_document_is_text() {
        for text in [
            "<documents><other>x</other></documents>",
            "<doc id=\"a\"/>",
            "<doc id=\"a\">never closed <doc",
            "<doc",
            "<doc =>x</doc>",
            "a < doc > b",
            "<doc id=\"unterminated>x</doc>",
            "<doc id=\"\"",
            "",
        ] {
            assert_eq!(found(text), [], "{text}");
        }
        assert_eq!(
            found("<doc id=\"\">x</doc>"),
            [("<doc id=\"\">x</doc>", None)]
        );
    }

    #[test]
    fn a_wrapper_is_looked_into() {
        assert_eq!(
            found("<documents>\n<doc id=\"a\">x</doc>\n</documents>"),
            [("<doc id=\"a\">x</doc>", Some("a"))]
        );
    }

    #[test]
    fn the_first_closing_tag_closes_and_other_names_do_not() {
        assert_eq!(
            found("<doc id=a>x</document> y</doc>"),
            [("<doc id=a>x</document> y</doc>", Some("a"))]
        );
    }

    #[test]
    fn a_tag_that_is_only_spoken_of_opens_nothing() {
        assert_eq!(
            found(
                "Cite (e.g., <doc id=1>).\n<documents>\n <doc id=2>x</doc>\n<doc id=3>y <doc> z</doc>"
            ),
            [
                ("<doc id=2>x</doc>", Some("2")),
                ("<doc id=3>y <doc> z</doc>", Some("3")),
            ]
        );
        let many =
            "See <doc>.\n".to_owned() + &"see <doc id=a>\n".repeat(200_000) + "<doc id=b></doc>";
        assert_eq!(found(&many), [("<doc id=b></doc>", Some("b"))]);
    }

    #[test]
    fn a_document_that_holds_a_tag_of_its_own_name_begins_with_the_outer_one() {
        fn source(text: &str) -> Vec<&str> {
            let spans = spans(text, &["source".to_owned()], &[]);
            spans.into_iter().map(|span| &text[span.whole]).collect()
        }
        let video = "<source id=\"1\" name=\"video.md\">Use:\n<video controls>\n  <source src=\"movie.mp4\">\n</video></source>";
        let basel = "<source id=\"2\">Basel.</source>";
        for before in [
            "",
            "<context>\n",
            "<context>",
            "Cite (e.g., [1]).\n \n",
            "- ",
            "1. ",
            "Document 1: ",
            "Cite (e.g., <source id=\"1\">).\n<context>",
        ] {
            let text = format!("{before}{video}\n{basel}\n</context>\nHow?");
            assert_eq!(source(&text), [video, basel], "{before}");
        }
        let text = "<doc id=1>\nquote:\n<doc id=9>inner</doc>\n</doc>\n<doc id=2>x</doc>";
        assert_eq!(
            found(text),
            [
                ("<doc id=1>\nquote:\n<doc id=9>inner</doc>", Some("1")),
                ("<doc id=2>x</doc>", Some("2")),
            ]
        );
        // A tag that begins a line may be a mention.
        let text = "<source id=1> begins each.\nCite as [1].\n<context>\n<source id=1>A</source>";
        assert_eq!(source(text), ["<source id=1>A</source>"]);
        assert_eq!(
            found("<doc> tags hold documents.\n<doc id=1>x</doc>"),
            [("<doc id=1>x</doc>", Some("1"))]
        );
    }

    #[test]
    fn names_of_many_uses_need_two_of_a_kind() {
        let names = ["context".to_owned(), "file".to_owned()];
        let found = |text| spans(text, &[], &names).len();
        assert_eq!(found("<context>x</context><file>y</file>"), 0);
        assert_eq!(found("<files><file>x</file> <file>y</file></files>"), 2);
        assert_eq!(found("<context>x</context><file>y</file><file>z</file>"), 2);
    }

    #[test]
    fn many_unclosed_tags_cost_no_more_than_one() {
        // A quadratic search would take minutes here.
        assert_eq!(found(&"<doc id=a>".repeat(200_000)), []);
    }

    #[test]
    fn the_end_of_a_wrapper_follows_the_last_document() {
        let text = "<docs><doc>x</doc>\n</docs>\nWhy?";
        let end = text.find("\n</docs>").unwrap();
        assert_eq!(&text[wrapper_end(text, end)..], "\nWhy?");
        assert_eq!(wrapper_end("<doc>x</doc> Why?", 12), 12);
        assert_eq!(wrapper_end("<doc>x</doc></", 12), 12);
    }

    /// The earlier implementation of the search for tags, quadratic in the text: a slow model for tests.
    mod slow {
        use super::Span;
        use std::ops::Range;

        /// Returns the documents in `text` that are in tags with one of `names`, in order and not nested. A tag that is
        /// never closed is ordinary text.
        pub(super) fn spans(text: &str, names: &[String]) -> Vec<Span> {
            let mut found = Vec::new();
            let mut at = 0;
            // Names whose closing tag cannot follow any more: without this, many unclosed tags cost O(n²).
            let mut unclosed: Vec<&str> = Vec::new();
            // The end of the last document.
            let mut at_before = 0;
            while let Some(open) = text[at..].find('<').map(|found| at + found) {
                at = open + 1;
                let Some(opening) = opening_tag(text, open, names) else {
                    continue;
                };
                if unclosed.contains(&opening.name) {
                    continue;
                }
                match closing_tag(text, opening.end, opening.name) {
                    Some(closing) => {
                        let end = closing.end;
                        let (open, opening) = if closing.is_first {
                            (open, opening)
                        } else {
                            inner(text, at_before, open, opening, end, names)
                        };
                        found.push(Span {
                            whole: open..end,
                            id: opening.id,
                        });
                        at = end;
                        at_before = end;
                    }
                    None => unclosed.push(opening.name),
                }
            }
            found
        }

        /// Returns the documents in `text` that are in tags with the first of `names` whose tags enclose two or more.
        pub(super) fn several(text: &str, names: &[String]) -> Vec<Span> {
            let tagged = |name| spans(text, std::slice::from_ref(name));
            let mut kinds = names.iter().map(tagged);
            kinds.find(|spans| spans.len() > 1).unwrap_or_default()
        }

        /// Returns the opening tag that belongs to the closing tag before `end`: the tag at `open`, or the first one of
        /// its name after it that begins an element on a later line. The tag at `open` is then only mentioned, as in Open
        /// WebUI's prompt: "(e.g., <source id="1">)". It is no mention if no words precede it on its line, unless the
        /// other has its id, or it has none.
        fn inner<'n>(
            text: &str,
            before: usize,
            open: usize,
            opening: Opening<'n>,
            end: usize,
            names: &'n [String],
        ) -> (usize, Opening<'n>) {
            let is_mention = !is_plain(text[before..open].rsplit('\n').next().unwrap());
            let inside = text.get(opening.end..end).unwrap_or_default();
            for (at, _) in inside.match_indices('<') {
                let Some((_, line)) = inside[..at].rsplit_once('\n') else {
                    continue;
                };
                if let Some(other) = opening_tag(text, opening.end + at, names)
                    && is_plain(line)
                    && other.name == opening.name
                {
                    let id = |opening: &Opening<'_>| opening.id.clone().map(|id| &text[id]);
                    let is_real = match opening.id {
                        None => other.id.is_some(),
                        Some(_) => id(&other) == id(&opening),
                    };
                    if is_mention || is_real {
                        return (opening.end + at, other);
                    }
                }
            }
            (open, opening)
        }

        /// Returns whether a text has no words outside tags, except those that count documents.
        fn is_plain(line: &str) -> bool {
            let mut outside = String::new();
            let mut rest = line;
            while let Some((before, tag)) = rest.split_once('<') {
                let Some((tag, behind)) = tag.split_once('>') else {
                    return false;
                };
                if tag.contains('<') {
                    return false;
                }
                outside = outside + before + " ";
                rest = behind;
            }
            outside += rest;
            let is_of_word = |c: char| c.is_ascii_alphabetic() || !c.is_ascii();
            outside.split(|c| !is_of_word(c)).all(super::is_counted)
        }

        struct Opening<'n> {
            name: &'n str,
            id: Option<Range<usize>>,
            /// Position after the tag's `>`.
            end: usize,
        }

        /// Reads the opening tag at the offset `open`; `None` if it has none of the names or is self-closing.
        fn opening_tag<'n>(text: &str, open: usize, names: &'n [String]) -> Option<Opening<'n>> {
            let opening = any_opening_tag(text, open, names)?;
            let inside = &text[open + 1..opening.end];
            let others = inside.match_indices('<').filter(|(at, _)| {
                let behind = &inside[at + 1..];
                names.iter().any(|name| {
                    behind.strip_prefix(name.as_str()).is_some_and(|rest| {
                        rest.is_empty()
                            || rest.starts_with(|c: char| c == '>' || c.is_ascii_whitespace())
                    })
                })
            });
            (others.count() < 2).then_some(opening)
        }

        fn any_opening_tag<'n>(
            text: &str,
            open: usize,
            names: &'n [String],
        ) -> Option<Opening<'n>> {
            let after = text.get(open + 1..)?;
            let name = names.iter().find(|name| {
                after.strip_prefix(name.as_str()).is_some_and(|rest| {
                    rest.starts_with(|c: char| c == '>' || c.is_ascii_whitespace())
                })
            })?;
            let mut at = open + 1 + name.len();
            let mut id = None;
            loop {
                let rest = text.get(at..)?;
                at += rest.len() - rest.trim_ascii_start().len();
                let rest = text.get(at..)?;
                match rest.chars().next()? {
                    '>' => {
                        return Some(Opening {
                            name,
                            id,
                            end: at + 1,
                        });
                    }
                    '/' | '<' => return None,
                    _ => {}
                }
                let key_len = rest.find(|c: char| {
                    c == '=' || c == '>' || c == '/' || c == '<' || c.is_ascii_whitespace()
                })?;
                let key = rest.get(..key_len).filter(|key| !key.is_empty())?;
                at += key_len;
                let Some(value) = text.get(at..)?.strip_prefix('=') else {
                    continue;
                };
                at += 1;
                let range = match value.chars().next()? {
                    quote @ ('"' | '\'') => {
                        let length = value.get(1..)?.find(quote)?;
                        let range = at + 1..at + 1 + length;
                        at = range.end + 1;
                        range
                    }
                    _ => {
                        let length = value.find(|c: char| c == '>' || c.is_ascii_whitespace())?;
                        at += length;
                        at - length..at
                    }
                };
                if key == "id" && !range.is_empty() {
                    id = Some(range);
                }
            }
        }

        struct Closing {
            /// Position after the tag's `>`.
            end: usize,
            /// True if no other `<` precedes the tag.
            is_first: bool,
        }

        /// Returns the first `</name>` at or after the offset `from`; `None` if there is none.
        fn closing_tag(text: &str, from: usize, name: &str) -> Option<Closing> {
            let mut at = from;
            let mut is_first = true;
            loop {
                at += text.get(at..)?.find('<')? + 1;
                if let Some(rest) = text.get(at..)?.strip_prefix('/')
                    && let Some(rest) = rest.strip_prefix(name)
                    && let Some(after) = rest.trim_ascii_start().strip_prefix('>')
                {
                    return Some(Closing {
                        end: text.len() - after.len(),
                        is_first,
                    });
                }
                is_first = false;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn agrees_with_a_reading_that_takes_its_time(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "<doc ", "<doc>", "<document ", "</doc>", "</doc >", "</document>", "<ref>", "</ref>", "<doc", "<d>",
                    "a=", "id=", "'", "\"", "'x'", "\"y\"", "=", ">", "/", "/>", " ", "\n", "\n ", "x", "\u{a0}", "<", "b",
                ]),
                0..24,
            ),
        ) {
            let text = pieces.concat();
            let names = ["document".to_owned(), "doc".to_owned()];
            let loose = ["ref".to_owned()];
            prop_assert_eq!(spans(&text, &names, &[]), slow::spans(&text, &names), "{}", text);
            let expected = slow::several(&text, &loose);
            prop_assert_eq!(spans(&text, &[], &loose), expected, "{}", text);
        }
    }
}
