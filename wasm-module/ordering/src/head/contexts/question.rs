//! Recognises a user's question among the contexts (retrieved documents) that a client wrote around it.
//!
//! ```text
//!   ### Task: …  <context> … </context>          What does it cost?
//!   Question: What does it cost?                 <source id="1"> … </source>
//! ```
//!
//! Nothing marks the boundary between a template's words and the question. So a message is looked up by one line of its
//! text without its label: the last line if text follows the contexts, otherwise the first one. The question sent later
//! must then be the whole end or the whole beginning of that text, from the start of a line or after a colon.

use crate::body::{Chain, unescaped};
use xxhash_rust::xxh3::xxh3_128;

/// Returns the key under which a message with contexts (retrieved documents) is recorded; `before` and `behind` are the
/// texts around the contexts, escaped as in a JSON string, and `prior` is the hash of the chat before the message.
/// `None` if there is no question around the contexts.
pub(super) fn key_of(before: &str, behind: &str, prior: Chain) -> Option<u128> {
    let behind = unescaped(behind);
    let behind = without_closing_tags(&behind);
    if let Some(line) = last_line(behind) {
        return Some(hash(prior, AT_END, line));
    }
    let before = unescaped(before);
    first_line(&before).map(|line| hash(prior, AT_START, line))
}

/// Returns the keys under which a message may have been recorded that was forwarded with contexts (retrieved documents)
/// and now has the text `text` without them: by its last line, and by its first; `None` for an empty line. `prior` is
/// the hash of the chat before the message.
pub(super) fn keys(text: &str, prior: Chain) -> [Option<u128>; 2] {
    [
        last_line(text).map(|line| hash(prior, AT_END, line)),
        first_line(text).map(|line| hash(prior, AT_START, line)),
    ]
}

/// Returns whether `text` begins or ends with `question`, at the start of a line or after a label or a tag, and is
/// longer than `question`.
pub(super) fn asks(text: &str, question: &str) -> bool {
    let (text, question) = (text.trim(), question.trim());
    if question.is_empty() || text == question {
        return false;
    }
    let is_at_end = text
        .strip_suffix(question)
        .is_some_and(|before| before.ends_with(['\n', '>']) || before.ends_with(": "));
    let is_at_start = || {
        let line = |text: &str| text.lines().next().map_or(0, |line| line.trim_end().len());
        let start = line(text).checked_sub(line(question))?;
        let (label, rest) = text.split_at_checked(start)?;
        let rest = rest.strip_prefix(question)?;
        let is_whole = rest.starts_with(|next: char| next.is_whitespace() || next == '<');
        Some(is_whole && (label.is_empty() || label.ends_with(": ")))
    };
    is_at_end || is_at_start() == Some(true)
}

/// Returns the text without leading white space and leading closing tags such as `</context>`.
fn without_closing_tags(text: &str) -> &str {
    let mut rest = text.trim_start();
    while let Some(tag) = rest.strip_prefix("</") {
        let Some((name, behind)) = tag.split_once('>') else {
            break;
        };
        if name.len() > MAX_NAME_BYTES || name.contains(char::is_whitespace) {
            break;
        }
        rest = behind.trim_start();
    }
    rest
}

fn last_line(text: &str) -> Option<&str> {
    unlabelled(text.trim_end().lines().next_back()?)
}

fn first_line(text: &str) -> Option<&str> {
    unlabelled(text.trim_start().lines().next()?)
}

/// Returns the text of a line after its last `: ` and its last `>`, trimmed; `None` if that is empty.
fn unlabelled(line: &str) -> Option<&str> {
    let line = line.trim();
    let words = line.rsplit_once(": ").map_or(line, |(_, words)| words);
    // The question may follow an opening tag on its line.
    let words = words.rsplit_once('>').map_or(words, |(_, words)| words);
    Some(words.trim()).filter(|words| !words.is_empty())
}

fn hash(prior: Chain, place: u8, line: &str) -> u128 {
    let mut bytes = Vec::with_capacity(17 + line.len());
    bytes.extend_from_slice(&prior.0.to_le_bytes());
    bytes.push(place);
    bytes.extend_from_slice(line.as_bytes());
    xxh3_128(&bytes)
}

const AT_END: u8 = 1;
const AT_START: u8 = 2;

/// The maximum length of the name of a closing tag that is skipped before a question, in bytes.
const MAX_NAME_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const PRIOR: Chain = Chain(7);

    fn meets(before: &str, behind: &str, question: &str) -> bool {
        let text = [before, "<doc>x\n</doc>", behind].concat();
        let key = key_of(
            &before.replace('\n', r"\n"),
            &behind.replace('\n', r"\n"),
            PRIOR,
        );
        asks(&text, question) && keys(question, PRIOR).contains(&key) && key.is_some()
    }

    #[test]
    fn a_question_is_found_behind_and_before_the_contexts() {
        for (before, behind, question) in [
            ("### Task:\n<context>\n", "\n</context>\n\nWhy?", "Why?"),
            ("", "\nQuestion: Why?", "Why?"),
            ("", "\nTwo lines:\n\nWhy so?", "Two lines:\n\nWhy so?"),
            ("", "\nUse these.\nWhy: so?\n", "Why: so?"),
            ("Why?\n\n", "", "Why?"),
            (
                "Question: Why\nand how?\n\n<context>",
                "</context>\n",
                "Why\nand how?",
            ),
            ("", "</context>Why?", "Why?"),
        ] {
            assert!(meets(before, behind, question), "{before:?} {behind:?}");
        }
    }

    #[test]
    fn half_a_question_is_another_one() {
        for (before, behind, question) in [
            ("", "\nIs it so, and why?", "why?"),
            ("", "\nWhy?", "Why"),
            ("", "\nWhy?", "How?"),
            ("Why not?\n", "", "Why"),
            ("", "\nWhy?", ""),
            ("", "", "Why?"),
        ] {
            assert!(!meets(before, behind, question), "{before:?} {behind:?}");
        }
    }

    #[test]
    fn other_chats_have_other_keys() {
        assert_ne!(keys("Why?", Chain(1)), keys("Why?", Chain(2)));
        let [end, start] = keys("Why?", PRIOR);
        assert_ne!(end, start);
    }
}
