//! Locates contexts (documents with the markup around them) and the text with the question in a message's content, for
//! the code that restores or moves contexts of earlier turns.

use super::clients;
use super::json::{inner, offset_in, range_in};
use super::scan::{Scan, fields};
use super::search;
use super::text::Text;
use std::cell::OnceCell;
use std::ops::Range;

/// Returns the range in `body` of the last text in a message's `content`, without quotes; `None` if the content has no
/// text.
pub(crate) fn last_text(body: &str, content: &str) -> Option<Range<usize>> {
    Some(ContextTexts::new(body, content).texts.pop()?.range)
}

/// The texts of a message's content, in which the surroundings of documents are located. Each is searched once, however
/// many documents are located in it.
pub(crate) struct ContextTexts<'a> {
    body: &'a str,
    texts: Vec<ContextText<'a>>,
}

struct ContextText<'a> {
    /// The range of the text in the body, without quotes.
    range: Range<usize>,
    /// The element of the content's array that has the text; `None` if the content is a string.
    part: Option<&'a str>,
    /// The range in the body of a known client's documents with the phrases that it writes around them; `None` if there
    /// is none. Located at its first use.
    frame: OnceCell<Option<Range<usize>>>,
}

/// A range of the body with documents and the tags, phrases or heading that surround them.
pub(crate) struct ContextRange<'a> {
    pub(crate) range: Range<usize>,
    /// The element of the content's array that has the text, if that text has nothing outside the range; otherwise
    /// `None`.
    pub(crate) part: Option<&'a str>,
}

impl<'a> ContextTexts<'a> {
    pub(crate) fn new(body: &'a str, content: &'a str) -> Self {
        let text = |text, part| ContextText {
            range: range_in(body, text),
            part,
            frame: OnceCell::new(),
        };
        let texts = if let Some(content) = inner(content) {
            vec![text(content, None)]
        } else {
            let parts = Scan::new(content).elements().unwrap_or_default();
            let texts = parts.into_iter().filter_map(|part| {
                let [found] = fields(part, ["text"]).ok()?;
                Some(text(found.and_then(inner)?, Some(part)))
            });
            texts.collect()
        };
        Self { body, texts }
    }

    /// Returns the range of the documents at `found` in the body, extended by the tags or phrases that a client wrote
    /// around them. If only white space follows the documents, the range extends to the end of their text, and the
    /// heading and white space before them are included. `None` if the documents are not within one text.
    pub(crate) fn around(&self, found: Range<usize>) -> Option<ContextRange<'a>> {
        let body = self.body;
        let at = self
            .texts
            .partition_point(|text| text.range.end < found.end);
        let context = self.texts.get(at)?;
        let text = &context.range;
        if found.start < text.start {
            return None;
        }
        let [mut start, mut end] = [found.start, found.end];
        let frame = context.frame.get_or_init(|| framed(body, text)).as_ref();
        if let Some(frame) = frame.filter(|frame| frame.start <= start && end <= frame.end) {
            (start, end) = (frame.start, frame.end);
        } else {
            // Include the tags directly around the documents, from the innermost outwards.
            while let Some((opening, closing)) = wrapped(body, text, start..end) {
                (start, end) = (opening, closing);
            }
            if is_blank(body.get(end..text.end)?) {
                end = text.end;
                let before = trimmed_end(body.get(text.start..start)?);
                let headless = HEADINGS
                    .iter()
                    .find_map(|heading| before.strip_suffix(heading));
                // Include white space before them too, since a request without documents has none.
                start = text.start + headless.map_or(before, trimmed_end).len();
            }
        }
        let is_all = is_blank(body.get(text.start..start)?) && is_blank(body.get(end..text.end)?);
        Some(ContextRange {
            range: start..end,
            part: context.part.filter(|_| is_all),
        })
    }
}

/// Returns the range in the body of a known client's documents with the phrases that it writes around them; `None` if
/// `text`, a range of the body, has none.
fn framed(body: &str, text: &Range<usize>) -> Option<Range<usize>> {
    let source = body.get(text.clone())?;
    if !clients::may_hold(source) {
        return None;
    }
    let plain = Text::new(source);
    let frame = plain.source(&clients::frame(&plain.plain)?);
    Some(text.start + frame.start..text.start + frame.end)
}

/// Returns start and end offset in the body of the element whose content is `range`, tags included; `None` unless
/// `<name>` directly precedes the range and `</name>` directly follows it within `text`, apart from white space.
fn wrapped(body: &str, text: &Range<usize>, range: Range<usize>) -> Option<(usize, usize)> {
    let behind = trimmed_start(body.get(range.end..text.end)?);
    let tag = behind.strip_prefix("</")?;
    let close = search::find(tag, 0, b'>')?;
    let (name, rest) = (tag.get(..close)?, tag.get(close + 1..)?);
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_name) {
        return None;
    }
    let before = trimmed_end(body.get(text.start..range.start)?);
    let opening = before
        .strip_suffix('>')?
        .strip_suffix(name)?
        .strip_suffix('<')?;
    Some((text.start + opening.len(), offset_in(body, rest)))
}

/// Returns the text without white space at its end, literal or escaped as in JSON.
fn trimmed_end(mut text: &str) -> &str {
    loop {
        let less = search::trimmed_end(text, 0..text.len());
        let less = text.get(less).unwrap_or_default();
        let cut = SPACES.iter().find_map(|space| {
            let cut = less.strip_suffix(space)?;
            // The backslash itself may be escaped.
            let slashes = cut.bytes().rev().take_while(|byte| *byte == b'\\').count();
            slashes.is_multiple_of(2).then_some(cut)
        });
        match cut {
            Some(cut) => text = cut,
            None => return less,
        }
    }
}

/// Returns the text without white space at its start, literal or escaped as in JSON.
fn trimmed_start(mut text: &str) -> &str {
    loop {
        let less = search::trimmed_start(text, 0..text.len());
        let less = text.get(less).unwrap_or_default();
        match SPACES.iter().find_map(|space| less.strip_prefix(space)) {
            Some(cut) => text = cut,
            None => return less,
        }
    }
}

fn is_blank(text: &str) -> bool {
    trimmed_start(text).is_empty()
}

/// The escape sequences of white space in a JSON string.
const SPACES: [&str; 3] = [r"\n", r"\r", r"\t"];

/// Headings that clients write above their contexts (retrieved documents), as AnythingLLM does.
const HEADINGS: [&str; 1] = ["Context:"];

/// The maximum length of the name of a tag around documents, in bytes.
const MAX_NAME_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn context(content: &str, documents: &str) -> String {
        let start = content.find(documents).unwrap();
        let texts = ContextTexts::new(content, content);
        let found = texts.around(start..start + documents.len()).unwrap();
        content[found.range].to_owned()
    }

    #[test]
    fn documents_take_their_wrappers_and_their_heading_along() {
        assert_eq!(
            context(
                r#""Be kind. <context>\n<a>D</a>\n</context>\nBe brief.""#,
                "<a>D</a>"
            ),
            r"<context>\n<a>D</a>\n</context>"
        );
        assert_eq!(
            context(r#""Be kind.\n\nContext:\n[C]D[E]\n\n""#, "[C]D[E]"),
            r"\n\nContext:\n[C]D[E]\n\n"
        );
        assert_eq!(context(r#""a\\nD""#, "D"), "D");
        assert_eq!(context(r#""<b>D</c>""#, "D"), "D");
        assert_eq!(
            context(
                r#"[{"text":"x"},{"type":"text","text":"Use <d>D</d> now"}]"#,
                "D"
            ),
            "<d>D</d>"
        );
    }

    #[test]
    fn the_last_text_is_where_a_question_stands() {
        let text = |content: &'static str| last_text(content, content).map(|range| &content[range]);
        assert_eq!(text(r#""Why?""#), Some("Why?"));
        assert_eq!(
            text(r#"[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"image_url"}]"#),
            Some("b")
        );
        assert_eq!(text(r#"[{"type":"image_url"}]"#), None);
        assert_eq!(text("null"), None);
    }
}
