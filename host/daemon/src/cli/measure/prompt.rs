//! Builds the workload's requests as a client would, and the prompts that the engine receives.
//!
//! ```text
//!   documents of a trace ──▶ chat body ──▶ core, configured as the arm says ──▶ body ──▶ text ──▶ tokens
//!                                          (order, hint: what the gateway writes)
//! ```
//!
//! There is no tokenizer. Tokens are the pieces into which Qwen's tokenizers split a text first: a word with the
//! character before it, a digit, a run of marks, or a run of white space. The words used are single tokens in usual
//! tokenizers, so documents, system text and questions have the stated numbers of tokens, and a hint about as many as
//! with a real model.

use super::arm::Arm;
use anyhow::{Context, anyhow};
use foreword_engine::TokenId;
use foreword_ordering::policy::Place;
use foreword_ordering::random::Random;
use foreword_ordering::{Config, Orderer, PeerUpdate, Rewrite, Skip, Tenant, Usage};
use foreword_simulation::Request;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Number of tokens of the system text.
pub(super) const SYSTEM: usize = 100;
/// Number of tokens of a question.
pub(super) const QUESTION: usize = 32;

/// The gateway of one arm: an orderer with the state that earlier requests have left.
pub(super) struct Gateway {
    orderer: Orderer,
}

/// A prompt, and the time to make it.
pub(super) struct Prompt {
    pub(super) tokens: Vec<TokenId>,
    /// Time from the client's body to the body for the engine.
    pub(super) ordering: Duration,
    /// Time from the body for the engine to its tokens.
    pub(super) building: Duration,
    rewrite: Rewrite,
}

impl Gateway {
    /// Returns a gateway without history that puts the retriever's best document in this place, for an engine with
    /// `kv_tokens` tokens of KV state.
    pub(super) fn new(arm: Arm, place: Place, kv_tokens: u64) -> anyhow::Result<Self> {
        let (policy, hint) = match arm {
            Arm::NoCache => ("retrieval", false),
            Arm::Gateway { policy, hint } => (policy.name(), hint),
        };
        let config = json!({
            "policy": policy,
            "rank": {"place": place, "documents": place.least_documents()},
            "hint": {"enabled": hint},
            "tree": {"max_tokens": kv_tokens},
        });
        Ok(Self {
            orderer: Orderer::new(Config::from_json(config.to_string().as_bytes())?),
        })
    }

    /// Returns the prompt that the engine receives for a client's body.
    pub(super) fn prompt(&mut self, body: &[u8]) -> anyhow::Result<Prompt> {
        let start = Instant::now();
        let rewrite = self.orderer.rewrite(Tenant::default(), body);
        let rewrite = rewrite.map_err(|skip: Skip| anyhow!("the core passed a request: {skip}"))?;
        let ordering = start.elapsed();
        let tokens = tokens(&text(rewrite.body.as_deref().unwrap_or(body))?);
        Ok(Prompt {
            tokens,
            ordering,
            building: start.elapsed().saturating_sub(ordering),
            rewrite,
        })
    }

    /// Corrects the orderer's tree with the cached tokens that a response reports, as the gateway does.
    pub(super) fn learn(&mut self, prompt: &Prompt, cached_tokens: u32) {
        let usage = Usage {
            prompt_tokens: prompt.tokens.len() as u64,
            cached_tokens: cached_tokens.into(),
        };
        if let Some(correction) = prompt.rewrite.record.judged(usage) {
            self.orderer.learn(&PeerUpdate::Correction(correction));
        }
    }
}

/// Returns the chat body for a request of the trace; `number` makes its question unique.
pub(super) fn body(request: &Request, number: u64) -> Vec<u8> {
    let documents: Vec<Value> = (request.documents.iter())
        .map(|document| {
            let number = document.fingerprint.0;
            let text = document_text(number, document.tokens as usize);
            json!({"id": name(number), "text": text})
        })
        .collect();
    let question = words(Random::new(!number), QUESTION - 1);
    let body = json!({
        "model": "shape",
        "messages": [
            {"role": "system", "content": words(Random::new(0), SYSTEM)},
            {"role": "user", "content": format!("{question}?")},
        ],
        "documents": documents,
    });
    body.to_string().into_bytes()
}

/// Returns the contents of a chat's messages, joined by line breaks.
fn text(body: &[u8]) -> anyhow::Result<String> {
    let body: Value = serde_json::from_slice(body)?;
    let messages = body["messages"].as_array().context("no messages")?;
    let contents = messages
        .iter()
        .filter_map(|message| message["content"].as_str());
    Ok(contents.collect::<Vec<_>>().join("\n"))
}

/// Returns a document's name.
fn name(number: u64) -> String {
    format!("doc-{number}")
}

/// Returns a document's text, such that its block with tags has `tokens` tokens.
fn document_text(number: u64, tokens: usize) -> String {
    let frame = format!("<document id=\"{}\">\n</document>\n", name(number));
    // The line break after the text is a separate token.
    let frame = pieces(&frame).count() + 1;
    words(Random::new(number + 1), tokens.saturating_sub(frame).max(1))
}

/// Returns `count` random words.
fn words(mut random: Random, count: usize) -> String {
    let mut text = String::new();
    for at in 0..count {
        if at > 0 {
            text.push(' ');
        }
        let word = random.below(WORDS.len() as u64) as usize;
        text.push_str(WORDS[word]);
    }
    text
}

/// Words that are single tokens in usual English tokenizers.
const WORDS: [&str; 64] = [
    "about", "after", "again", "all", "also", "and", "any", "are", "back", "been", "before",
    "both", "but", "can", "come", "could", "day", "does", "down", "each", "even", "first", "for",
    "from", "good", "great", "had", "has", "have", "here", "how", "into", "its", "just", "know",
    "last", "like", "long", "made", "make", "many", "more", "most", "much", "must", "never", "new",
    "not", "now", "old", "only", "other", "our", "out", "over", "own", "part", "same", "than",
    "that", "them", "then", "time", "work",
];

/// Returns the tokens of a text.
pub(super) fn tokens(text: &str) -> Vec<TokenId> {
    pieces(text).map(token).collect()
}

/// Returns the token of a piece, below 128, so that every vocabulary has it.
fn token(piece: &str) -> TokenId {
    // FNV-1a. The upper bits of the product are mixed best.
    let hash = piece.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as TokenId
}

/// Splits a text like Qwen2's pre-tokenizer, without its rule for contractions: `[^\r\n\p{L}\p{N}]?\p{L}+`, a digit, `
/// ?[^\s\p{L}\p{N}]+[\r\n]*`, white space.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let length = first_piece(rest)?;
        let (piece, behind) = rest.split_at(length);
        rest = behind;
        Some(piece)
    })
}

/// Returns the length of a text's first piece, in bytes; `None` if the text is empty.
fn first_piece(text: &str) -> Option<usize> {
    let is_mark = |c: char| !c.is_whitespace() && !c.is_alphanumeric();
    let is_break = |c: char| matches!(c, '\r' | '\n');
    let while_true = |text: &str, is: &dyn Fn(char) -> bool| -> usize {
        text.find(|c: char| !is(c)).unwrap_or(text.len())
    };
    let first = text.chars().next()?;
    let behind = &text[first.len_utf8()..];
    let second = behind.chars().next();
    if first.is_alphabetic() {
        return Some(while_true(text, &char::is_alphabetic));
    }
    if first.is_numeric() {
        return Some(first.len_utf8());
    }
    if !is_break(first) && second.is_some_and(char::is_alphabetic) {
        return Some(first.len_utf8() + while_true(behind, &char::is_alphabetic));
    }
    let marks = match (first, second) {
        (' ', Some(second)) if is_mark(second) => 1,
        _ => 0,
    };
    if is_mark(first) || marks == 1 {
        let end = marks + while_true(&text[marks..], &is_mark);
        return Some(end + while_true(&text[end..], &is_break));
    }
    Some(while_true(text, &char::is_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::policy::PolicyKind;
    use foreword_simulation::workload::{Bursty, bursty};

    #[test]
    fn texts_are_cut_as_a_tokenizer_cuts_them() {
        let cut = |text| pieces(text).collect::<Vec<_>>();
        assert_eq!(
            cut("<document id=\"d12\">\nAll"),
            ["<document", " id", "=\"", "d", "1", "2", "\">\n", "All"]
        );
        assert_eq!(
            cut("Order: 3 > 1"),
            ["Order", ":", " ", "3", " >", " ", "1"]
        );
        assert_eq!(cut("a\n\nb  \n"), ["a", "\n\n", "b", "  \n"]);
        assert_eq!(cut(""), Vec::<&str>::new());
    }

    #[test]
    fn a_prompt_has_the_tokens_that_were_asked_for() {
        let trace = bursty(1, 12, Bursty::default());
        let arm = Arm::RETRIEVAL;
        let mut gateway = Gateway::new(arm, Place::Auto, 65_536).unwrap();
        for (request, number) in trace.iter().zip(0..) {
            let prompt = gateway.prompt(&body(request, number)).unwrap();
            // One line break precedes the documents, and two follow them.
            assert_eq!(prompt.tokens.len(), SYSTEM + 5 * 200 + QUESTION + 1);
        }
    }

    #[test]
    fn the_hint_is_what_the_gateway_writes() {
        let trace = bursty(1, 30, Bursty::default());
        let mut arms = [false, true].map(|hint| {
            let policy = PolicyKind::Foresight;
            Gateway::new(Arm::Gateway { policy, hint }, Place::Auto, 65_536).unwrap()
        });
        let mut longer = 0;
        for (request, number) in trace.iter().zip(0..) {
            let body = body(request, number);
            let [without, with] = arms.each_mut().map(|arm| arm.prompt(&body).unwrap());
            assert_eq!(with.rewrite.report.moved, without.rewrite.report.moved);
            let more = with.tokens.len() - without.tokens.len();
            assert_eq!(more > 0, with.rewrite.report.hinted);
            longer += usize::from(more > 0);
        }
        assert!(longer > 10, "{longer}");
    }

    #[test]
    fn a_document_is_the_same_tokens_wherever_it_stands() {
        for number in [0, 9, 123, 499] {
            let block = format!(
                "<document id=\"{}\">\n{}\n</document>\n",
                name(number),
                document_text(number, 200)
            );
            assert_eq!(pieces(&block).count(), 200);
        }
        assert_ne!(document_text(1, 200), document_text(2, 200));
    }
}
