//! Divides a message's content: a string, or a list of parts (OpenAI, Gemini) or blocks (Anthropic, Bedrock).
//!
//! ```text
//!   "content": [ {"type":"document",…}, {"type":"document",…}, {"type":"text","text":"…"}, {"type":"tool_result",…} ]
//!                └────────────── blocks ────────────────────┘  └──────── text ─────────┘  └─ its content: pieces ───┘
//! ```
//!
//! Document blocks are reordered whole. Three kinds stay in place, and no other block moves past them: a block with
//! citations enabled, because answers cite blocks by index; a block of Cohere without an id, for the same reason; and
//! one that ends a prefix to be cached (`cache_control`).

use super::Skip;
use super::formats::{self, Holds, PartStyle};
use super::json::{elements, inner, scanned};
use super::lists::Author;
use super::results::results_and_texts;
use super::scan::{self, Bad, Scan, drop_nulls};
use smallvec::SmallVec;

/// A part of a message's content that may contain documents: a text, or adjacent document blocks.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    /// The text of a JSON string, without quotes, and its author.
    Text(&'a str, Author),
    /// Adjacent document blocks, and the JSON form of text parts in the same content.
    Blocks(Vec<Block<'a>>, PartStyle),
    /// Adjacent documents in a tool's or a search's list of results, into which no text may be inserted.
    Results(Vec<Block<'a>>),
}

/// A message's content, divided into the parts that may contain documents.
#[derive(Debug, Default)]
pub(super) struct Pieces<'a> {
    /// The parts that may contain documents, in the order of the prompt.
    pub(super) pieces: SmallVec<[Piece<'a>; 1]>,
    /// The JSON form of the text parts in this content, such as `{"text":"…"}`.
    pub(super) style: PartStyle,
    /// True if the content has a tool's result, which providers require to come first: the gateway writes no documents
    /// into it.
    pub(super) is_result: bool,
    /// Number of content parts, including those in tools' results.
    pub(super) parts: usize,
}

/// The inside of a content part that is a tool's result, in one of the two forms in which documents are found in it.
enum Nested<'a> {
    /// The value of the result's field `content` (Anthropic's `tool_result`, Converse's `toolResult`), as JSON: a
    /// string or a list of parts, which is divided like a message's content. Empty if the field is absent.
    Content(&'a str),
    /// The JSON object that the tool returned (Gemini's `response`, or `json` in a Converse `toolResult`). Its fields
    /// have the texts and documents.
    Object(&'a str),
}

/// A document that the request contains as JSON: a document part of a message's content (such as Anthropic's block of
/// type `document`), or an element of a list of results that a tool or a search returned.
#[derive(Debug)]
pub(super) struct Block<'a> {
    /// The JSON of the whole document or of the whole block that contains it.
    pub(super) raw: &'a str,
    /// The document's name, by which hints (the gateway's sentences about documents) refer to it, for instance its
    /// title, or else its source; empty if it has none.
    pub(super) label: &'a str,
}

/// The fields of a content part or block, as JSON; `None` if absent or `null`.
#[derive(Default)]
struct RawPart<'a> {
    kind: Option<&'a str>,
    text: Option<&'a str>,
    title: Option<&'a str>,
    source: Option<&'a str>,
    content: Option<&'a str>,
    /// The field with a document in a tool's result (Cohere).
    document: Option<&'a str>,
    citations: Option<&'a str>,
    cache_control: Option<&'a str>,
    /// The field with a tool's result (Converse).
    result: Option<&'a str>,
    /// The value of `response` in the field `functionResponse` (Gemini).
    response: Option<&'a str>,
    /// The field `json` of a block in a tool's result (Converse): the object that the tool returned.
    json: Option<&'a str>,
}

/// Divides a message's `content` into parts that may contain documents. `holds` says where they may be: in texts and
/// parts, in a search's passages, or nowhere. `style` is the JSON form in which text parts are written (such as
/// `{"text":"…"}`), unless the content's first part has another form. Returns an error if the content is malformed.
pub(super) fn pieces<'a>(
    body: &'a str,
    content: &'a str,
    holds: Holds,
    style: PartStyle,
) -> Result<Pieces<'a>, Skip> {
    match holds {
        Holds::Parts(author) => parts(body, content, author, style),
        Holds::Passages => Ok(Pieces {
            pieces: passages(body, content)?,
            ..Pieces::default()
        }),
        Holds::Nothing => Ok(Pieces::default()),
    }
}

fn parts<'a>(
    body: &'a str,
    content: &'a str,
    author: Author,
    style: PartStyle,
) -> Result<Pieces<'a>, Skip> {
    let mut pieces = SmallVec::new();
    let mut found = Pieces {
        style,
        ..Pieces::default()
    };
    if let Some(text) = inner(content) {
        found.pieces.push(Piece::Text(text, author));
    }
    if !content.starts_with('[') {
        return Ok(found);
    }
    let mut blocks = Vec::new();
    let mut results: SmallVec<[(usize, Nested<'a>); 4]> = SmallVec::new();
    let mut is_first = true;
    let mut count = 0;
    // One pass over all parts, since they are most of the body's bytes.
    scanned(body, content, |scan| {
        scan.list(|scan| {
            count += 1;
            let start = scan.next();
            let part = match scan.peek() {
                Some(b'{') => Some(RawPart::read(scan)?),
                _ => scan.value().map(|_| None)?,
            };
            if let Some(part) = &part
                && std::mem::take(&mut is_first)
            {
                found.style = PartStyle::of(part.kind);
            }
            let label = part.as_ref().and_then(RawPart::label);
            if let Some(label) = label {
                let raw = scan.since(start);
                blocks.push(Block { raw, label });
                return Ok(());
            }
            if !blocks.is_empty() {
                pieces.push(Piece::Blocks(std::mem::take(&mut blocks), found.style));
            }
            let Some(part) = part else {
                return Ok(());
            };
            let text = part.text.and_then(inner);
            pieces.extend(text.map(|text| Piece::Text(text, author)));
            if let Some(nested) = part.nested(author) {
                found.is_result |= author == Author::Other;
                results.push((pieces.len(), nested));
            }
            Ok(())
        })
    })?;
    found.parts = count;
    if !blocks.is_empty() {
        pieces.push(Piece::Blocks(blocks, found.style));
    }
    if results.is_empty() {
        found.pieces = pieces;
        return Ok(found);
    }
    // Insert the pieces of each tool's result at its place.
    let mut all = SmallVec::with_capacity(pieces.len() + results.len());
    let mut pieces = pieces.into_iter();
    let mut taken = 0;
    for (at, nested) in results {
        all.extend(pieces.by_ref().take(at - taken));
        taken = at;
        match nested {
            Nested::Content(content) => {
                let nested = parts(body, content, Author::Tool, found.style)?;
                found.parts += nested.parts;
                all.extend(nested.pieces);
            }
            Nested::Object(object) => add_result_pieces(object, &mut all),
        }
    }
    all.extend(pieces);
    found.pieces = all;
    Ok(found)
}

/// Appends to `pieces` the parts of a tool's result, a JSON object, that may contain documents: its texts, and the
/// documents in its array `results`.
fn add_result_pieces<'a>(object: &'a str, pieces: &mut SmallVec<[Piece<'a>; 1]>) {
    let (spans, texts) = results_and_texts(object, &formats::TEXTS_OF_RESULT);
    let documents = spans.into_iter().filter_map(|span| {
        let label = span.id.and_then(|id| object.get(id));
        Some(Block {
            raw: object.get(span.whole)?,
            label: label.unwrap_or_default(),
        })
    });
    let mut documents: Option<Vec<Block<'a>>> = Some(documents.collect());
    for text in texts {
        let is_before = |found: &Vec<Block<'_>>| {
            (found.first()).is_some_and(|first| first.raw.as_ptr() < text.as_ptr())
        };
        pieces.extend(
            documents
                .take_if(|found| is_before(found))
                .map(Piece::Results),
        );
        pieces.push(Piece::Text(text, Author::Tool));
    }
    pieces.extend(
        documents
            .filter(|found| !found.is_empty())
            .map(Piece::Results),
    );
}

/// Returns those passages of a search's result that have a text. Passages that follow one another are one piece, whose
/// documents may be exchanged. Empty if `content` is not a list; an error if it is malformed.
fn passages<'a>(body: &'a str, content: &'a str) -> Result<SmallVec<[Piece<'a>; 1]>, Skip> {
    let mut pieces = SmallVec::new();
    if !content.starts_with('[') {
        return Ok(pieces);
    }
    let mut side_by_side = Vec::new();
    for raw in elements(body, content)? {
        match formats::passage_label(raw) {
            Some(label) => side_by_side.push(Block { raw, label }),
            None if side_by_side.is_empty() => {}
            None => pieces.push(Piece::Results(std::mem::take(&mut side_by_side))),
        }
    }
    if !side_by_side.is_empty() {
        pieces.push(Piece::Results(side_by_side));
    }
    Ok(pieces)
}

impl<'a> RawPart<'a> {
    fn read(scan: &mut Scan<'a>) -> Result<Self, Bad> {
        let names = [
            "type",
            "text",
            "title",
            "source",
            "content",
            "document",
            "citations",
            "cache_control",
            "toolResult",
            "functionResponse",
            "json",
        ];
        let mut fields = [None; 11];
        let mut response = None;
        scan.object(|scan, name| {
            let start = scan.next();
            let name = match name {
                "function_response" => "functionResponse",
                name => name,
            };
            let value = if name == "functionResponse" {
                // Read in this pass, so that the function's response is not scanned twice.
                response = function_response(scan)?;
                scan.since(start)
            } else {
                scan.value()?
            };
            scan.place(name, value, &names, &mut fields)
        })?;
        drop_nulls(&mut fields);
        let mut part = Self::default();
        [
            part.kind,
            part.text,
            part.title,
            part.source,
            part.content,
            part.document,
            part.citations,
            part.cache_control,
            part.result,
            _,
            part.json,
        ] = fields;
        part.response = response;
        Ok(part)
    }

    fn is(&self, kind: &str) -> bool {
        self.kind.and_then(inner) == Some(kind)
    }

    /// Returns the inner content if this part is a tool's result, otherwise `None`. Results inside a result are not
    /// entered, so nesting is one level deep.
    fn nested(&self, author: Author) -> Option<Nested<'a>> {
        let object = |value: Option<&'a str>| value.filter(|value| value.starts_with('{'));
        if author == Author::Other && self.is("tool_result") {
            return Some(Nested::Content(self.content.unwrap_or_default()));
        }
        if self.kind.is_some() {
            return None;
        }
        if author == Author::Tool {
            return object(self.json).map(Nested::Object);
        }
        if let Some(result) = object(self.result) {
            let [content] = scan::fields(result, ["content"]).ok()?;
            return Some(Nested::Content(content.unwrap_or_default()));
        }
        object(self.response).map(Nested::Object)
    }

    /// Returns the document's label (empty if it has no name) if the part is a document block that may move, otherwise
    /// `None`.
    fn label(&self) -> Option<&'a str> {
        if self.kind.is_none() {
            let document = self.document.filter(|document| document.starts_with('{'))?;
            return formats::converse_label(document);
        }
        let is_document = self.is("document") || self.is("search_result");
        let cites = self
            .citations
            .is_some_and(|citations| scan::fields(citations, ["enabled"]) != Ok([Some("false")]));
        if !is_document || cites || self.cache_control.is_some() {
            return None;
        }
        if let Some(document) = self.document {
            // Answers cite the document by its id, or by its index if it has none.
            let [id] = scan::fields(document, ["id"]).ok()?;
            return inner(id?);
        }
        let names = [self.title, self.source].into_iter().flatten();
        Some(names.filter_map(inner).next().unwrap_or_default())
    }
}

/// Reads a `functionResponse` object and returns its `response`; `None` if it has none or more than one.
fn function_response<'a>(scan: &mut Scan<'a>) -> Result<Option<&'a str>, Bad> {
    if scan.peek() != Some(b'{') {
        scan.value()?;
        return Ok(None);
    }
    let mut found = None;
    let mut times = 0_u32;
    scan.object(|scan, name| {
        let value = scan.value()?;
        if name == "response" {
            found = Some(value);
            times = times.saturating_add(1);
        }
        Ok(())
    })?;
    Ok(found.filter(|_| times == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(blocks: &[Block<'_>]) -> String {
        let labels: Vec<&str> = blocks.iter().map(|block| block.label).collect();
        labels.join(", ")
    }

    /// Returns the pieces (texts and document blocks) of a message's content, each as a short string.
    fn found(content: &str) -> Vec<String> {
        let parts = Holds::Parts(Author::Other);
        let pieces = pieces(content, content, parts, PartStyle::Typed).unwrap();
        let pieces = pieces.pieces.into_iter();
        pieces
            .map(|piece| match piece {
                Piece::Text(text, Author::Other) => text.into(),
                Piece::Text(text, Author::Tool) => format!("tool: {text}"),
                Piece::Blocks(blocks, _) => format!("blocks: {}", labels(&blocks)),
                Piece::Results(blocks) => format!("results: {}", labels(&blocks)),
            })
            .collect()
    }

    #[test]
    fn texts_blocks_and_results_come_in_the_order_of_the_prompt() {
        assert_eq!(found(r#""Why?""#), ["Why?"]);
        assert_eq!(
            found(
                r#"[{"type":"document","title":"A","source":{}}, {"type":"search_result","source":"u"},
                    {"type":"text","text":"Why?"}, {"type":"document","source":{}}, {"type":"image"},
                    {"type":"tool_result","content":[{"type":"text","text":"x"},{"type":"document","title":"B"}]},
                    {"type":"tool_result","content":"y"}, {"type":"tool_result"}, 7]"#
            ),
            [
                "blocks: A, u",
                "Why?",
                "blocks: ",
                "tool: x",
                "blocks: B",
                "tool: y"
            ]
        );
    }

    #[test]
    fn blocks_that_are_counted_or_end_a_cached_prefix_keep_their_places() {
        let block = |more: &str| format!(r#"{{"type":"document","title":"A"{more}}}"#);
        for (more, moves) in [
            ("", true),
            (r#","citations":null"#, true),
            (r#","citations":{"enabled":false}"#, true),
            (r#","citations":{"enabled":true}"#, false),
            (r#","citations":{}"#, false),
            (r#","citations":7"#, false),
            (r#","cache_control":{"type":"ephemeral"}"#, false),
            (r#","document":{"data":"x"}"#, false),
            (r#","document":7"#, false),
        ] {
            let content = format!("[{},{},{}]", block(""), block(more), block(""));
            let expected: &[&str] = match moves {
                true => &["blocks: A, A, A"],
                false => &["blocks: A", "blocks: A"],
            };
            assert_eq!(found(&content), expected, "{more}");
        }
    }

    #[test]
    fn coheres_blocks_are_called_by_their_ids() {
        assert_eq!(
            found(
                r#"[{"type":"document","document":{"data":"x","id":"a"}},{"type":"document","document":{"id":"b"}}]"#
            ),
            ["blocks: a, b"]
        );
    }

    #[test]
    fn results_in_results_are_not_looked_into() {
        let nested =
            r#"[{"type":"tool_result","content":"#.repeat(50_000) + "1" + &"}]".repeat(50_000);
        assert!(found(&nested).is_empty());
    }
}
