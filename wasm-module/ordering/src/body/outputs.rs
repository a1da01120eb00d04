//! A tool's whole result as one document, which a location hint may replace where it stands again.
//!
//! Agents read the same file several times. A result has no name of its own that the model sees (templates rarely render call
//! ids), so a hint quotes its longest run of plain words: a line of code or a sentence that other results seldom share.

use super::found::FoundDocument;
use crate::work::looked;

/// Returns a tool's result, escaped as in the body, as a document. `None` if it is too short for a hint to be much shorter,
/// or if it has no words to quote.
pub(super) fn whole(source: &str) -> Option<FoundDocument<'_>> {
    if source.len() < MIN_OUTPUT_BYTES {
        return None;
    }
    // The beginning suffices, and reading stays within its bound of looks at each byte.
    let mut end = (source.len() / 4).min(MAX_SEARCHED_BYTES);
    while !source.is_char_boundary(end) {
        end -= 1;
    }
    let words = longest_run(source.get(..end)?)?;
    Some(FoundDocument::whole(source, words))
}

/// Shortest result that a hint may replace, in bytes; the default hint has about 120.
const MIN_OUTPUT_BYTES: usize = 480;

/// Most bytes of a result in which words to quote are looked for.
const MAX_SEARCHED_BYTES: usize = 4_096;

/// Shortest and longest run that is quoted, in bytes.
const RUN_BYTES: std::ops::RangeInclusive<usize> = 12..=56;

/// Returns the longest run of letters, digits, spaces and harmless punctuation of a text, the first one of several. Of a longer run, the first whole words. Runs never cross a line's end, nor any other escape.
fn longest_run(text: &str) -> Option<&str> {
    looked(text.len());
    let mut longest = "";
    let mut start = 0;
    let mut escape = 0;
    for (at, character) in text.char_indices().chain([(text.len(), '\\')]) {
        if at < escape {
            start = escape;
            continue;
        }
        let is_plain = character.is_alphanumeric() || " ,.;:-_/".contains(character);
        if is_plain {
            continue;
        }
        let run = shortened(text.get(start..at).unwrap_or_default());
        if run.len() > longest.len() {
            longest = run;
        }
        start = at + character.len_utf8();
        if character == '\\' {
            let is_long = text.get(start..).is_some_and(|rest| rest.starts_with('u'));
            escape = start + if is_long { 5 } else { 1 };
        }
    }
    RUN_BYTES.contains(&longest.len()).then_some(longest)
}

/// Returns the words of a run, at most [`RUN_BYTES`] of them, from its first letter or digit to its last.
fn shortened(run: &str) -> &str {
    let run = run.trim_matches(|c: char| !c.is_alphanumeric());
    if run.len() <= *RUN_BYTES.end() {
        return run;
    }
    let mut end = *RUN_BYTES.end();
    while !run.is_char_boundary(end) {
        end -= 1;
    }
    let cut = run.get(..end).unwrap_or_default();
    let words = match run.get(end..).is_some_and(|rest| rest.starts_with(' ')) {
        true => cut,
        false => cut.rsplit_once(' ').map_or(cut, |(words, _)| words),
    };
    words.trim_end_matches(|c: char| !c.is_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_words_name_a_result() {
        for (text, words) in [
            (
                r"     1\timport os\n     2\tdef read_lines(path):\n",
                Some("def read_lines"),
            ),
            (
                r"import os, sys\ndef read_all_lines(path):\n",
                Some("def read_all_lines"),
            ),
            (
                r"\nOne sentence of a readme. \u00e9lan vital\n",
                Some("One sentence of a readme"),
            ),
            (r"\u006eot the name of it\n", Some("ot the name of it")),
            ("", None),
            (r"{}\\n\\", None),
        ] {
            assert_eq!(longest_run(text), words, "{text}");
        }
    }

    #[test]
    fn a_long_run_is_cut_between_words() {
        let text = "Ünder the bridge ".repeat(400);
        let words = longest_run(&text).unwrap();
        assert!(RUN_BYTES.contains(&words.len()) && text.starts_with(words));
        assert!(words.ends_with("bridge") || words.ends_with("the") || words.ends_with("nder"));
        assert!(longest_run(&"x".repeat(9_999)).is_some_and(|run| run.len() == 56));
    }
}
