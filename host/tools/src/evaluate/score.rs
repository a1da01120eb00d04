//! Scores answers by SQuAD's exact match and F1, as its authors' script computes them (`evaluate-v2.0.py`, Rajpurkar et
//! al., 2018).
//!
//! Both compare words after the script's normalisation: lower case, no ASCII punctuation, no `a`, `an` and `the`, and
//! single spaces between words. If there are several right answers, the best one counts, for each score separately.
//!
//! A model that answers in sentences matches nothing exactly. Whether it names the right answer is a third score, as in
//! *Lost in the Middle* (`best_subspan_em`; Liu et al., 2023), here of whole words.

use fxhash::FxHashMap;

/// The agreement of an answer with the right answers, by three measures, each from 0 (none) to 1 (full).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Score {
    /// 1 if the answer's words are those of a right answer, otherwise 0.
    pub(super) exact_match: f64,
    /// 1 if the words of a right answer occur in the answer, one after another; otherwise 0.
    pub(super) contains: f64,
    /// Harmonic mean of precision (the share of the answer's words that a right answer has) and recall (the share of
    /// the right answer's words that the answer has).
    pub(super) f1: f64,
}

impl Score {
    /// Scores the answer to a multiple-choice question, a letter: 1 if it is one of `right`, otherwise 0. It is not
    /// normalised, since SQuAD's normalisation would remove `A` as an article.
    pub(super) fn of_choice(answer: &str, right: &[String]) -> Self {
        let is_right = right.iter().any(|right| right == answer.trim());
        let value = f64::from(u8::from(is_right));
        Self {
            exact_match: value,
            contains: value,
            f1: value,
        }
    }
}

/// Returns the best scores of `answer` against the right answers in `right`; 0 if there are none.
///
/// A model's thinking, up to the last `</think>`, does not belong to its answer.
pub(super) fn score(answer: &str, right: &[String]) -> Score {
    let answer = normalised(without_thinking(answer));
    let mut best = Score::default();
    for right in right {
        let right = normalised(right);
        best.exact_match = best.exact_match.max(f64::from(u8::from(answer == right)));
        let contains = f64::from(u8::from(contains(&answer, &right)));
        best.contains = best.contains.max(contains);
        best.f1 = best.f1.max(f1(&answer, &right));
    }
    best
}

/// Returns a model's reply without the thinking at its beginning, which ends with `</think>`.
pub(super) fn without_thinking(reply: &str) -> &str {
    let thought = reply.rsplit_once("</think>");
    thought.map_or(reply, |(_, rest)| rest)
}

/// Returns the words of a text after SQuAD's normalisation (lower case, no punctuation, no articles), with single
/// spaces between them.
fn normalised(text: &str) -> String {
    let text = text.to_lowercase();
    let text: String = text.chars().filter(|c| !c.is_ascii_punctuation()).collect();
    // The script's `\b(a|an|the)\b`: articles are between characters that are not letters, white space or not.
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        let of_a_kind = |c: char| is_letter(c) == is_letter(first);
        let end = rest.find(|c| !of_a_kind(c)).unwrap_or(rest.len());
        let (run, behind) = rest.split_at(end);
        kept += match run {
            "a" | "an" | "the" => " ",
            run => run,
        };
        rest = behind;
    }
    kept.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns whether the words of `right` occur in `answer` one after another; both are normalised texts.
fn contains(answer: &str, right: &str) -> bool {
    format!(" {answer} ").contains(&format!(" {right} "))
}

fn f1(answer: &str, right: &str) -> f64 {
    if answer.is_empty() || right.is_empty() {
        return f64::from(u8::from(answer == right));
    }
    let mut left: FxHashMap<&str, u32> = FxHashMap::default();
    for word in right.split(' ') {
        *left.entry(word).or_default() += 1;
    }
    let (mut common, mut words) = (0_u32, 0_u32);
    for word in answer.split(' ') {
        words += 1;
        if let Some(count) = left.get_mut(word).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    let right_words = right.split(' ').count() as f64;
    // 2 p r / (p + r) with p = common / words and r = common / right words.
    2.0 * f64::from(common) / (f64::from(words) + right_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(answer: &str, right: &[&str], exact_match: f64, f1: f64) {
        let right: Vec<_> = right.iter().map(|&text| text.to_owned()).collect();
        let score = score(answer, &right);
        assert_eq!(score.exact_match, exact_match, "exact match of {answer:?}");
        assert!((score.f1 - f1).abs() < 1e-12, "F1 of {answer:?}: {score:?}");
    }

    #[test]
    fn case_punctuation_articles_and_spaces_do_not_count() {
        is("The  Denver Broncos.", &["denver broncos"], 1.0, 1.0);
        is("an A-Team\n", &["ateam"], 1.0, 1.0);
        is("$1,000", &["1000"], 1.0, 1.0);
        // As with Python's `\b`, an article is one without adjacent letters, also next to a dash that is not ASCII.
        is("the—dog", &["—dog"], 1.0, 1.0);
        is("theatre", &["atre"], 0.0, 0.0);
        is("ÉCOLE", &["école"], 1.0, 1.0);
    }

    #[test]
    fn f1_counts_each_common_word_once() {
        // Two of three words are right, and both right words are found.
        is("in Santa Clara", &["Santa Clara"], 0.0, 0.8);
        // `ho` is common twice, not three times: 2 of 3 and 2 of 2.
        is("ho ho ho", &["ho ho"], 0.0, 0.8);
        is("nothing alike", &["Santa Clara"], 0.0, 0.0);
    }

    #[test]
    fn an_answer_contains_a_right_one_in_whole_words() {
        let contains = |answer: &str, right: &str| score(answer, &[right.into()]).contains == 1.0;
        assert!(contains(
            "The game was in Santa Clara, California.",
            "the Santa Clara"
        ));
        assert!(contains("308", "308"));
        assert!(!contains("It was in Santa Clarita.", "Santa Clara"));
        assert!(!contains("Clara of Santa", "Santa Clara"));
        assert!(!contains("nothing", "the"), "an article alone is no word");
    }

    #[test]
    fn the_best_answer_counts_and_no_words_equal_no_words_alone() {
        is("308", &["three hundred", "308 points", "308"], 1.0, 1.0);
        is("", &["308"], 0.0, 0.0);
        is("The.", &["a"], 1.0, 1.0);
        is("x", &[], 0.0, 0.0);
    }

    #[test]
    fn a_choice_is_its_letter() {
        let right = ["A".to_owned()];
        assert_eq!(Score::of_choice("A", &right).exact_match, 1.0);
        assert_eq!(Score::of_choice("The", &right).exact_match, 0.0);
    }

    #[test]
    fn thoughts_are_not_the_answer() {
        is("<think>Maybe 307?</think>\n\n308", &["308"], 1.0, 1.0);
    }
}
