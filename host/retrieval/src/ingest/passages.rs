//! Cuts texts into passages: short enough for an embedder to read whole, and long enough to be meaningful alone.
//!
//! Paragraphs are joined while they fit. A paragraph that is too long is cut at sentences, and a sentence at words. Scripts
//! without spaces, such as Chinese and Thai, count a word for each character, and very long words one for each
//! [`LONG_WORD`] characters, since an embedder reads about so many tokens. A Markdown heading begins a passage and becomes the title of the text below it. Passages do not overlap.

/// The length of passages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passages {
    /// Maximum number of words in a passage, at least one.
    pub words: usize,
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
            let count = word_starts(piece).count();
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
        if word_starts(paragraph).nth(most).is_none() {
            pieces.push((paragraph, "\n\n"));
            continue;
        }
        let mut separator = "\n\n";
        for sentence in sentences(paragraph) {
            let mut rest = sentence;
            while let Some(at) = word_starts(rest).nth(most) {
                // A long word stays whole where white space precedes it.
                let head = rest[..at].trim_end();
                let is_within = head.len() == at && !rest[at..].starts_with(has_no_spaces);
                let space = head.rfind(char::is_whitespace).filter(|_| is_within);
                let at = space.map_or(at, |space| at - rest[space..at].trim_start().len());
                let (head, tail) = rest.split_at(at);
                pieces.push((head.trim_end(), separator));
                (rest, separator) = (tail, space_after(head));
            }
            if !rest.is_empty() {
                pieces.push((rest.trim_end(), separator));
            }
            separator = space_after(sentence);
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

/// Returns the separator between a text and what follows it: a space if white space ends the text.
fn space_after(text: &str) -> &'static str {
    if text.ends_with(char::is_whitespace) {
        " "
    } else {
        ""
    }
}

/// Iterates over sentences with the white space behind them, cut after a full stop, question mark or exclamation mark
/// before white space, or after one of the Chinese ones.
fn sentences(paragraph: &str) -> impl Iterator<Item = &str> {
    let mut rest = paragraph;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        if rest.is_empty() {
            return None;
        }
        let end = (rest.match_indices(['.', '?', '!', '。', '？', '！']))
            .map(|(at, mark)| at + mark.len())
            .find(|&end| {
                rest[end..].starts_with(char::is_whitespace)
                    || rest[..end].ends_with(['。', '？', '！'])
            });
        let end = end.unwrap_or(rest.len());
        let space = rest[end..].len() - rest[end..].trim_start().len();
        let (sentence, others) = rest.split_at(end + space);
        rest = others;
        Some(sentence)
    })
}

/// Number of characters of a long word that count as one word.
const LONG_WORD: usize = 24;

/// Iterates over the offsets at which words begin: after white space, at each character of a script without spaces, and
/// after each [`LONG_WORD`] characters of a word.
fn word_starts(text: &str) -> impl Iterator<Item = usize> {
    // Characters of the word so far; 0 between words.
    let mut length = 0;
    text.char_indices().filter_map(move |(at, character)| {
        if character.is_whitespace() {
            length = 0;
            return None;
        }
        let begins = length == 0
            || length >= LONG_WORD && !is_mark(character)
            || has_no_spaces(character) && !is_mark(character);
        length = if begins { 1 } else { length + 1 };
        begins.then_some(at)
    })
}

/// Returns whether a character is a mark on the one before it, such as a vowel of Thai, Lao, Burmese or Khmer.
fn is_mark(character: char) -> bool {
    matches!(character, '\u{300}'..='\u{36f}' | '\u{e31}' | '\u{e34}'..='\u{e3a}' | '\u{e47}'..='\u{e4e}'
        | '\u{eb1}' | '\u{eb4}'..='\u{ebc}' | '\u{ec8}'..='\u{ece}' | '\u{102b}'..='\u{103e}'
        | '\u{17b4}'..='\u{17d3}' | '\u{3099}' | '\u{309a}')
}

/// Returns whether a character is of a script that has no spaces between words: Thai, Lao, Burmese, Khmer, Japanese or
/// Chinese.
fn has_no_spaces(character: char) -> bool {
    matches!(character, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
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
    fn texts_without_spaces_are_cut_at_sentences_and_characters() {
        let passages = Passages { words: 6 };
        assert_eq!(
            passages.of_text("猫在睡觉。狗在跑步吗？鸟飞过一座很高的山。"),
            ["猫在睡觉。", "狗在跑步吗？", "鸟飞过一座很", "高的山。"]
        );
        assert_eq!(passages.of_text("ซิซิซิซิซิซิซิซิ"), ["ซิซิซิซิซิซิ", "ซิซิ"]);
        let german = "Der Vertrag der Rechtsschutzversicherungsgesellschaften gilt";
        assert_eq!(
            Passages { words: 4 }.of_text(german),
            [
                "Der Vertrag der",
                "Rechtsschutzversicherungsgesellschaften gilt"
            ]
        );
        let long = Passages { words: 2 }.of_text(&"x".repeat(100));
        assert_eq!(
            long.iter().map(String::len).collect::<Vec<_>>(),
            [48, 48, 4]
        );
        assert_eq!(long.concat().len(), 100);
        let text = "字".repeat(2_000);
        let many = Passages { words: 160 }.of_text(&format!("{text}\n\n{text}"));
        assert!(many.iter().all(|passage| passage.chars().count() <= 162));
        assert_eq!(many.concat().replace('\n', ""), text.repeat(2));
    }

    #[test]
    fn a_heading_is_the_title_of_what_follows_but_not_within_a_fence() {
        let text = "intro\n# First #\nbody\n```\n# no heading\n```\n#hash tag\n## Second\n\n### Third\nend";
        let titled = Passages { words: 160 }.of_markdown(text);
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
