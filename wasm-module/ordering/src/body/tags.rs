//! Documents in a message: tagged spans such as `<document id="a">…</document>`. What wraps them is text.

use super::search::find;
use std::ops::Range;

/// A tagged document in a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// From `<` to the closing tag's `>`.
    pub(super) whole: Range<usize>,
    /// The value of its `id` attribute; `None` when it has none, or an empty one.
    pub(super) id: Option<Range<usize>>,
}

/// The documents in `text`, in order; none lies in another. A tag that is never closed is text.
pub(super) fn spans(text: &str, names: &[String]) -> Vec<Span> {
    let mut found = Vec::new();
    let mut at = 0;
    // Names whose closing tag is known not to follow any more: without this, many unclosed tags cost O(n²).
    let mut unclosed: Vec<&str> = Vec::new();
    while let Some(open) = find(text, at, b'<') {
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
                    innermost(text, open, opening, end, names)
                };
                found.push(Span {
                    whole: open..end,
                    id: opening.id,
                });
                at = end;
            }
            None => unclosed.push(opening.name),
        }
    }
    found
}

/// The documents in `text` that are tagged by one of `names`, the first that two or more of them bear.
pub(super) fn several(text: &str, names: &[String]) -> Vec<Span> {
    let tagged = |name| spans(text, std::slice::from_ref(name));
    let mut kinds = names.iter().map(tagged);
    kinds.find(|spans| spans.len() > 1).unwrap_or_default()
}

/// Where the tag that closes a wrapper of the documents ends, if the first thing after `end` is one.
pub(super) fn wrapper_end(text: &str, end: usize) -> usize {
    let rest = text.get(end..).unwrap_or_default();
    let tag = rest.trim_start();
    let is_name = |name: &str| {
        !name.is_empty()
            && name.len() <= 64
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c))
    };
    match tag.strip_prefix("</").and_then(|tag| tag.split_once('>')) {
        Some((name, after)) if is_name(name.trim_end()) => text.len() - after.len(),
        _ => end,
    }
}

/// The tag that the closing tag before `end` closes: the one at `open`, or the last one of its name that begins a line
/// behind it. Then the one at `open` is only spoken of, as Open WebUI's prompt does: "(e.g., <source id="1">)".
fn innermost<'n>(
    text: &str,
    open: usize,
    opening: Opening<'n>,
    end: usize,
    names: &'n [String],
) -> (usize, Opening<'n>) {
    let inside = text.get(opening.end..end).unwrap_or_default();
    let mut line = opening.end;
    let mut last = (open, opening);
    for (nth, piece) in inside.split_inclusive('\n').enumerate() {
        let indent = piece.len() - piece.trim_start().len();
        if nth > 0
            && piece
                .get(indent..)
                .is_some_and(|rest| rest.starts_with('<'))
            && let Some(other) = opening_tag(text, line + indent, names)
            && other.name == last.1.name
        {
            last = (line + indent, other);
        }
        line += piece.len();
    }
    last
}

struct Opening<'n> {
    name: &'n str,
    id: Option<Range<usize>>,
    /// After its `>`.
    end: usize,
}

/// The opening tag at `open`, if it bears one of the names and is not self-closing.
fn opening_tag<'n>(text: &str, open: usize, names: &'n [String]) -> Option<Opening<'n>> {
    let after = text.get(open + 1..)?;
    let name = names.iter().find(|name| {
        after
            .strip_prefix(name.as_str())
            .is_some_and(|rest| rest.starts_with(|c: char| c == '>' || c.is_ascii_whitespace()))
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
    /// After its `>`.
    end: usize,
    /// Whether no other `<` stands before it.
    is_first: bool,
}

/// The first `</name>` from `from` on.
fn closing_tag(text: &str, from: usize, name: &str) -> Option<Closing> {
    let mut at = from;
    let mut is_first = true;
    loop {
        at = find(text, at, b'<')? + 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole spans and ids as texts.
    fn found(text: &str) -> Vec<(&str, Option<&str>)> {
        let names = ["document".to_owned(), "doc".to_owned()];
        spans(text, &names)
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
        let many = "\n<doc id=a>".repeat(200_000) + "</doc>";
        assert_eq!(found(&many), [("<doc id=a></doc>", Some("a"))]);
    }

    #[test]
    fn names_of_many_uses_need_two_of_a_kind() {
        let names = ["context".to_owned(), "file".to_owned()];
        let found = |text| several(text, &names).len();
        assert_eq!(found("<context>x</context><file>y</file>"), 0);
        assert_eq!(found("<files><file>x</file> <file>y</file></files>"), 2);
        assert_eq!(found("<context>x</context><file>y</file><file>z</file>"), 2);
    }

    #[test]
    fn many_unclosed_tags_cost_no_more_than_one() {
        // Quadratic search would take minutes here.
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
}
