//! Replaces lines of tools' results with location hints (references to an earlier copy) if the result of an earlier
//! turn already has these lines.
//!
//! ```text
//!   turn 1, in the prompt  a b c d e f
//!   turn 2, original       x c d e f y
//!   turn 2, forwarded      x "see the lines from [c] to [f] of a tool result" y
//! ```
//!
//! Agents read files again, in other ranges and after a change. A run of lines is looked up by its first line, in the
//! newest result that has this line in full (unless it occurs there twice), and compared byte for byte. The hint quotes
//! words near the run's ends that are the longest quotable words of only one line of all results, so that it seldom
//! means another version of a file. A turn ends with an assistant's message: results of calls that the model made at
//! once belong to one turn and are not compared with each other.

use super::passages::{BREAK, hash, lines};
use crate::work::looked;
use fxhash::FxHashMap;

/// The tools' results in a request's prompt so far, indexed by the hashes of their lines.
#[derive(Debug, Default)]
pub(crate) struct Outputs<'a> {
    texts: Vec<OutputText<'a>>,
    /// For each line, by its hash, the newest result that contains the line in full: the index of the result, and the
    /// line's index in it. A line that this result contains more than once is absent.
    places: FxHashMap<u64, (usize, usize)>,
    /// The words that a location hint may quote in the first `counted` results, each with the number of lines that have
    /// them. Words are counted when first needed.
    quoted: FxHashMap<&'a str, u32>,
    counted: usize,
}

#[derive(Debug)]
struct OutputText<'a> {
    turn: u32,
    /// The lines of the result as forwarded; `None` for those that a location hint replaced.
    lines: Vec<Option<&'a str>>,
}

/// Adjacent lines of a tool's result, and the location hint that is written instead of them.
struct Run {
    start: usize,
    count: usize,
    hint: String,
}

/// The minimum length in bytes (1) of a tool's result that is compared with earlier results, and (2) of the adjacent
/// lines that one location hint (a reference to their earlier copy) replaces. A hint has about 150 bytes.
pub(crate) const MIN_OUTPUT_BYTES: usize = 480;

/// The maximum number of location hints written into one tool's result; further repeated lines stay.
const MAX_HINTS: usize = 64;

impl<'a> Outputs<'a> {
    /// Adds a tool's result of the chat's turn `turn`, escaped as in a JSON string. Returns the result with each run of
    /// adjacent lines that a result of an earlier turn has too replaced by a location hint (a reference to that copy);
    /// `None` if nothing is replaced. `refer` makes the hint from words of the run's first line and of its last line
    /// (`None` for a single line), or returns `None` to keep the lines. O(bytes).
    pub(crate) fn add(
        &mut self,
        turn: u32,
        text: &'a str,
        refer: impl Fn(&str, Option<&str>) -> Option<String>,
    ) -> Option<String> {
        let all: Vec<&str> = lines(text).collect();
        let hashes: Vec<u64> = all.iter().map(|line| hash(line)).collect();
        let runs = self.runs(turn, text.len(), &all, &hashes, refer);
        let mut sent: Vec<Option<&str>> = all.iter().copied().map(Some).collect();
        for run in &runs {
            sent.get_mut(run.start..run.start + run.count)?.fill(None);
        }
        self.index(turn, &hashes, sent);
        (!runs.is_empty()).then(|| replaced(&all, &runs))
    }

    /// Returns the runs of adjacent lines that results of turns before `turn` have too, each with the location hint to
    /// replace it. `all` are the lines of a result, `hashes` their hashes, and `bytes` is the result's length. `refer`
    /// makes a hint from words of the run's first and last line.
    fn runs(
        &mut self,
        turn: u32,
        bytes: usize,
        all: &[&str],
        hashes: &[u64],
        refer: impl Fn(&str, Option<&str>) -> Option<String>,
    ) -> Vec<Run> {
        let mut runs = Vec::new();
        // Bytes compared without finding a run: bounds the work.
        let mut wasted = 0;
        // The text and the offset of the last comparison without a run, and the line up to which both agree.
        let mut vain = None;
        let mut start = 0;
        while let Some(line) = hashes.get(start) {
            if runs.len() == MAX_HINTS || wasted > bytes {
                break;
            }
            let place = self.places.get(line).copied();
            let place = place.filter(|(text, nth)| {
                vain.is_none_or(|(known, distance, end)| {
                    (*text, nth.wrapping_sub(start)) != (known, distance) || start >= end
                })
            });
            let Some((text, nth)) = place else {
                start += 1;
                continue;
            };
            let rest = all.get(start..).unwrap_or_default();
            let (count, same) = self.agreeing(turn, (text, nth), rest);
            let run = (same >= MIN_OUTPUT_BYTES).then(|| {
                self.count();
                let lines = rest.get(..count)?;
                named(lines, &self.quoted).and_then(|named| named.run(start, lines, &refer))
            });
            match run.flatten() {
                Some(run) => {
                    start = run.start + run.count;
                    runs.push(run);
                }
                None => {
                    wasted += same + all.get(start + count).map_or(0, |line| line.len());
                    vain = Some((text, nth.wrapping_sub(start), start + count));
                    start += 1;
                }
            }
        }
        runs
    }

    /// Compares `lines` with the lines of an earlier result: the result with index `at`, from its line `nth` on.
    /// Returns the number of lines that are equal before the first that differs, and their bytes with line breaks. Both
    /// are 0 unless the result is of a turn before `turn`.
    fn agreeing(&self, turn: u32, (at, nth): (usize, usize), lines: &[&str]) -> (usize, usize) {
        let text = self.texts.get(at).filter(|text| text.turn < turn);
        let there = text.and_then(|text| text.lines.get(nth..));
        let same = there.unwrap_or_default().iter().zip(lines);
        let same = same.take_while(|(there, line)| **there == Some(**line));
        let (count, bytes) = same.fold((0, 0), |(count, bytes), (_, line)| {
            (count + 1, bytes + line.len() + BREAK.len())
        });
        looked(bytes + lines.get(count).map_or(0, |line| line.len()));
        (count, bytes)
    }

    /// Adds a tool's result of the chat's turn `turn` as forwarded, and indexes its lines; those that a location hint
    /// replaced are `None` in `lines`.
    fn index(&mut self, turn: u32, hashes: &[u64], lines: Vec<Option<&'a str>>) {
        let at = self.texts.len();
        let mut here: FxHashMap<u64, Option<usize>> = FxHashMap::default();
        for ((hash, line), nth) in hashes.iter().zip(&lines).zip(0..) {
            if line.is_some() {
                let place = here.entry(*hash);
                place.and_modify(|at| *at = None).or_insert(Some(nth));
            }
        }
        for (line, nth) in here {
            match nth {
                Some(nth) => self.places.insert(line, (at, nth)),
                None => self.places.remove(&line),
            };
        }
        self.texts.push(OutputText { turn, lines });
    }

    /// Counts the words that a location hint may quote in results that were added since the last call of this method.
    fn count(&mut self) {
        for text in self.texts.iter().skip(self.counted) {
            for words in text.lines.iter().flatten().filter_map(|line| words(line)) {
                *self.quoted.entry(words).or_default() += 1;
            }
        }
        self.counted = self.texts.len();
    }
}

/// The lines near both ends of a run of repeated lines whose words a location hint quotes, because no other line of the
/// results has these words. Each is given by its index in the run and its words.
struct Named<'t> {
    first: (usize, &'t str),
    last: (usize, &'t str),
}

/// Returns the first and the last of `lines` that a location hint can name, since their quotable words occur in no
/// other line of the results; `None` unless there is one near each end. `quoted` has, for each such sequence of words,
/// the number of lines in which it occurs.
fn named<'t>(lines: &[&'t str], quoted: &FxHashMap<&str, u32>) -> Option<Named<'t>> {
    let own = |(at, line): (usize, &&'t str)| {
        let words = words(line)?;
        (quoted.get(words) == Some(&1)).then_some((at, words))
    };
    let lines = lines.iter().enumerate();
    Some(Named {
        first: lines
            .clone()
            .take(MAX_LINES_SEARCHED_FOR_NAME)
            .find_map(own)?,
        last: lines
            .rev()
            .take(MAX_LINES_SEARCHED_FOR_NAME)
            .find_map(own)?,
    })
}

impl Named<'_> {
    /// Returns the run of lines that a location hint (a reference to an earlier copy) replaces, with the hint: those of
    /// `lines`, adjacent repeated lines, from the first to the last named one. `start` is the index in the result of
    /// the first of `lines`. `refer` makes the hint from the quoted words. `None` if a hint would replace too little,
    /// or would not be shorter.
    fn run(
        &self,
        start: usize,
        lines: &[&str],
        refer: impl Fn(&str, Option<&str>) -> Option<String>,
    ) -> Option<Run> {
        let ((from, first), (to, last)) = (self.first, self.last);
        let lines = lines.get(from..=to)?;
        let bytes: usize = lines.iter().map(|line| line.len() + BREAK.len()).sum();
        let hint = refer(first, (from < to).then_some(last))?;
        (bytes >= MIN_OUTPUT_BYTES && hint.len() < bytes).then_some(Run {
            start: start + from,
            count: lines.len(),
            hint,
        })
    }
}

/// The maximum number of lines at each end of a run of repeated lines that are searched for words by which a location
/// hint can name them.
const MAX_LINES_SEARCHED_FOR_NAME: usize = 16;

/// Returns the text of a tool's result, made of its lines `all`, in which a location hint stands instead of each of
/// `runs`, adjacent lines.
fn replaced(all: &[&str], runs: &[Run]) -> String {
    let mut pieces: Vec<&str> = Vec::with_capacity(all.len());
    let mut done = 0;
    for run in runs {
        pieces.extend(all.get(done..run.start).unwrap_or_default());
        pieces.push(&run.hint);
        done = run.start + run.count;
    }
    pieces.extend(all.get(done..).unwrap_or_default());
    pieces.join(BREAK)
}

/// The minimum and maximum length, in bytes, of the words of a line that a location hint quotes.
const WORDS: std::ops::RangeInclusive<usize> = 10..=56;

/// Returns the words of a line that a location hint may quote: its longest sequence of letters, digits, spaces and
/// harmless punctuation, cut after a whole word if it is too long for [`WORDS`]; `None` if it is too short. The line
/// may have JSON escapes; the words have none.
fn words(line: &str) -> Option<&str> {
    looked(line.len());
    let mut longest = "";
    let mut start = 0;
    let mut escape = 0;
    for (at, character) in line.char_indices().chain([(line.len(), '\\')]) {
        if at < escape {
            start = escape;
            continue;
        }
        if character.is_alphanumeric() || " ,.;:-_/".contains(character) {
            continue;
        }
        let run = shortened(line.get(start..at).unwrap_or_default());
        if run.len() > longest.len() {
            longest = run;
        }
        start = at + character.len_utf8();
        if character == '\\' {
            let is_long = line.get(start..).is_some_and(|rest| rest.starts_with('u'));
            escape = start + if is_long { 5 } else { 1 };
        }
    }
    WORDS.contains(&longest.len()).then_some(longest)
}

/// Returns the first words of `run`, a sequence of characters that may be quoted, without punctuation at both ends, up
/// to the maximum length of [`WORDS`].
fn shortened(run: &str) -> &str {
    let run = run.trim_matches(|c: char| !c.is_alphanumeric());
    if run.len() <= *WORDS.end() {
        return run;
    }
    let end = run.floor_char_boundary(*WORDS.end());
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
    use proptest::prelude::*;

    fn refer(first: &str, last: Option<&str>) -> Option<String> {
        Some(format!("({first} to {})", last.unwrap_or(first)))
    }

    /// Returns line `name` of an example file. Only lines whose number is a multiple of 3 have words of their own,
    /// which a location hint can quote; all others have the same quotable words.
    fn line(name: usize) -> String {
        match name % 3 {
            0 => format!("line number {name} of the file, with some words"),
            _ => format!("return the value of it ({name});"),
        }
    }

    fn block(names: std::ops::Range<usize>) -> String {
        names.map(line).collect::<Vec<_>>().join(BREAK)
    }

    #[test]
    fn lines_that_an_earlier_turn_holds_become_a_hint() {
        let text = block(0..60);
        let part = ["new", &block(8..41), "end"].join(BREAK);
        let mut outputs = Outputs::default();
        assert_eq!(outputs.add(1, &text, refer), None);
        assert_eq!(outputs.add(1, &part, refer), None, "the same turn");
        let mut outputs = Outputs::default();
        outputs.add(1, &text, refer);
        let hint = format!("({} to {})", line(9), line(39));
        let sent = ["new", &line(8), &hint, &line(40), "end"].join(BREAK);
        assert_eq!(outputs.add(2, &part, refer), Some(sent));
    }

    #[test]
    fn a_line_that_stands_twice_begins_no_run_and_one_that_was_replaced_stands_nowhere() {
        let (half, longer) = (block(0..20), block(0..40));
        let twice = [&*half, &half].join(BREAK);
        let mut outputs = Outputs::default();
        outputs.add(1, &twice, refer);
        assert_eq!(outputs.add(2, &half, refer), None);
        let mut outputs = Outputs::default();
        outputs.add(1, &half, refer);
        assert!(outputs.add(2, &longer, refer).is_some());
        // The first half stands in the first text, the second in the second; between them is what has no words of its
        // own.
        let hints = outputs.add(3, &longer, refer).unwrap();
        let is_hint = |line: &&str| line.starts_with('(');
        assert_eq!(hints.split(BREAK).filter(is_hint).count(), 2, "{hints}");
        assert!(hints.split(BREAK).count() < 8, "{hints}");
    }

    #[test]
    fn words_that_two_versions_of_a_file_have_are_not_quoted() {
        let lines = |edited: &str| [&*block(0..11), edited, &block(11..22)].join(BREAK);
        let [old, new] = ["LIMIT = 10, the old value", "LIMIT = 99, the new value"].map(lines);
        assert!(block(0..11).len() < MIN_OUTPUT_BYTES && old.len() > MIN_OUTPUT_BYTES);
        let mut outputs = Outputs::default();
        assert_eq!(outputs.add(1, &old, refer), None);
        assert_eq!(outputs.add(2, &new, refer), None);
        assert_eq!(outputs.add(3, &new, refer), None);
    }

    #[test]
    fn words_of_a_line_are_quoted_without_escapes() {
        for (line, quoted) in [
            (r"     1\timport os", None),
            (r"def read_all_lines(path):", Some("def read_all_lines")),
            (r"\u00e9lan vital of things", Some("lan vital of things")),
            (r"{}\\n\\", None),
            ("", None),
        ] {
            assert_eq!(words(line), quoted, "{line}");
        }
        let long = "Ünder the bridge ".repeat(400);
        assert!(words(&long).is_some_and(|words| WORDS.contains(&words.len())));
        assert!(words(&"x".repeat(9_999)).is_some_and(|words| words.len() == 56));
    }

    /// Returns the lines to which `hint` refers, from the newest of `texts` (earlier results) that has them and whose
    /// lines are also part of `whole`; `None` if there is no such text.
    fn meant(hint: &str, texts: &[String], whole: &str) -> Option<String> {
        let (first, last) = hint
            .strip_prefix('(')?
            .strip_suffix(')')?
            .split_once(" to ")?;
        let mut found = texts.iter().rev().filter_map(|text| {
            let lines: Vec<&str> = text.split(BREAK).collect();
            let start = lines.iter().position(|line| *line == first)?;
            let count = lines.iter().skip(start).position(|line| *line == last)?;
            Some(lines.get(start..=start + count)?.join(BREAK))
        });
        found.find(|lines| whole.contains(lines))
    }

    proptest! {
        /// Earlier results still have the lines that each hint replaced, so the original text can be rebuilt.
        #[test]
        fn nothing_is_lost(
            texts in prop::collection::vec(prop::collection::vec((0..6_usize, 0..40_usize, 1..40_usize), 1..4), 1..8),
        ) {
            let texts: Vec<String> = texts.iter().map(|pieces| {
                let pieces = pieces.iter().map(|(file, start, count)| {
                    block(file * 100 + start..file * 100 + start + count)
                });
                pieces.collect::<Vec<_>>().join(BREAK)
            }).collect();
            let mut outputs = Outputs::default();
            let mut before: Vec<String> = Vec::new();
            for (text, turn) in texts.iter().zip(1..) {
                let sent = outputs.add(turn, text, refer).unwrap_or_else(|| text.clone());
                let lines = sent.split(BREAK).map(|line| match line.starts_with('(') {
                    true => meant(line, &before, text).unwrap(),
                    false => line.to_owned(),
                });
                prop_assert_eq!(lines.collect::<Vec<_>>().join(BREAK), text.clone());
                before.push(sent);
            }
        }

        /// The number of compared bytes grows at most linearly with the bytes of all results, whatever their lines are.
        #[test]
        fn the_work_is_linear(
            texts in prop::collection::vec(prop::collection::vec(0..12_usize, 1..200), 1..12),
        ) {
            let texts: Vec<String> = texts.iter().map(|names| {
                let lines = names.iter().map(|name| line(*name));
                lines.collect::<Vec<_>>().join(BREAK)
            }).collect();
            let bytes: usize = texts.iter().map(String::len).sum();
            let (_, work) = crate::work::counted(|| {
                let mut outputs = Outputs::default();
                for (text, turn) in texts.iter().zip(1..) {
                    outputs.add(turn, text, refer);
                }
            });
            prop_assert_eq!(work.within(bytes), Ok(()));
        }
    }
}
