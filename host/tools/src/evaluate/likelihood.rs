//! The likelihood of the right answer, by teacher forcing: the request ends with the answer as the beginning of the
//! assistant's message, and the endpoint reports the log-probability of each of its tokens.
//!
//! ```text
//!   messages … user: documents, question │ assistant: "30 June"   add_generation_prompt: false
//!                                        │                        continue_final_message: true, prompt_logprobs: 0
//!   prompt_logprobs  null … "\n" -0.0    │ "3" -0.9  "0" -0.2  " June" -1.1        -2.2 nats, -0.73 a token
//! ```
//!
//! Exact match shows whether an answer is right; the likelihood shows how far it is from being right. So fewer
//! questions show the same difference, and no answer is generated. The first right answer is forced, the same one under
//! every arm.
//!
//! The request uses vLLM's fields, which Foreword's host also supports. One more, `prompt_logprobs_last`, is the host's
//! own and ignored by vLLM: it limits scoring to the prompt's end, so that the rest can come from the cache. The
//! answer's tokens are the last ones of the prompt. Their texts are compared with the answer, from its end, by the
//! visible ASCII characters, since tokenizers report spaces and parts of characters differently.

use super::stream::Broken;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::io::BufRead;

/// The likelihood of a right answer as the continuation of a prompt; a line of `scores.jsonl`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Likelihood {
    /// Log-probability of the whole answer, in nats.
    pub(super) nats: f64,
    /// Number of the answer's tokens, at least one.
    pub(super) tokens: u32,
}

impl Likelihood {
    pub(super) fn per_token(self) -> f64 {
        self.nats / f64::from(self.tokens.max(1))
    }
}

/// A request for the likelihood of a right answer as the continuation of a prompt.
#[derive(Clone, Debug)]
pub(super) struct Forced {
    pub(super) body: Vec<u8>,
    pub(super) answer: String,
    /// URL of the chat route to which the request is sent.
    pub(super) url: String,
}

/// The last tokens of a prompt, in order, each with its text and its log-probability in nats: those tokens for which
/// the endpoint reports a log-probability.
#[derive(Debug)]
pub(super) struct ScoredPrompt(Vec<ScoredToken>);

#[derive(Debug, Deserialize)]
struct ScoredToken {
    logprob: f64,
    decoded_token: Option<String>,
}

#[derive(Deserialize)]
struct Response {
    prompt_logprobs: Option<Vec<Option<Map<String, Value>>>>,
}

/// Number of prompt tokens to score in addition to one for each byte of the answer. An answer has at most as many
/// tokens as bytes, but its first token may begin in the text before it.
const BEFORE: usize = 8;

impl Forced {
    /// Returns the request for the likelihood of `answer` as the assistant's answer to the chat in `body`, to be sent
    /// to `url`.
    ///
    /// # Errors
    /// Returns an error if the body is not a chat.
    pub(super) fn new(body: &[u8], answer: &str, url: &str) -> Result<Self> {
        let mut body: Value = serde_json::from_slice(body).context("a body that the core wrote")?;
        let answer = answer.trim();
        let messages = body.get_mut("messages").and_then(Value::as_array_mut);
        let messages = messages.context("a body without messages")?;
        messages.push(json!({"role": "assistant", "content": answer}));
        if let Some(fields) = body.as_object_mut() {
            for field in ["stream", "stream_options", "logprobs", "top_logprobs"] {
                fields.remove(field);
            }
        }
        // vLLM requires at least one generated token.
        for (field, value) in [
            ("max_tokens", json!(1)),
            ("prompt_logprobs", json!(0)),
            ("prompt_logprobs_last", json!(answer.len() + BEFORE)),
            ("add_generation_prompt", json!(false)),
            ("continue_final_message", json!(true)),
        ] {
            body[field] = value;
        }
        Ok(Self {
            body: body.to_string().into_bytes(),
            answer: answer.to_owned(),
            url: url.to_owned(),
        })
    }
}

/// Parses a response with the log-probabilities of a prompt's tokens (`prompt_logprobs`).
///
/// # Errors
/// Returns [`Broken`] if the response has no log-probabilities or cannot be read.
pub(super) fn read(mut body: impl BufRead) -> Result<ScoredPrompt, Broken> {
    let mut text = Vec::new();
    body.read_to_end(&mut text)?;
    let unusable = |reason: String| Broken::NoLogprobs(reason);
    let response: Response =
        serde_json::from_slice(&text).map_err(|error| unusable(error.to_string()))?;
    let Some(tokens) = response.prompt_logprobs else {
        return Err(unusable("it has no prompt_logprobs".to_owned()));
    };
    let unscored = tokens.iter().position(Option::is_some).unwrap_or(1);
    let tokens = tokens.into_iter().skip(unscored).map(|token| {
        // With 0 alternatives, only the token itself is reported.
        let only = token.and_then(|token| token.into_iter().next());
        let token = only.map(|(_, token)| serde_json::from_value(token));
        token.and_then(Result::ok)
    });
    let tokens = tokens.collect::<Option<_>>();
    let tokens = tokens.ok_or_else(|| unusable("a token has no log-probability".to_owned()))?;
    Ok(ScoredPrompt(tokens))
}

impl ScoredPrompt {
    /// Returns the likelihood of `answer`, which should be the end of the prompt; `None` if the prompt does not end
    /// with it.
    pub(super) fn likelihood(&self, answer: &str) -> Option<Likelihood> {
        let wanted = visible(answer);
        let mut left = wanted.len();
        let begins_hidden = !answer.starts_with(|c: char| c.is_ascii_graphic());
        let (mut nats, mut tokens) = (0.0, 0);
        for token in self.0.iter().rev() {
            let text = token.decoded_token.as_deref().unwrap_or_default();
            let shown = visible(text);
            if left > 0 {
                let rest = &wanted[..left];
                if rest.ends_with(&shown) {
                    left -= shown.len();
                } else if shown.ends_with(rest) {
                    // The token also contains the end of the text before the answer.
                    left = 0;
                } else {
                    return None;
                }
            } else {
                // Parts of the characters at the answer's beginning.
                let is_part = shown.is_empty() && (text.is_empty() || !text.is_ascii());
                if !(begins_hidden && is_part) {
                    break;
                }
            }
            nats += token.logprob;
            tokens += 1;
        }
        (left == 0 && tokens > 0).then_some(Likelihood { nats, tokens })
    }
}

/// Returns the printable ASCII characters of a text except spaces. All tokenizers report these alike.
fn visible(text: &str) -> String {
    text.chars().filter(char::is_ascii_graphic).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(tokens: &[(&str, f64)]) -> ScoredPrompt {
        let token = |(text, logprob): &(&str, f64)| ScoredToken {
            logprob: *logprob,
            decoded_token: Some((*text).to_owned()),
        };
        ScoredPrompt(tokens.iter().map(token).collect())
    }

    #[track_caller]
    fn is(answer: &str, tokens: &[&str], count: Option<u32>) {
        let tokens: Vec<_> = tokens.iter().map(|text| (*text, -0.5)).collect();
        let found = prompt(&tokens).likelihood(answer);
        let tokens = found.map(|found| found.tokens);
        assert_eq!(tokens, count, "{answer:?}");
        if let Some(found) = found {
            assert_eq!(found.per_token(), -0.5);
        }
    }

    #[test]
    fn the_answers_tokens_are_the_last_ones() {
        is("30 June", &["assistant", "\n", "3", "0", " June"], Some(3));
        // Equal words before the answer do not belong to it.
        is("yes", &["yes", "\n", "yes"], Some(1));
        // SentencePiece's space, and a token that begins before the answer.
        is("30 June", &["▁", "30", "▁June"], Some(2));
        is("30 June", &[": 3", "0", "June"], Some(3));
        is("it", &["with", "it"], Some(1));
        is("no", &["\n", "yes"], None);
        is("far too long", &["long"], None);
    }

    #[test]
    fn parts_of_characters_are_the_answers_however_they_are_told() {
        is(
            "Erdős",
            &["\n", "Erd", "\u{fffd}", "\u{fffd}", "s"],
            Some(4),
        );
        is("Erdős", &["\n", "Erd", "", "ő", "s"], Some(4));
        is("ős", &["\n", "\u{fffd}", "\u{fffd}", "s"], Some(3));
        is("ős", &["\n", "", "ő", "s"], Some(3));
        is(
            "北京",
            &["assistant", "\n", "北", "\u{fffd}", "\u{fffd}"],
            Some(3),
        );
        is("北京", &["<｜Assistant｜>", "", "北京"], Some(2));
    }

    #[test]
    fn responses_are_read_as_they_come() {
        let response = json!({"prompt_logprobs": [null, {"5": {"logprob": -1.5, "rank": 3, "decoded_token": "x"}}],
            "choices": []});
        let found = read(response.to_string().as_bytes()).unwrap();
        assert_eq!(found.likelihood("x").unwrap().nats, -1.5);
        for (response, words) in [
            (json!({"choices": []}), "it has no prompt_logprobs"),
            (
                json!({"prompt_logprobs": [null, null]}),
                "has no log-probability",
            ),
            (json!([]), "does not tell how likely the prompt is"),
        ] {
            let error = read(response.to_string().as_bytes()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn a_forced_body_differs_from_the_asked_one_in_its_ending_alone() {
        let asked = json!({
            "model": "m", "messages": [{"role": "user", "content": "Why?"}], "temperature": 0, "max_tokens": 64,
            "stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 20,
        });
        let forced = Forced::new(asked.to_string().as_bytes(), " So. ", "u").unwrap();
        let body: Value = serde_json::from_slice(&forced.body).unwrap();
        let expected = json!({
            "model": "m", "temperature": 0, "max_tokens": 1, "prompt_logprobs": 0, "prompt_logprobs_last": 11,
            "messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}],
            "add_generation_prompt": false, "continue_final_message": true,
        });
        assert_eq!(body, expected);
        assert_eq!(forced.answer, "So.");
    }
}
