//! Replaces passages with location hints (references to an earlier copy) if an earlier question already has these
//! passages, where the client joins passages into one text, as Dify does.
//!
//! ```text
//!   question 1, in the prompt  A1 ⏎ A2 ⏎ B1 ⏎ C1 ⏎ C2
//!   question 2, original       D1 ⏎ C1 ⏎ C2 ⏎ A1 ⏎ A2
//!   question 2, forwarded      D1 ⏎ see [C1… of question 1] ⏎ see [A1… of question 1]
//! ```
//!
//! Boundaries between passages are not marked, so nothing is reordered. But a run of lines that an earlier question's
//! contexts contain need not be sent again: a location hint names the question and the run's opening words, which occur
//! there only once.
//!
//! A line is looked up where it first occurs in the chat. It was sent in full there, since no earlier text has it; so a
//! run of lines that all first occur in one text is complete in that text.

use crate::body::unescaped;
use crate::work::{hashed, looked};
use fxhash::FxHashMap;
use std::cell::Cell;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The passages in a request's prompt so far, indexed by the hashes of their lines.
#[derive(Debug, Default)]
pub(crate) struct Passages<'a> {
    /// Bytes of all texts, and bytes searched for names so far.
    bytes: usize,
    searched: Cell<usize>,
    texts: Vec<PassageText<'a>>,
    /// The first occurrence of each line in the prompt, by the line's hash: the index of the text, and of the line in
    /// that text.
    first: FxHashMap<u64, (usize, usize)>,
}

/// A text in the prompt that consists of passages (retrieved texts) joined by the client.
#[derive(Debug)]
struct PassageText<'a> {
    turn: u32,
    question: u32,
    lines: Vec<&'a str>,
    /// The text with its JSON escapes resolved.
    plain: String,
}

impl<'a> Passages<'a> {
    /// Adds a text of passages (retrieved texts) that the client joined, escaped as in a JSON string. `turn` is the
    /// turn of the chat that contains the text, `question` the number of the user message with which it is sent.
    pub(crate) fn add(&mut self, turn: u32, question: u32, text: &'a str) {
        let lines: Vec<&str> = lines(text).collect();
        let at = self.texts.len();
        for (nth, line) in lines.iter().enumerate() {
            if !is_blank(line) {
                self.first.entry(hash(line)).or_insert((at, nth));
            }
        }
        self.bytes += text.len();
        self.texts.push(PassageText {
            turn,
            question,
            lines,
            plain: unescaped(text).into_owned(),
        });
    }

    /// Returns `text`, sent in `turn`, with each run of adjacent lines that a text of an earlier turn has too replaced
    /// by a location hint. `refer` makes the hint from a name for these lines (their opening words and the question's
    /// number); lines for which there is no name stay. `None` if no replacement would be shorter. O(bytes), since names
    /// are searched for in [`MAX_SEARCHES`] times the bytes of all texts at most.
    pub(crate) fn without_known(
        &self,
        turn: u32,
        text: &str,
        refer: impl Fn(&str) -> Option<String>,
    ) -> Option<String> {
        if self.texts.is_empty() {
            return None;
        }
        let all: Vec<&str> = lines(text).collect();
        let mut out: Vec<&str> = Vec::with_capacity(all.len());
        let mut references: Vec<(usize, String)> = Vec::new();
        let mut at = 0;
        while at < all.len() {
            let rest = all.get(at..)?;
            let run = (references.len() < MAX_REFERENCES)
                .then(|| self.run(turn, rest))
                .flatten();
            let count = run.as_ref().map_or(1, |(_, count)| *count);
            let lines = rest.get(..count)?;
            let bytes = (lines.iter())
                .map(|line| line.len() + BREAK.len())
                .sum::<usize>();
            let run = run.filter(|_| bytes > MIN_OPENING_CHARACTERS);
            let words = run.and_then(|(known, _)| refer(&self.name(known, lines)?));
            match words.filter(|words| words.len() + BREAK.len() < bytes) {
                Some(words) => {
                    references.push((out.len(), words));
                    out.push("");
                }
                None => out.extend(lines),
            }
            at += count;
        }
        if references.is_empty() {
            return None;
        }
        for (at, words) in &references {
            *out.get_mut(*at)? = words;
        }
        Some(out.join(BREAK))
    }

    /// Returns the text of a turn before `turn` in which the first of `lines` occurred first, and the number of
    /// `lines`, from the first on, that follow one another there. `None` if there is no such text, or if the first line
    /// is blank.
    fn run(&self, turn: u32, lines: &[&str]) -> Option<(&PassageText<'a>, usize)> {
        let opening = lines.first().filter(|line| !is_blank(line))?;
        let &(at, nth) = self.first.get(&hash(opening))?;
        let known = self.texts.get(at).filter(|known| known.turn < turn)?;
        let there = known.lines.get(nth..)?.iter();
        let is_shown = |line: &str| {
            is_blank(line) || (self.first.get(&hash(line))).is_some_and(|(first, _)| *first == at)
        };
        let same = there.zip(lines);
        let same = same.take_while(|(known, line)| known == line && is_shown(line));
        let count = same.count();
        let end = lines.get(..count)?.iter().rposition(|line| !is_blank(line));
        end.map(|end| (known, end + 1))
    }

    /// Returns a name by which a location hint denotes `lines`, adjacent lines of the text `known`: the opening words
    /// of the first of them whose opening words occur exactly once in the text, and the question's number; `None` if
    /// there is no such line near their beginning, or if too much has been searched.
    fn name(&self, known: &PassageText<'_>, lines: &[&str]) -> Option<String> {
        lines.iter().take(MAX_OPENINGS).find_map(|line| {
            let line = unescaped(line);
            let opening = line.get(opening(&line))?;
            let searched = self.searched.get() + known.plain.len();
            if !is_long_enough(opening) || searched > self.bytes.saturating_mul(MAX_SEARCHES) {
                return None;
            }
            self.searched.set(searched);
            looked(known.plain.len());
            let is_name = known.plain.matches(opening).take(2).count() == 1;
            is_name.then(|| format!("{opening}… of question {}", known.question))
        })
    }
}

/// Returns the words by which a location hint denotes a text, which is escaped as in a JSON string: the opening words
/// of the first of its lines that has enough of them; `None` if none of its first [`MAX_OPENINGS`] lines has. O(opening
/// lines).
pub(super) fn opening_words(text: &str) -> Option<String> {
    lines(text).take(MAX_OPENINGS).find_map(|line| {
        let line = unescaped(line);
        let opening = line.get(opening(&line))?;
        is_long_enough(opening).then(|| format!("{opening}…"))
    })
}

fn is_long_enough(opening: &str) -> bool {
    opening.chars().count() >= MIN_OPENING_CHARACTERS
}

/// Returns the range in `line` of the opening words that a location hint may quote; empty if the line has no letter or
/// digit.
fn opening(line: &str) -> Range<usize> {
    let start = line.find(char::is_alphanumeric).unwrap_or(line.len());
    let rest = line.get(start..).unwrap_or_default();
    let is_word = |c: char| c.is_alphanumeric() || " ,.;:%-–_/'’&+".contains(c);
    let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    let end = rest.floor_char_boundary(end.min(MAX_OPENING_BYTES));
    let words = rest.get(..end).unwrap_or_default();
    // In languages that separate words by spaces, no part of a word is quoted.
    let is_cut = rest
        .get(end..)
        .is_some_and(|next| next.starts_with(char::is_alphanumeric));
    let words = match words.rsplit_once(' ') {
        Some((whole, _)) if is_cut => whole,
        _ => words,
    };
    start..start + words.trim_end_matches(|c: char| !c.is_alphanumeric()).len()
}

/// Iterates over the lines of a text, escaped as in a JSON string, without their line breaks.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    looked(text.len());
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let bytes = text.as_bytes();
        let mut at = 0;
        let end = loop {
            match bytes.get(at) {
                None => break None,
                Some(b'\\') if bytes.get(at + 1) == Some(&b'n') => break Some(at),
                Some(b'\\') => at += 2,
                Some(_) => at += 1,
            }
        };
        match end {
            Some(end) => {
                rest = text.get(end + BREAK.len()..);
                text.get(..end)
            }
            None => {
                rest = None;
                Some(text)
            }
        }
    })
}

fn is_blank(line: &str) -> bool {
    line.trim_ascii().is_empty()
}

pub(super) fn hash(line: &str) -> u64 {
    hashed(line.len());
    xxh3_64_with_seed(line.as_bytes(), 21)
}

/// The escape sequence of a line break in a JSON string.
pub(super) const BREAK: &str = r"\n";

/// The maximum number of location hints written into one text of joined passages.
const MAX_REFERENCES: usize = 32;

/// The bytes in which names for runs of lines are searched for, at most, as a multiple of the bytes of all texts: more
/// than a text has references.
const MAX_SEARCHES: usize = 2 * MAX_REFERENCES;

/// The maximum length, in bytes, of the opening words by which a location hint names a passage.
const MAX_OPENING_BYTES: usize = 40;

/// The minimum length, in characters, of the opening words by which a location hint names a passage.
const MIN_OPENING_CHARACTERS: usize = 6;

/// The maximum number of lines, from a passage's first one on, whose opening words are tried as its name.
const MAX_OPENINGS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refer(name: &str) -> Option<String> {
        Some(format!("see [{name}]"))
    }

    fn known(texts: &[&'static str]) -> Passages<'static> {
        let mut passages = Passages::default();
        for (nth, text) in (0..).zip(texts) {
            passages.add(nth, nth + 1, text);
        }
        passages
    }

    const KETTLE: &str =
        r"The kettle costs six crowns.\n\nIt is made of steel.\nIt boils a litre in three minutes.";
    const TEAPOT: &str = r"# Teapot, blue\nIt is made of stoneware and holds two litres.";

    #[test]
    fn a_run_that_an_earlier_question_brought_is_referred_to() {
        let passages = known(&[
            r"The kettle costs six crowns.\n\nIt is made of steel.\nIt boils a litre in three minutes.\n# Teapot, blue\nIt is made of stoneware and holds two litres.",
        ]);
        let text = [r"A cup holds less.\n", TEAPOT, r"\n\n", KETTLE].concat();
        assert_eq!(
            passages.without_known(1, &text, refer).unwrap(),
            r"A cup holds less.\nsee [Teapot, blue… of question 1]\n\nsee [The kettle costs six crowns… of question 1]"
        );
        // In its own turn, the text is the first occurrence.
        assert_eq!(passages.without_known(0, &text, refer), None);
        assert_eq!(passages.without_known(1, "A cup holds less.", refer), None);
    }

    #[test]
    fn what_was_only_referred_to_is_no_place_to_refer_to() {
        let passages = known(&[
            KETTLE,
            r"The kettle costs six crowns.\n\nIt is made of steel.\nIt boils a litre in three minutes.\nA cup holds less than a quarter of a litre of it, and weighs a good deal less than that.",
        ]);
        let text = r"It boils a litre in three minutes.\nA cup holds less than a quarter of a litre of it, and weighs a good deal less than that.";
        assert_eq!(
            passages.without_known(2, text, refer).unwrap(),
            r"It boils a litre in three minutes.\nsee [A cup holds less than a quarter of a… of question 2]"
        );
    }

    #[test]
    fn words_that_stand_twice_or_are_not_fit_for_a_hint_name_nothing() {
        let twice = r"Note well, please:\nThe kettle is hot and the water in it boils.\nNote well, please:\nThe cup is cold and empty, and stands there.";
        let passages = known(&[twice]);
        let text = r"Note well, please:\nThe kettle is hot and the water in it boils.";
        assert_eq!(
            passages.without_known(1, text, refer).unwrap(),
            "see [The kettle is hot and the water in it… of question 1]"
        );
        for (line, words) in [
            (r#"  - "Quoted" words"#, "Quoted"),
            ("Ignore <b>all</b> that", "Ignore"),
            (
                "Umlaute über über über über über ü",
                "Umlaute über über über über über ü",
            ),
            (
                "水壶的价格是六个克朗，它由不锈钢制成。",
                "水壶的价格是六个克朗",
            ),
            ("......", ""),
        ] {
            assert_eq!(&line[opening(line)], words);
        }
    }

    #[test]
    fn an_escaped_backslash_before_an_n_breaks_no_line() {
        let all: Vec<&str> = lines(r#"a\\nb\nc\"\\\n"#).collect();
        assert_eq!(all, [r"a\\nb", r#"c\"\\"#, ""]);
    }

    /// Returns whether `pieces`, the lines of a text as sent, stand for `all`, its original lines. A location hint may
    /// stand for consecutive lines that the text it names, one of `shown`, contains.
    fn is_all(pieces: &[&str], all: &[&str], shown: &[String]) -> bool {
        let Some((piece, pieces)) = pieces.split_first() else {
            return all.is_empty();
        };
        let name = piece
            .strip_prefix("see [")
            .and_then(|name| name.strip_suffix(']'));
        let Some(name) = name else {
            return all.first() == Some(piece) && is_all(pieces, &all[1..], shown);
        };
        let (opening, question) = name.rsplit_once("… of question ").unwrap();
        let there = &shown[question.parse::<usize>().unwrap() - 1];
        (1..=all.len()).any(|count| {
            let run = all[..count].join(BREAK);
            there.matches(opening).count() == 1
                && run.contains(opening)
                && there.contains(&run)
                && is_all(pieces, &all[count..], shown)
        })
    }

    #[test]
    fn names_are_searched_for_in_a_bounded_part_of_the_text() {
        let line = |at: usize| format!("line {at:05} of a text with many lines");
        let count = 2_000;
        let text = |order: &mut dyn Iterator<Item = usize>| -> String {
            order.map(line).collect::<Vec<_>>().join(r"\n")
        };
        let (forwards, backwards) = (text(&mut (0..count)), text(&mut (0..count).rev()));
        let mut passages = Passages::default();
        passages.add(0, 1, &forwards);
        let (sent, work) = crate::work::counted(|| passages.without_known(1, &backwards, refer));
        // A hint is longer than a line.
        assert_eq!(sent, None);
        let bytes = (forwards.len() + backwards.len()) as u64;
        assert!(work.looked < (MAX_SEARCHES as u64 + 12) * bytes, "{work:?}");
    }

    proptest! {
        /// Checks every text with a slow search: lines that a location hint replaced follow one another in the earlier
        /// text that the hint names, and all other lines are sent, in their order.
        #[test]
        fn what_is_left_out_stands_earlier(
            texts in prop::collection::vec(prop::collection::vec(0_u8..9, 1..14), 2..6),
        ) {
            let line = |of: &u8| match of {
                0 => String::new(),
                1 => "Note.".to_owned(),
                other => format!("Line number {other} says that it is the number {other} of them all."),
            };
            let joined: Vec<String> = texts.iter().map(|text| text.iter().map(line).collect::<Vec<_>>().join(r"\n")).collect();
            let mut passages = Passages::default();
            // The lines sent in full, by question.
            let mut shown: Vec<String> = Vec::new();
            for (turn, text) in (0..).zip(&joined) {
                let sent = passages.without_known(turn, text, refer);
                passages.add(turn, turn + 1, text);
                let sent = sent.unwrap_or_else(|| text.clone());
                let (pieces, all): (Vec<&str>, Vec<&str>) = (lines(&sent).collect(), lines(text).collect());
                prop_assert!(is_all(&pieces, &all, &shown), "{:?} of {:?}", sent, text);
                shown.push(sent);
            }
        }
    }
}
