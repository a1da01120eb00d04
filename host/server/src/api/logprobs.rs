//! OpenAI's two formats of log-probabilities.
//!
//! | | chat | text completions |
//! | --- | --- | --- |
//! | tokens | `content[i].token`, and `bytes`, since a token may be a part of a character | `tokens[i]` |
//! | log-probability | `content[i].logprob` | `token_logprobs[i]` |
//! | alternatives | `content[i].top_logprobs`, likeliest first | `top_logprobs[i]`, by token, with the chosen one |
//! | offset | | `text_offset[i]`, in characters of the choice's text |
//!
//! With `echo`, a completion's lists begin with the prompt's tokens. vLLM's `prompt_logprobs` are separate
//! ([`prompt`]).
//!
//! All values are natural logarithms of the model's own distribution, before temperature, penalties and constraints.
//! Tokens cut off with a stop string are left out.

use crate::answer::{Candidate, PromptToken, Scored};
use serde_json::{Map, Value, json};

pub(super) fn chat(tokens: &[Scored]) -> Value {
    let entry = |bytes: &[u8], logprob: f32| json!({"token": text(bytes), "logprob": finite(logprob), "bytes": bytes});
    let token = |scored: &Scored| {
        let top = scored.top.iter();
        let top: Vec<Value> = top.map(|(bytes, logprob)| entry(bytes, *logprob)).collect();
        // A token of an answer is never the first one of the sequence, so it has a log-probability.
        let mut token = entry(&scored.bytes, scored.logprob.unwrap_or_default());
        token["top_logprobs"] = top.into();
        token
    };
    let content: Vec<Value> = tokens.iter().map(token).collect();
    json!({"content": content, "refusal": null})
}

pub(super) fn completion(tokens: &[Scored]) -> Value {
    let top = |scored: &Scored| {
        let Some(logprob) = scored.logprob else {
            return Value::Null;
        };
        let mut top = Map::new();
        for (bytes, logprob) in &scored.top {
            // Two tokens may have the same text; the likelier one is kept.
            top.entry(text(bytes)).or_insert_with(|| finite(*logprob));
        }
        top.entry(text(&scored.bytes))
            .or_insert_with(|| finite(logprob));
        Value::Object(top)
    };
    let list = |of: &dyn Fn(&Scored) -> Value| tokens.iter().map(of).collect::<Vec<_>>();
    json!({
        "tokens": list(&|scored| text(&scored.bytes).into()),
        "token_logprobs": list(&|scored| scored.logprob.map_or(Value::Null, finite)),
        "top_logprobs": list(&top),
        "text_offset": list(&|scored| scored.offset.into()),
    })
}

/// Returns vLLM's `prompt_logprobs` for a prompt's tokens: for each one an object by token id, whose first entry is the
/// token itself, or null if the token has no log-probability.
pub(super) fn prompt(tokens: &[PromptToken]) -> Value {
    let entry = |candidate: &Candidate| {
        let entry = json!({
            "logprob": finite(candidate.logprob),
            "rank": candidate.rank,
            "decoded_token": text(&candidate.bytes),
        });
        (candidate.id.to_string(), entry)
    };
    let token = |token: &PromptToken| match token.candidates.is_empty() {
        true => Value::Null,
        false => Value::Object(token.candidates.iter().map(entry).collect()),
    };
    tokens.iter().map(token).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns a log-probability as JSON, raised to at least -9999, OpenAI's lowest, since JSON has no infinity.
fn finite(logprob: f32) -> Value {
    json!(logprob.max(-9999.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored() -> Scored {
        Scored {
            bytes: vec![0xc3],
            logprob: Some(-2.0),
            top: vec![(b"a".to_vec(), -0.5), (b"b".to_vec(), f32::NEG_INFINITY)],
            offset: 3,
        }
    }

    #[test]
    fn chats_tell_bytes() {
        let expected = json!({"content": [{
            "token": "\u{fffd}", "logprob": -2.0, "bytes": [195],
            "top_logprobs": [
                {"token": "a", "logprob": -0.5, "bytes": [97]},
                {"token": "b", "logprob": -9999.0, "bytes": [98]},
            ],
        }], "refusal": null});
        assert_eq!(chat(&[scored()]), expected);
    }

    #[test]
    fn completions_tell_offsets() {
        let expected = json!({
            "tokens": ["\u{fffd}"], "token_logprobs": [-2.0], "text_offset": [3],
            "top_logprobs": [{"a": -0.5, "b": -9999.0, "\u{fffd}": -2.0}],
        });
        assert_eq!(completion(&[scored()]), expected);
        let first = Scored {
            logprob: None,
            ..scored()
        };
        let first = completion(&[first]);
        assert_eq!(
            (&first["token_logprobs"][0], &first["top_logprobs"][0]),
            (&Value::Null, &Value::Null)
        );
    }

    #[test]
    fn prompts_are_told_by_token_id() {
        let candidate = |id, rank, logprob| Candidate {
            id,
            bytes: vec![b'a' + id as u8],
            logprob,
            rank,
        };
        let token = PromptToken {
            candidates: vec![candidate(3, 9, f32::NEG_INFINITY), candidate(1, 1, -0.5)],
        };
        let expected = json!([null, {
            "3": {"logprob": -9999.0, "rank": 9, "decoded_token": "d"},
            "1": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
        }]);
        assert_eq!(prompt(&[PromptToken::default(), token]), expected);
        assert_eq!(prompt(&[]), json!([]));
    }
}
