//! Turns chosen cache markers into edits of the body, which divide texts into blocks where necessary.
//!
//! ```text
//!   "content":"Read: <doc a><doc b> Why?"
//!   "content":[{"type":"text","text":"Read: "},{"type":"text","text":"<doc a>"},
//!              {"cache_control":{"type":"ephemeral"},"type":"text","text":"<doc b>"},{"type":"text","text":" Why?"}]
//! ```
//!
//! A text's bytes are unchanged, escapes included. Text after the last marker stays in one block, since no cache
//! boundary is needed there. So a body without any marker is unchanged byte for byte, except for OpenAI's caching mode.

use super::Cut;
use super::choice::Choice;
use super::layout::{Layout, MarkPlace, MarkTtl, SplitText, TextWrap};
use super::rules::{CacheKind, CacheRules};
use crate::body::Parsed;
use crate::body::edit::{self, Edit};
use crate::hexadecimal;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(super) fn write(
    parsed: &Parsed<'_>,
    layout: &Layout,
    rules: &CacheRules,
    choice: &Choice,
) -> Cut {
    let last = choice.all.last().map(|(at, _)| *at);
    let clients = choice.all.len() - choice.markers.len();
    let mut cut = Cut {
        markers: u32::try_from(choice.markers.len()).unwrap_or(u32::MAX),
        client_markers: u32::try_from(clients).unwrap_or(u32::MAX),
        read_tokens: choice.read_tokens,
        written_tokens: choice.written_tokens,
        ..Cut::default()
    };
    let mut edits = Vec::new();
    // For each text: the number of its pieces up to the last marker, and its marked pieces. Later pieces stay together.
    let mut pieces: Vec<(usize, TextMarks)> = vec![Default::default(); layout.texts.len()];
    for position in layout
        .positions
        .iter()
        .take(last.map_or(0, |last| last + 1))
    {
        if let Some(MarkPlace::Piece(text, _)) = position.place
            && let Some((kept, _)) = pieces.get_mut(text)
        {
            *kept += 1;
        }
    }
    for (at, ttl) in &choice.markers {
        let position = layout.positions.get(*at);
        if let Some(MarkPlace::Piece(text, piece)) = position.and_then(|position| position.place)
            && let Some((_, marks)) = pieces.get_mut(text)
        {
            marks.push((piece, *ttl));
        }
    }
    for (text, (kept, marks)) in layout.texts.iter().zip(pieces) {
        cut.splits += write_text(text, kept, &marks, rules.kind, &mut edits);
    }
    for (at, ttl) in &choice.markers {
        let place = layout
            .positions
            .get(*at)
            .and_then(|position| position.place);
        match place {
            Some(MarkPlace::Field(at)) => edits.push(Edit::insert(at, field(rules.kind, *ttl))),
            Some(MarkPlace::Behind(at)) => {
                edits.push(Edit::insert(at, format!(",{}", point(*ttl))));
            }
            Some(MarkPlace::Piece(..)) | None => {}
        }
    }
    if rules.kind == CacheKind::OpenAi && layout.tokens() >= u64::from(rules.minimum_tokens) {
        let mut fields = String::new();
        if choice.is_explicit {
            fields.push_str(r#""prompt_cache_options":{"mode":"explicit"},"#);
        }
        if choice.is_explicit && !choice.markers.is_empty() && !layout.has_key {
            fields.push_str(&format!(r#""prompt_cache_key":"{}","#, key(layout, rules)));
        }
        if !fields.is_empty() {
            edits.push(Edit::insert(layout.inside, fields));
        }
    }
    if !edits.is_empty() {
        cut.body = Some(edit::apply(parsed.text, edits));
    }
    cut
}

/// The pieces of a text that get a cache marker, as indices of pieces, each with the marker's lifetime; at most four.
type TextMarks = SmallVec<[(usize, MarkTtl); 1]>;

/// Appends edits to `edits` that divide a text into blocks: one for each of its first `kept` pieces, and one for the
/// rest of the text if there is any. `marks` are the indices of the pieces that get a cache marker, each with the
/// marker's lifetime. Returns the number of blocks added to the body.
fn write_text(
    text: &SplitText,
    kept: usize,
    marks: &[(usize, MarkTtl)],
    kind: CacheKind,
    edits: &mut Vec<Edit<'_>>,
) -> u32 {
    // Each piece up to the last marker ends with a cut, except the text's last piece.
    let cuts = text
        .cuts
        .get(..kept.min(text.cuts.len()))
        .unwrap_or_default();
    let mark = |piece: usize| {
        (marks.iter())
            .find(|(marked, _)| *marked == piece)
            .map(|(_, ttl)| *ttl)
    };
    let is_point = kind == CacheKind::Bedrock;
    let opening = |piece: usize| match mark(piece) {
        Some(ttl) if !is_point => field(kind, ttl),
        _ => String::new(),
    };
    let between = |piece: usize| match mark(piece) {
        Some(ttl) if is_point => format!(",{}", point(ttl)),
        _ => String::new(),
    };
    let kind_of = text.style.open().trim_start_matches('{');
    // The last block ends with the original's last fields, so a type after the text comes after it in every block.
    let (start, end) = match (text.wrap, kind_of.rsplit_once(',')) {
        (TextWrap::Block { is_text_first, .. }, Some((end, start))) if is_text_first => {
            (start, format!(",{end}"))
        }
        _ => (kind_of, String::new()),
    };
    for (piece, &cut) in cuts.iter().enumerate() {
        let [between, opening] = [between(piece), opening(piece + 1)];
        let words = format!("\"{end}}}{between},{{{opening}{start}");
        edits.push(Edit::insert(cut, words));
    }
    let last = cuts.len();
    match text.wrap {
        TextWrap::Block { open, close, .. } => {
            let words = opening(0);
            if !words.is_empty() {
                edits.push(Edit::insert(open, words));
            }
            let words = between(last);
            if !words.is_empty() {
                edits.push(Edit::insert(close + 1, words));
            }
        }
        TextWrap::Content | TextWrap::Input if cuts.is_empty() && marks.is_empty() => {}
        TextWrap::Content | TextWrap::Input => {
            let (before, after) = match text.wrap {
                TextWrap::Input => (r#"[{"role":"user","content":["#, "]}]"),
                _ => ("[", "]"),
            };
            let kind_of = kind_of.trim_end_matches('"');
            let words = format!("{before}{{{}{kind_of}", opening(0));
            edits.push(Edit::insert(text.raw.start, words));
            edits.push(Edit::insert(
                text.raw.end,
                format!("}}{}{after}", between(last)),
            ));
        }
    }
    u32::try_from(cuts.len()).unwrap_or(u32::MAX)
}

/// Returns the JSON of a cache marker as the first field of a block, with the comma after it.
fn field(kind: CacheKind, ttl: MarkTtl) -> String {
    let (name, words, long) = match kind {
        CacheKind::OpenAi => ("prompt_cache_breakpoint", r#""mode":"explicit""#, "12h"),
        _ => ("cache_control", r#""type":"ephemeral""#, "1h"),
    };
    match ttl {
        MarkTtl::Default => format!(r#""{name}":{{{words}}},"#),
        MarkTtl::Long => format!(r#""{name}":{{{words},"ttl":"{long}"}},"#),
    }
}

/// Returns the JSON of a cache marker as a block of its own, for Bedrock.
fn point(ttl: MarkTtl) -> &'static str {
    match ttl {
        MarkTtl::Default => r#"{"cachePoint":{"type":"default"}}"#,
        MarkTtl::Long => r#"{"cachePoint":{"type":"default","ttl":"1h"}}"#,
    }
}

/// Returns the `prompt_cache_key` for a prompt, by which OpenAI routes requests with a common prefix to one cache: a
/// hash of the shortest prefix of the prompt that can be cached. So prompts that could share a prefix get the same key;
/// prompts with different keys share no cache.
fn key(layout: &Layout, rules: &CacheRules) -> String {
    let shortest = (layout.positions.iter())
        .find(|position| position.tokens >= u64::from(rules.minimum_tokens));
    let hash = shortest.map_or(layout.scope, |position| position.hash);
    let hash = xxh3_64_with_seed(b"prompt_cache_key", hash);
    let mut words = String::from("foreword-");
    hexadecimal::push(&mut words, &hash.to_be_bytes());
    words
}
