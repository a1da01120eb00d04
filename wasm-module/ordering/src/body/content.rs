//! What a message's content is made of: a string, or a list of parts (OpenAI) or blocks (Anthropic).
//!
//! ```text
//!   "content": [ {"type":"document",…}, {"type":"document",…}, {"type":"text","text":"…"}, {"type":"tool_result",…} ]
//!                └────────────── blocks ────────────────────┘  └──────── text ─────────┘  └─ what is in it: pieces ─┘
//! ```
//!
//! Blocks that are documents are put in order as they stand, with everything in them. Three kinds of them keep their
//! place, and others do not pass them: one whose citations are on, because the answer will count blocks to say which it
//! means; Cohere's without an id, for the same reason; and one that ends a prefix that the client wants cached
//! (`cache_control`).

use super::Skip;
use super::json::{inner, scanned};
use super::lists::Author;
use super::scan::{self, Bad, Scan, say};
use smallvec::SmallVec;

/// What may hold documents.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    /// What stands between the quotes of a text.
    Text(&'a str, Author),
    /// Blocks that are documents, side by side.
    Blocks(Vec<Block<'a>>),
}

/// A block that is a document.
#[derive(Debug)]
pub(super) struct Block<'a> {
    /// The whole block.
    pub(super) raw: &'a str,
    /// What it is called: its title, or else where it comes from; empty when it says neither.
    pub(super) label: &'a str,
}

/// A part's or a block's fields, as written, if they say anything.
#[derive(Default)]
struct RawPart<'a> {
    kind: Option<&'a str>,
    text: Option<&'a str>,
    title: Option<&'a str>,
    source: Option<&'a str>,
    content: Option<&'a str>,
    /// Cohere's way: a block of a tool's result that holds a document.
    document: Option<&'a str>,
    citations: Option<&'a str>,
    cache_control: Option<&'a str>,
}

/// The pieces of a message's `content`, which `author` wrote.
pub(super) fn pieces<'a>(
    body: &'a str,
    content: &'a str,
    author: Author,
) -> Result<SmallVec<[Piece<'a>; 1]>, Skip> {
    let mut pieces = SmallVec::new();
    if let Some(text) = inner(content) {
        pieces.push(Piece::Text(text, author));
    }
    if !content.starts_with('[') {
        return Ok(pieces);
    }
    let mut blocks = Vec::new();
    let mut results: SmallVec<[(usize, &'a str); 4]> = SmallVec::new();
    // One pass over all parts: they are most of a body that has any.
    scanned(body, content, |scan| {
        scan.list(|scan| {
            let start = scan.next();
            let part = match scan.peek() {
                Some(b'{') => Some(RawPart::read(scan)?),
                _ => scan.value().map(|_| None)?,
            };
            let label = part.as_ref().and_then(RawPart::label);
            if let Some(label) = label {
                let raw = scan.since(start);
                blocks.push(Block { raw, label });
                return Ok(());
            }
            if !blocks.is_empty() {
                pieces.push(Piece::Blocks(std::mem::take(&mut blocks)));
            }
            let Some(part) = part else {
                return Ok(());
            };
            let text = part.text.and_then(inner);
            pieces.extend(text.map(|text| Piece::Text(text, author)));
            // A result holds no results: this goes one level deep, however deep a body may be.
            if part.is("tool_result") && author == Author::Other {
                results.push((pieces.len(), part.content.unwrap_or_default()));
            }
            Ok(())
        })
    })?;
    if !blocks.is_empty() {
        pieces.push(Piece::Blocks(blocks));
    }
    if results.is_empty() {
        return Ok(pieces);
    }
    // What is in the results, each where it stands.
    let mut all = SmallVec::with_capacity(pieces.len() + results.len());
    let mut pieces = pieces.into_iter();
    let mut taken = 0;
    for (at, content) in results {
        all.extend(pieces.by_ref().take(at - taken));
        taken = at;
        all.extend(self::pieces(body, content, Author::Tool)?);
    }
    all.extend(pieces);
    Ok(all)
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
        ];
        let mut fields = scan.fields(names)?;
        say(&mut fields);
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
        ] = fields;
        Ok(part)
    }

    fn is(&self, kind: &str) -> bool {
        self.kind.and_then(inner) == Some(kind)
    }

    /// What the block is called, if it is a document that may move; empty if it is called nothing.
    fn label(&self) -> Option<&'a str> {
        let is_document = self.is("document") || self.is("search_result");
        let cites = self
            .citations
            .is_some_and(|citations| scan::fields(citations, ["enabled"]) != Ok([Some("false")]));
        if !is_document || cites || self.cache_control.is_some() {
            return None;
        }
        if let Some(document) = self.document {
            // An answer cites it by its id, or by its place where it has none.
            let [id] = scan::fields(document, ["id"]).ok()?;
            return inner(id?);
        }
        let names = [self.title, self.source].into_iter().flatten();
        Some(names.filter_map(inner).next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of a content, in short.
    fn found(content: &str) -> Vec<String> {
        let pieces = pieces(content, content, Author::Other).unwrap().into_iter();
        pieces
            .map(|piece| match piece {
                Piece::Text(text, Author::Other) => text.into(),
                Piece::Text(text, Author::Tool) => format!("tool: {text}"),
                Piece::Blocks(blocks) => {
                    let labels: Vec<&str> = blocks.iter().map(|block| block.label).collect();
                    format!("blocks: {}", labels.join(", "))
                }
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
