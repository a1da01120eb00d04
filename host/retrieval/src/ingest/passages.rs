//! Cuts texts into passages: short enough for an embedder to read whole, and long enough to be meaningful alone.
//!
//! Paragraphs are joined while they fit. A paragraph that is too long is cut at sentences, and a sentence at words. A
//! Markdown heading begins a passage and becomes the title of the text below it. Passages do not overlap.

/// The length of passages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passages {
    /// Maximum number of words in a passage, at least one.
    pub words: usize,
}

impl Default for Passages {
    /// About 220 tokens of English; MiniLM reads 256.
    fn default() -> Self {
        Self { words: 160 }
    }
}

impl Passages {
    /// Returns the passages of a text without headings.
    #[must_use]
    pub fn of_text(self, text: &str) -> Vec<String> {
        let mut passages = Vec::new();
        self.section(text, &mut |passage| passages.push(passage));
        passages
    }

    /// Returns the passages of a Markdown text, each with the heading above it. Lines within fences are not headings.
    #[must_use]
    pub fn of_markdown(self, text: &str) -> Vec<(String, String)> {
        let mut passages = Vec::new();
        let (mut title, mut section, mut fenced) = (String::new(), String::new(), false);
        for line in text.lines() {
            fenced ^= line.trim_start().starts_with("```");
            let heading = line.trim_start_matches('#');
            let level = line.len() - heading.len();
            if !fenced && (1..=6).contains(&level) && heading.starts_with(' ') {
                self.section(&section, &mut |passage| {
                    passages.push((title.clone(), passage));
                });
                section.clear();
                title = heading.trim().trim_end_matches('#').trim_end().to_owned();
            } else {
                section.push_str(line);
                section.push('\n');
            }
        }
        self.section(&section, &mut |passage| {
            passages.push((title.clone(), passage));
        });
        passages
    }

    fn section(self, text: &str, passage: &mut dyn FnMut(String)) {
        let most = self.words.max(1);
        let (mut open, mut words) = (String::new(), 0);
        for (piece, separator) in pieces(text, most) {
            let count = piece.split_whitespace().count();
            if words > 0 && words + count > most {
                passage(std::mem::take(&mut open));
                words = 0;
            }
            if words > 0 {
                open.push_str(separator);
            }
            open.push_str(piece);
            words += count;
        }
        if words > 0 {
            passage(open);
        }
    }
}

/// Returns the pieces that passages are joined from, each of at most `most` words, with the separator to put before it.
fn pieces(text: &str, most: usize) -> Vec<(&str, &'static str)> {
    let mut pieces = Vec::new();
    for paragraph in paragraphs(text) {
        if paragraph.split_whitespace().count() <= most {
            pieces.push((paragraph, "\n\n"));
            continue;
        }
        let mut separator = "\n\n";
        for sentence in sentences(paragraph) {
            let mut rest = sentence;
            while let Some((head, tail)) = split_words(rest, most) {
                pieces.push((head, separator));
                (rest, separator) = (tail, " ");
            }
            if !rest.is_empty() {
                pieces.push((rest, separator));
            }
            separator = " ";
        }
    }
    pieces
}

/// Iterates over paragraphs, which are separated by empty lines.
fn paragraphs(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        if rest.is_empty() {
            return None;
        }
        let mut end = 0;
        for line in rest.split_inclusive('\n') {
            if line.trim().is_empty() {
                break;
            }
            end += line.len();
        }
        let (paragraph, others) = rest.split_at(end);
        rest = others;
        Some(paragraph.trim_end())
    })
}

/// Iterates over sentences, cut after a full stop, question mark or exclamation mark before white space.
fn sentences(paragraph: &str) -> impl Iterator<Item = &str> {
    let mut rest = paragraph;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        if rest.is_empty() {
            return None;
        }
        let end = (rest.match_indices(['.', '?', '!']))
            .map(|(at, mark)| at + mark.len())
            .find(|&end| rest[end..].starts_with(char::is_whitespace));
        let (sentence, others) = rest.split_at(end.unwrap_or(rest.len()));
        rest = others;
        Some(sentence.trim_end())
    })
}

/// Returns the first `most` words and the rest; `None` if there are no more than `most`.
fn split_words(text: &str, most: usize) -> Option<(&str, &str)> {
    let mut words = 0;
    let mut within = false;
    for (at, c) in text.char_indices() {
        if c.is_whitespace() {
            within = false;
        } else if !within {
            if words == most {
                return Some((text[..at].trim_end(), &text[at..]));
            }
            within = true;
            words += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;

    #[test]
    fn paragraphs_are_put_together_while_they_fit() {
        let passages = Passages { words: 6 };
        assert_eq!(
            passages.of_text("one two\n\nthree four\nfive\n \n\nsix seven"),
            ["one two\n\nthree four\nfive", "six seven"]
        );
    }

    #[test]
    fn long_paragraphs_are_cut_at_sentences_and_long_sentences_at_words() {
        let passages = Passages { words: 4 };
        assert_eq!(
            passages.of_text("A b c. D e? F g h i j k l m n. O."),
            ["A b c.", "D e?", "F g h i", "j k l m", "n. O."]
        );
    }

    #[test]
    fn a_heading_is_the_title_of_what_follows_but_not_within_a_fence() {
        let text = "intro\n# First #\nbody\n```\n# no heading\n```\n#hash tag\n## Second\n\n### Third\nend";
        let titled = Passages::default().of_markdown(text);
        let titles: Vec<&str> = titled.iter().map(|(title, _)| &**title).collect();
        assert_eq!(titles, ["", "First", "Third"]);
        assert!(titled[1].1.ends_with("#hash tag"));
    }

    #[test]
    fn no_word_is_lost_and_no_passage_too_long_whatever_the_text() {
        let mut random = Random::new(1);
        let alphabet = [
            "word", "ß", ".", "? ", "\n", "\n\n", " ", "# ", "é.x ", "```\n",
        ];
        for _ in 0..300 {
            let count = random.below(60);
            let text: String = (0..count)
                .map(|_| alphabet[random.below(alphabet.len() as u64) as usize])
                .collect();
            let most = 1 + random.below(7) as usize;
            let passages = Passages { words: most }.of_text(&text);
            assert!(
                passages
                    .iter()
                    .all(|passage| { (1..=most).contains(&passage.split_whitespace().count()) })
            );
            let before: Vec<&str> = text.split_whitespace().collect();
            let after: Vec<&str> = passages.iter().flat_map(|p| p.split_whitespace()).collect();
            assert_eq!(before, after, "{text:?}");
        }
    }
}
