//! The patterns that find volatile text (which changes between requests) in system messages, and the built-in ones.
//!
//! | class | action |
//! | --- | --- |
//! | `move` | the line or sentence moves behind the documents of the newest user message, before its question |
//! | `freeze` | the words of the conversation's first request are kept |
//! | `drop` | the match is removed |
//! | `leave` | none |
//!
//! A pattern is a regular expression (syntax of the crate `regex-lite`: linear time, no look-around) that is matched
//! against each line, without its line break. Most lines recur in every request, so the matches in a line are cached by
//! its hash. A built-in pattern is only tried on lines that contain one of its words.

use regex_lite::Regex;
use serde::Deserialize;
use std::ops::Range;

/// The gateway's treatment of a volatile span (text that changes between requests) of a system message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The line or sentence of the volatile span moves, unchanged, behind the documents of the newest user message.
    Move,
    /// The volatile span is replaced by the value that it had in the conversation's first request.
    Freeze,
    /// The volatile span is removed from the prompt.
    Drop,
    /// The volatile span is forwarded unchanged.
    Leave,
}

/// A validated and compiled pattern that finds volatile spans (texts that change between requests) in lines of system
/// messages.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) name: Box<str>,
    pub(crate) class: Class,
    regex: Regex,
    /// Words of which a line must contain one for the pattern to be tried on it; empty if the pattern is tried on all
    /// lines. Each word comes with the bits of its bytes ([`pairs`]), which rule out most lines quickly.
    words: Box<[(&'static str, u64)]>,
    /// Text that the system message must contain for the pattern to be tried; empty if it need not contain any.
    inside: &'static str,
}

/// A match of a pattern for volatile spans (texts that change between requests) in a line of a system message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) range: Range<usize>,
    /// Index of the pattern in the list given to [`matches`].
    pub(super) pattern: usize,
}

impl Pattern {
    /// Compiles a pattern for volatile spans (texts that change between requests) that is tried on every line of a
    /// system message.
    ///
    /// # Errors
    /// Returns the reason why the regular expression is invalid.
    pub(crate) fn new(name: &str, class: Class, pattern: &str) -> Result<Self, String> {
        let regex = Regex::new(pattern).map_err(|error| error.to_string())?;
        Ok(Self {
            name: name.into(),
            class,
            regex,
            words: Box::default(),
            inside: "",
        })
    }

    /// Returns the built-in patterns for volatile spans (texts that change between requests), compiled.
    pub(crate) fn table() -> Vec<Self> {
        let built = TABLE.iter().filter_map(|row| {
            let mut pattern = Self::new(row.name, row.class, row.pattern).ok()?;
            pattern.words = row.words.iter().map(|word| (*word, pairs(word))).collect();
            pattern.inside = row.inside;
            Some(pattern)
        });
        built.collect()
    }
}

/// Returns the matches of `patterns` in a line of a system message, in order. Of overlapping matches, the earlier
/// pattern's is used. `before` has those texts of the message that must contain [`Pattern::inside`] for a pattern to be
/// tried. Each pattern tried subtracts the line's length in bytes from `budget`; `None` if too little is left.
pub(super) fn matches(
    patterns: &[Pattern],
    before: &str,
    line: &str,
    budget: &mut usize,
) -> Option<Vec<Match>> {
    let mut found: Vec<Match> = Vec::new();
    let held = pairs(line);
    let holds = |(word, pairs): &(&str, u64)| held & pairs == *pairs && line.contains(word);
    for (at, pattern) in patterns.iter().enumerate() {
        if pattern.class == Class::Leave
            || !(pattern.words.is_empty() || pattern.words.iter().any(holds))
            || !before.contains(pattern.inside)
        {
            continue;
        }
        *budget = budget.checked_sub(line.len())?;
        for hit in pattern.regex.find_iter(line).take(MAX_MATCHES) {
            let range = hit.range();
            let is_free =
                |other: &Match| other.range.end <= range.start || range.end <= other.range.start;
            if !range.is_empty() && found.iter().all(is_free) {
                found.push(Match { range, pattern: at });
            }
        }
    }
    crate::sort::sort_by_key(&mut found, |found| found.range.start);
    Some(found)
}

/// Returns 64 bits, one of which is set, by a hash, for each pair of adjacent bytes of the text. If a text contains a
/// word, all bits of the word are set in the text's too.
fn pairs(text: &str) -> u64 {
    let bytes = text.as_bytes();
    let pairs = bytes.iter().zip(bytes.iter().skip(1));
    pairs.fold(0, |bits, (one, next)| {
        bits | 1 << (one.wrapping_mul(37).wrapping_add(next.wrapping_mul(11)) % 64)
    })
}

struct Row {
    name: &'static str,
    class: Class,
    words: &'static [&'static str],
    inside: &'static str,
    pattern: &'static str,
}

const fn row(
    name: &'static str,
    class: Class,
    words: &'static [&'static str],
    pattern: &'static str,
) -> Row {
    Row {
        name,
        class,
        words,
        inside: "",
        pattern,
    }
}

/// The beginning of Claude Code's billing line in a system message. That line contains a checksum of the body, which
/// Anthropic verifies.
pub(super) const BILLING: &str = "x-anthropic-billing-header:";

/// The built-in patterns for volatile spans (texts that change between requests). Their literals come from the sources
/// named in the documentation's table of clients.
const TABLE: &[Row] = &[
    row(
        "billing-line",
        Class::Drop,
        &[BILLING],
        r"^x-anthropic-billing-header:(?:[ \t]*[A-Za-z_]+=[^;\s]*(?:;|$))+[ \t]*",
    ),
    row(
        "wrapper-id",
        Class::Drop,
        &["EXTERNAL_UNTRUSTED_CONTENT id="],
        "(?:id=\"[0-9a-f]+\")",
    ),
    Row {
        name: "env-date",
        class: Class::Freeze,
        words: &["date: ", "Date: "],
        inside: "<env>",
        pattern: r"^\s*(?:\d+\. )?(?:Today's date|Date): [^\n]+$",
    },
    row(
        "current-date-section",
        Class::Freeze,
        &["Today's date is"],
        r"^Today's date is:? \d{4}-\d\d-\d\d\.?$",
    ),
    row(
        "current-date-tag",
        Class::Freeze,
        &["<current_date>"],
        r"<current_date>\d{4}-\d\d-\d\d</current_date>",
    ),
    row(
        "conversation-started",
        Class::Freeze,
        &["Conversation started: "],
        r"^Conversation started: [A-Z][a-z]+, [A-Z][a-z]+ \d{1,2}, \d{4}$",
    ),
    row(
        "conversation-date",
        Class::Freeze,
        &["Conversation Date & Time: "],
        r"^Conversation Date & Time: \d{4}-\d\d-\d\dT\S+$",
    ),
    row(
        "iso-time",
        Class::Move,
        &["ISO 8601"],
        r"Current time in ISO 8601 UTC format: \S+Z",
    ),
    row(
        "current-time-line",
        Class::Move,
        &["urrent "],
        r"^(?:[-*] +)?(?:\*\*)?[Cc]urrent (?:local )?(?:[Dd]ate and time|[Dd]ate|[Tt]ime|[Dd]atetime|[Dd]ate (?:&|and) [Tt]ime)(?:\*\*)?:(?:\*\*)? [^\n]+$",
    ),
    row(
        "current-time-sentence",
        Class::Move,
        &["urrent date", "urrent time"],
        // A sentence's beginning and a value: `If the current time is after 18:00, …` is a rule.
        r#"(?:The c|C)urrent (?:date and time|date|time) is [`"'*(]{0,3}[0-9A-Z][^\n]{3,60}?(?:\.\s|\.?$)"#,
    ),
    row(
        "id-line",
        Class::Move,
        &["id", "ID", "Id"],
        r"^(?:[-*] +)?(?:\*\*)?(?:[Ss]ession|[Rr]equest|[Tt]race|[Cc]orrelation|[Cc]onversation|[Tt]hread|[Rr]un|[Ss]pan)[ _-]?(?:[Ii][Dd])(?:\*\*)? ?[:=](?:\*\*)? ?\S+$",
    ),
    row(
        // A rule may name an id that never changes, so nothing is done here; an id that changes is found by comparing
        // requests.
        "dynamic-id",
        Class::Leave,
        &["-", "_"],
        r"\b(?:req|sess|session|trace|span|conv|txn|corr|run|job)[-_][A-Za-z]*[0-9][A-Za-z0-9-]{3,}\b",
    ),
    row(
        "git-status",
        Class::Leave,
        &["gitStatus: "],
        r"^gitStatus: [^\n]+$",
    ),
    row(
        "user-line",
        Class::Leave,
        &["ser"],
        r"^(?:[-*] +)?(?:\*\*)?[Uu]ser(?:'s)?(?: (?:name|email|location|locale|timezone))?(?:\*\*)?:(?:\*\*)? [^\n]+$",
    ),
];

/// The maximum number of matches of one pattern in one line that are used.
const MAX_MATCHES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(String, &str)> {
        let table = Pattern::table();
        let mut all = Vec::new();
        let mut at = 0;
        for line in text.split('\n') {
            let mut budget = usize::MAX;
            for found in matches(&table, &text[..at], line, &mut budget).unwrap() {
                all.push((table[found.pattern].name.to_string(), &line[found.range]));
            }
            at += line.len() + 1;
        }
        all
    }

    #[test]
    fn every_pattern_of_the_table_is_an_expression_with_a_name_of_its_own() {
        let table = Pattern::table();
        assert_eq!(table.len(), TABLE.len());
        let mut names: Vec<_> = table.iter().map(|pattern| pattern.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
    }

    #[test]
    fn literals_quoted_from_clients_are_found() {
        for (line, name) in [
            (
                "x-anthropic-billing-header: cc_version=2.1.37.abc; cc_entrypoint=cli; cch=a5145;",
                "billing-line",
            ),
            ("Current time: 12:03:11", "current-time-line"),
            (
                "**Current date and time:** 2026-11-22 12:00",
                "current-time-line",
            ),
            ("Current date: 2026-11-22", "current-time-line"),
            (
                "The current date and time is Nov 22, 2026 12:00.",
                "current-time-sentence",
            ),
            ("Current time is 12:03:11.", "current-time-sentence"),
            (
                "Current time in ISO 8601 UTC format: 2026-11-22T10:00:00Z",
                "iso-time",
            ),
            (
                "<current_date>2026-11-22</current_date>",
                "current-date-tag",
            ),
            (
                "Conversation started: Friday, August 21, 2026",
                "conversation-started",
            ),
            (
                "Conversation Date & Time: 2026-11-22T10:00:00Z",
                "conversation-date",
            ),
            ("Today's date is 2026-11-22.", "current-date-section"),
            ("Session ID: 9f8e7d6c", "id-line"),
            ("request_id=abc-123", "id-line"),
        ] {
            let found = found(line);
            assert_eq!(found.len(), 1, "{line}: {found:?}");
            assert_eq!(found[0].0, name, "{line}");
        }
        assert_eq!(
            found("<env>\n  2. Date: 8/22/2026\n</env>")[0].0,
            "env-date"
        );
    }

    #[test]
    fn instructions_and_plain_words_are_not() {
        for line in [
            "Date: 8/22/2026",
            "Use session_storage and run_command.",
            "The current user is always right.",
            "Keep the current date in mind.",
            "If the current time is after 18:00, do not offer lunch.",
            "When the current time is 18:00 or later, say so.",
            "Always say that the current date is unknown to you.",
            "The current time is unknown to you.",
            "Never touch trace-8842abcd, it is production.",
            "x-anthropic-billing-header is a header.",
        ] {
            assert_eq!(found(line), [], "{line}");
        }
    }

    #[test]
    fn a_billing_line_that_was_joined_to_what_follows_ends_where_its_fields_end() {
        let line = "x-anthropic-billing-header: cch=a5145;You are Claude Code";
        assert_eq!(found(line)[0].1, "x-anthropic-billing-header: cch=a5145;");
    }
}
