//! Whether the model's answer was right: SQuAD's exact match, which ignores case, punctuation and articles.
//!
//! `foreword evaluate` has the full measure (F1, several right answers, intervals); here one figure beside reuse is
//! enough.

/// The reader's trained answer where no document contains one (`ABSENT` in `examples/reader/world.py`).
const ABSENT: &str = "The documents do not say.";

/// Returns the right answer; `None` is a question without an answer.
pub(super) fn expected(answer: Option<&str>) -> &str {
    answer.unwrap_or(ABSENT)
}

pub(super) fn is_right(said: &str, answer: Option<&str>) -> bool {
    words(said) == words(expected(answer))
}

fn words(text: &str) -> Vec<String> {
    let text: String = text
        .to_lowercase()
        .chars()
        .filter(|c| !c.is_ascii_punctuation())
        .collect();
    let words = text.split_whitespace();
    words
        .filter(|word| !matches!(*word, "a" | "an" | "the"))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_right_but_for_case_punctuation_and_articles() {
        assert!(is_right("The Kelbra depot.", Some("kelbra depot")));
        assert!(!is_right("42", Some("42 pounds")));
        assert!(is_right("the documents do not say", None));
        assert!(!is_right("42 pounds", None) && !is_right("", Some("42")));
    }
}
