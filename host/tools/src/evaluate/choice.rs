//! Multiple-choice questions: how they are asked, and how the model's choice is read from the answer.
//!
//! ```text
//!   What is a ferry?                  {"logprobs": true, "top_logprobs": 20, "max_tokens": 1}
//!                                                        │
//!   A. a boat                                            ▼
//!   B. a train           ──▶  first token:  "B" -0.4,  " A" -1.9,  "The" -2.2, …  ──▶  B
//!   Answer with the letter alone.
//! ```
//!
//! The choice is the letter with the highest log-probability among the first token's alternatives in the response. So a
//! model that would begin with other words still makes a choice. If the endpoint reports no log-probability of a
//! letter, the choice is the letter at the beginning of the answer.

use super::data::{Turn, letter};
use super::score::without_thinking;
use super::stream::Streamed;
use serde_json::{Map, Value};

/// The part of a response from which the model's choice among the answers of a multiple-choice question was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChosenBy {
    /// The choice was read from the log-probabilities of the choices' letters.
    LogProbability,
    /// The choice was read from the answer's text, since the response has no log-probability of a choice's letter.
    Text,
}

/// Returns the text of a turn's question. For a multiple-choice question, the choices follow, each with its letter.
pub(super) fn question(turn: &Turn) -> String {
    let mut text = turn.question.clone();
    if turn.choices.is_empty() {
        return text;
    }
    text.push('\n');
    for (at, choice) in turn.choices.iter().enumerate() {
        if let Some(letter) = letter(at) {
            text.push_str(&format!("\n{letter}. {}", choice.trim()));
        }
    }
    text.push_str("\n\nAnswer with the letter alone.");
    text
}

/// Sets fields of the request `body` so that the model generates one token, and the endpoint returns the
/// log-probabilities of its alternatives.
pub(super) fn ask(body: &mut Map<String, Value>) {
    body.insert("max_tokens".into(), 1.into());
    body.insert("logprobs".into(), true.into());
    body.insert("top_logprobs".into(), RIVALS.into());
}

/// Returns the letter that the answer chooses among the first `choices` letters, and how it was found. If the answer
/// chooses none, returns the answer's whole text.
pub(super) fn chosen(streamed: &Streamed, choices: usize) -> (String, ChosenBy) {
    let letters = (0..choices).filter_map(letter);
    let best = letters
        .filter_map(|letter| {
            let rivals = streamed.first_token.iter();
            let of_letter = rivals.filter(|(token, _)| is_letter(token, letter));
            let logprob = of_letter
                .map(|(_, logprob)| *logprob)
                .max_by(f64::total_cmp);
            Some((letter, logprob?))
        })
        // On a tie, the first letter.
        .reduce(|best, next| if next.1 > best.1 { next } else { best });
    match best {
        Some((letter, _)) => (letter.to_string(), ChosenBy::LogProbability),
        None => (named(&streamed.text, choices), ChosenBy::Text),
    }
}

/// Returns the letter, in upper case, with which the answer `text` begins, if it is the letter of one of the first
/// `choices` choices and no letter or digit follows it. The model's thinking, and spaces, brackets, asterisks or quotes
/// before the letter, are skipped. Otherwise returns the whole `text`.
fn named(text: &str, choices: usize) -> String {
    let answer = without_thinking(text);
    let answer = answer.trim_start_matches(|c: char| c.is_whitespace() || "([*\"".contains(c));
    let mut characters = answer.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    let is_alone = characters.next().is_none_or(|next| !next.is_alphanumeric());
    let found = first.filter(|_| is_alone);
    let mut letters = (0..choices).filter_map(letter);
    let found = found.filter(|first| letters.any(|letter| letter == *first));
    found.map_or_else(|| text.to_owned(), String::from)
}

fn is_letter(token: &str, letter: char) -> bool {
    // Tokenizers mark a leading space in different ways.
    let token = token.trim_matches(|c: char| {
        c.is_whitespace() || matches!(c, '\u{120}' | '\u{2581}' | '(' | ')' | '.')
    });
    token.eq_ignore_ascii_case(letter.encode_utf8(&mut [0; 4]))
}

/// Number of alternatives to the answer's first token that are requested with their log-probabilities: OpenAI's
/// maximum.
const RIVALS: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(text: &str, rivals: &[(&str, f64)]) -> Streamed {
        Streamed {
            text: text.into(),
            first_token: rivals
                .iter()
                .map(|(token, p)| ((*token).to_owned(), *p))
                .collect(),
            ..Streamed::default()
        }
    }

    #[test]
    fn the_likeliest_letter_is_the_choice_whatever_the_text() {
        let answer = streamed(
            "The",
            &[
                ("The", -0.1),
                (" b", -2.0),
                ("C", -1.5),
                ("B", -3.0),
                ("E", -0.5),
            ],
        );
        assert_eq!(chosen(&answer, 4), ("C".into(), ChosenBy::LogProbability));
        let equal = streamed("", &[("\u{120}B", -1.0), ("A.", -1.0)]);
        assert_eq!(chosen(&equal, 2).0, "A");
    }

    #[test]
    fn without_log_probabilities_the_text_is_read() {
        for (text, letter) in [
            ("B", "B"),
            (" (c) a car", "C"),
            ("<think>A?</think>\nD.", "D"),
            ("**a**", "A"),
        ] {
            assert_eq!(
                chosen(&streamed(text, &[("The", -0.1)]), 4),
                (letter.into(), ChosenBy::Text)
            );
        }
        for text in ["A boat", "None", "E", ""] {
            let (answer, _) = chosen(&streamed(text, &[]), 4);
            assert_eq!(answer, if text == "A boat" { "A" } else { text });
        }
    }

    #[test]
    fn choices_stand_behind_the_question() {
        let turn = Turn {
            question: "What?".into(),
            documents: Vec::new(),
            answers: vec!["A".into()],
            answer_document: None,
            choices: vec![" a boat".into(), "a train".into()],
        };
        let expected = "What?\n\nA. a boat\nB. a train\n\nAnswer with the letter alone.";
        assert_eq!(question(&turn), expected);
    }
}
