//! Finds documents in the formats of well-known clients that do not tag them.
//!
//! ```text
//!   AnythingLLM        RAGFlow            LlamaIndex             Dify
//!   [CONTEXT 0]:       ------             Context information    <context>
//!   Text.                                 is below.              Text.
//!   [END CONTEXT 0]    ID: 0              --------------------   </context>
//!                      ├── Title: T       key: value
//!   [CONTEXT 1]:       └── Content:
//!   …                  Text.              Text.
//!                                         --------------------
//!                      ------
//!                      …
//!                      The above is the knowledge base.
//! ```
//!
//! Each client is recognised by phrases that no other client writes, and only if the end of its last document is
//! marked. AnythingLLM and RAGFlow number documents by their places in the request; answers cite these numbers, so they
//! stay.

use super::search::{find, find_any, find_words, has, trimmed};
use super::tags::Span;
use crate::work::looked;
use std::ops::Range;

/// Returns the spans of the documents in `text`, if one of the known clients (AnythingLLM, RAGFlow, LlamaIndex, Dify)
/// wrote it; empty otherwise.
pub(super) fn spans(text: &str) -> Vec<Span> {
    [anything_llm, ragflow, llama_index, dify]
        .iter()
        .map(|find| find(text))
        .find(|spans| !spans.is_empty())
        .unwrap_or_default()
}

/// Returns the range of `text` that has a known client's documents and the phrases that the client writes around them:
/// from the first phrase to the end of the last one. `None` if the client has no such phrases around all documents, or
/// if they are missing.
pub(super) fn frame(text: &str) -> Option<Range<usize>> {
    if !anything_llm(text).is_empty() {
        return None;
    }
    if !ragflow(text).is_empty() {
        let start = find_words(text, 0, RAGFLOW_FIRST)?;
        let end = find_words(text, start, RAGFLOW_END)? + RAGFLOW_END.len();
        return Some(start..end + usize::from(follows(text, end, ".")));
    }
    if !llama_index(text).is_empty() {
        let mut openings = LLAMA_INDEX.iter();
        let (start, words) =
            openings.find_map(|words| Some((find_words(text, 0, words)?, words)))?;
        let rule = start + words.len() + LLAMA_INDEX_RULE.len();
        return Some(start..find_words(text, rule, LLAMA_INDEX_END)? + LLAMA_INDEX_END.len());
    }
    let start = find_words(text, 0, DIFY_OPENING)?;
    let last = dify(text).pop()?;
    (start < last.whole.start).then_some(start..last.whole.end)
}

/// Returns whether a text, escaped as in a JSON string, may contain documents in the format of a known client
/// (AnythingLLM, RAGFlow, LlamaIndex, Dify). Most bytes are read only once, since each of the phrases begins with a
/// byte that is rare in ordinary text.
pub(super) fn may_hold(source: &str) -> bool {
    let mut from = 0;
    while let Some(at) = find_any(source, from, FIRST_BYTES) {
        if MARKS.iter().any(|mark| begins(source, at, mark)) {
            return true;
        }
        from = at + 1;
    }
    false
}

fn begins(source: &str, at: usize, mark: &str) -> bool {
    let rest = source.as_bytes().get(at..).unwrap_or_default();
    let equal = rest.iter().zip(mark.as_bytes());
    let equal = equal
        .take_while(|(found, expected)| found == expected)
        .count();
    looked(equal);
    equal == mark.len()
}

fn anything_llm(text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(open) = find_words(text, at, ANYTHING_LLM) {
        let digits = digits(text, open + ANYTHING_LLM.len());
        at = digits.end;
        if digits.is_empty() || !follows(text, digits.end, "]:") {
            continue;
        }
        let number = text.get(digits.clone()).unwrap_or_default();
        let close = format!("[END CONTEXT {number}]");
        let Some(end) = find_words(text, digits.end, &close) else {
            // The client has truncated this document: it is not closed.
            break;
        };
        at = end + close.len();
        found.push(Span {
            whole: open..at,
            id: Some(digits),
        });
    }
    found
}

fn ragflow(text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    let Some(first) = find_words(text, 0, RAGFLOW_FIRST) else {
        return found;
    };
    let Some(end) = find_words(text, first, RAGFLOW_END) else {
        return found;
    };
    let mut start = first + RAGFLOW_RULE.len();
    while start < end {
        let rule = find_words(text, start, RAGFLOW_NEXT).filter(|rule| *rule < end);
        let chunk = trimmed(text, start..rule.unwrap_or(end));
        let words = text.get(chunk.clone()).unwrap_or_default();
        let id = digits(text, chunk.start + RAGFLOW_ID.len());
        if !words.starts_with(RAGFLOW_ID) || id.is_empty() || !has(words, RAGFLOW_CONTENT) {
            return Vec::new();
        }
        found.push(Span {
            whole: chunk,
            id: Some(id),
        });
        start = rule.map_or(end, |rule| rule + RAGFLOW_RULE.len());
    }
    found
}

fn llama_index(text: &str) -> Vec<Span> {
    let mut openings = LLAMA_INDEX.iter();
    let opening = openings.find_map(|words| Some(find_words(text, 0, words)? + words.len()));
    let Some(start) = opening.filter(|start| follows(text, *start, LLAMA_INDEX_RULE)) else {
        return Vec::new();
    };
    let start = start + LLAMA_INDEX_RULE.len();
    let Some(end) = find_words(text, start, LLAMA_INDEX_END) else {
        return Vec::new();
    };
    let all = trimmed(text, start..end);
    // Every node begins with the same key, and a blank line precedes all but the first.
    let key = key_at(text, all.start);
    let next = key.map(|key| format!("\n\n{key}: "));
    let mut found = Vec::new();
    let mut at = all.start;
    while at < all.end {
        let next = next.as_ref().and_then(|next| find_words(text, at, next));
        let end = next.filter(|next| *next < all.end).unwrap_or(all.end);
        found.push(Span {
            whole: trimmed(text, at..end),
            id: None,
        });
        at = if end == all.end { end } else { end + 2 };
    }
    found
}

fn dify(text: &str) -> Vec<Span> {
    let Some(said) = find_words(text, 0, DIFY) else {
        return Vec::new();
    };
    let (open, close) = ("<context>\n", "\n</context>");
    let Some(start) = find_words(text, said + DIFY.len(), open) else {
        return Vec::new();
    };
    let Some(end) = find_words(text, start + open.len() - 1, close) else {
        return Vec::new();
    };
    if trimmed(text, start + open.len()..end.max(start + open.len())).is_empty() {
        return Vec::new();
    }
    vec![Span {
        whole: start..end + close.len(),
        id: None,
    }]
}

/// Returns the range of the decimal digits from offset `at` on, at most nine; empty if there are none.
fn digits(text: &str, at: usize) -> Range<usize> {
    let bytes = text.as_bytes().get(at..).unwrap_or_default().iter();
    at..at
        + bytes
            .take(9)
            .take_while(|byte| byte.is_ascii_digit())
            .count()
}

/// Returns the key (letters, digits, `_` and `-`, at most 64) of the line `key: value` that begins at offset `at`;
/// `None` if the line has another form.
fn key_at(text: &str, at: usize) -> Option<&str> {
    let end = find(text, at, b'\n').unwrap_or(text.len());
    let key = text.get(at..find_words(text, at, ": ").filter(|colon| *colon < end)?)?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    (!key.is_empty() && key.len() <= 64 && key.chars().all(is_word)).then_some(key)
}

fn follows(text: &str, at: usize, words: &str) -> bool {
    text.get(at..).is_some_and(|rest| rest.starts_with(words))
}

const ANYTHING_LLM: &str = "[CONTEXT ";
/// Phrases that occur in texts of AnythingLLM, RAGFlow, LlamaIndex or Dify and in few others, each from its first rare
/// byte on.
const MARKS: [&str; 5] = [
    ANYTHING_LLM,
    "Content:",
    "Context information",
    "Use the context information",
    "XML tags",
];
const FIRST_BYTES: [u8; 4] = *b"[CUX";
const RAGFLOW_RULE: &str = "------\n";
const RAGFLOW_FIRST: &str = "------\n\nID: ";
const RAGFLOW_NEXT: &str = "------\n\n\nID: ";
const RAGFLOW_ID: &str = "ID: ";
const RAGFLOW_CONTENT: &str = "└── Content:";
/// The text that follows `{knowledge}`, the placeholder of the documents, in RAGFlow's template.
const RAGFLOW_END: &str = "\nThe above is the knowledge base";
const LLAMA_INDEX: [&str; 2] = [
    "Context information is below.",
    "Use the context information below to assist the user.",
];
const LLAMA_INDEX_RULE: &str = "\n--------------------\n";
const LLAMA_INDEX_END: &str = "\n--------------------";
const DIFY_OPENING: &str =
    "Use the following context as your learned knowledge, inside <context></context> XML tags";
const DIFY: &str = "inside <context></context> XML tags";

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(&str, Option<&str>)> {
        let spans = spans(text).into_iter();
        spans
            .map(|span| (&text[span.whole], span.id.map(|id| &text[id])))
            .collect()
    }

    #[test]
    fn finds_what_clients_write() {
        assert_eq!(
            found(
                "Be kind.\nContext:\n[CONTEXT 0]:\na\nb\n[END CONTEXT 0]\n\n[CONTEXT 1]:\nc\n[END CONTEXT 1]\n\n"
            ),
            [
                ("[CONTEXT 0]:\na\nb\n[END CONTEXT 0]", Some("0")),
                ("[CONTEXT 1]:\nc\n[END CONTEXT 1]", Some("1"))
            ]
        );
        let knowledge = "Here:\n\n------\n\nID: 0\n├── Title: t\n└── Content:\na\n\nb\n\n------\n\n\nID: 1\n├── Title: u\n└── Content:\nc\nThe above is the knowledge base.";
        assert_eq!(
            found(knowledge),
            [
                ("ID: 0\n├── Title: t\n└── Content:\na\n\nb", Some("0")),
                ("ID: 1\n├── Title: u\n└── Content:\nc", Some("1"))
            ]
        );
        let rule = "-".repeat(20);
        for opening in LLAMA_INDEX {
            assert_eq!(
                found(&format!(
                    "{opening}\n{rule}\nfile_name: a\npage: 1\n\nx\n\ny\n\nfile_name: b\n\nz\n{rule}\nBe kind."
                )),
                [
                    ("file_name: a\npage: 1\n\nx\n\ny", None),
                    ("file_name: b\n\nz", None)
                ]
            );
        }
        assert_eq!(
            found(&format!("{}\n{rule}\nx\n\ny\n{rule}", LLAMA_INDEX[0])),
            [("x\n\ny", None)]
        );
        assert_eq!(
            found(
                "Use it, inside <context></context> XML tags.\n\n<context>\na\nb\n</context>\n\nWhen you answer"
            ),
            [("<context>\na\nb\n</context>", None)]
        );
    }

    #[test]
    fn what_has_no_marked_end_is_text() {
        for text in [
            "[CONTEXT 0]:\na",
            "[CONTEXT x]:\na\n[END CONTEXT x]",
            "[CONTEXT 0]\na\n[END CONTEXT 0]",
            "------\n\nID: 0\n└── Content:\na",
            "------\n\nID: 0\nThe above is the knowledge base",
            "Context information is below.\n--------------------\na",
            "inside <context></context> XML tags. None.",
            "",
        ] {
            assert_eq!(found(text), [], "{text}");
        }
    }
}
