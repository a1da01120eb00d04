//! From tokens to text as they come.
//!
//! Hugging Face's decoders take all tokens at once. Decoding everything again for each token would cost time in the
//! square of the answer, and a window of recent tokens shows spurious spaces and replacement characters at its edges.
//! Here a token is turned into *bytes* by the rules of its tokenizer, once, and only bytes of a character that is not
//! complete yet are held back: at most three. The pieces together are the text that `tokenizers` decodes from the
//! whole, with one exception: where a byte-fallback tokenizer spells valid characters and then an invalid byte in one
//! run of byte tokens, `tokenizers` replaces the whole run, valid characters included, and here they have been shown
//! already and stay.

use super::tokenizer::Tokenizer;
use crate::backend::TokenId;
use serde::Deserialize;

/// Turns tokens into text as they come; bytes of an unfinished UTF-8 character are held back. Special tokens are
/// skipped.
pub struct Decoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The beginning of a character: no more than three bytes between calls.
    held: Vec<u8>,
    /// Spaces that may still be stripped from the beginning of the text.
    strip: usize,
    /// Whether no token has come yet (and the beginning of the text is special).
    first: bool,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, beginning: bool) -> Self {
        let strip = if beginning {
            tokenizer.spelling().strip.map_or(0, |(_, count)| count)
        } else {
            0
        };
        Self {
            tokenizer,
            held: Vec::new(),
            strip,
            first: beginning,
        }
    }

    /// The text that `token` completes, maybe empty.
    pub fn push(&mut self, token: TokenId) -> String {
        let Some(piece) = self.tokenizer.piece(token) else {
            return String::new();
        };
        let first = std::mem::take(&mut self.first);
        self.tokenizer
            .spelling()
            .spell(piece, first, &mut self.held);
        let text = self.take_complete();
        self.strip(text)
    }

    /// What is still held back, lossily.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        let text = self.replacement(held.len());
        self.strip(text)
    }

    /// Takes all held bytes but those that begin a character; invalid ones are replaced.
    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut rest = &self.held[..];
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                }
                Err(error) => {
                    let (valid, invalid) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(length) = error.error_len() else {
                        rest = invalid;
                        break;
                    };
                    text.push_str(&self.replacement(length));
                    rest = &invalid[length..];
                }
            }
        }
        self.held = rest.to_vec();
        text
    }

    /// What stands for `bytes` bytes that are no character: Unicode's one for each sequence, or one for each byte
    /// where bytes are tokens.
    fn replacement(&self, bytes: usize) -> String {
        let count = if self.tokenizer.spelling().byte_fallback {
            bytes
        } else {
            bytes.min(1)
        };
        "\u{fffd}".repeat(count)
    }

    /// Strips what only marks the beginning of the text.
    fn strip(&mut self, mut text: String) -> String {
        while let (Some((content, _)), 1.., false) =
            (self.tokenizer.spelling().strip, self.strip, text.is_empty())
        {
            if text.starts_with(content) {
                text.remove(0);
                self.strip -= 1;
            } else {
                self.strip = 0;
            }
        }
        text
    }
}

/// How a tokenizer's vocabulary spells bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Spelling {
    /// Each byte is one printable character (GPT-2, Llama 3, Qwen).
    byte_level: bool,
    /// Strings to replace in every token (SentencePiece's `▁` by a space).
    replace: Vec<(String, String)>,
    /// Tokens like `<0xE4>` are bytes (Llama 2, Mistral).
    byte_fallback: bool,
    /// A character and how many of it to strip from the beginning of the text.
    strip: Option<(char, usize)>,
    /// A character that stands for a space, but for nothing in the first token.
    metaspace: Option<char>,
}

/// The `decoder` of a `tokenizer.json`.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum Step {
    ByteLevel,
    ByteFallback,
    Fuse,
    Metaspace {
        replacement: char,
        prepend_scheme: String,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    Sequence {
        decoders: Vec<Step>,
    },
}

#[derive(Deserialize)]
enum Pattern {
    String(String),
    Regex(String),
}

impl Spelling {
    /// Understands a `decoder`.
    pub(super) fn parse(decoder: serde_json::Value) -> Result<Self, String> {
        if decoder.is_null() {
            return Err("it has no decoder, so tokens cannot be turned into text".to_owned());
        }
        let step: Step =
            serde_json::from_value(decoder).map_err(|error| format!("decoder: {error}"))?;
        let mut spelling = Self::default();
        let mut fused = false;
        spelling.add(step, &mut fused)?;
        Ok(spelling)
    }

    fn add(&mut self, step: Step, fused: &mut bool) -> Result<(), String> {
        match step {
            Step::Sequence { decoders } => {
                for decoder in decoders {
                    self.add(decoder, fused)?;
                }
            }
            Step::Fuse => *fused = true,
            // Only at the front, and only of the text as a whole: per token it would need all tokens at once.
            Step::Strip {
                content,
                start,
                stop: 0,
            } if *fused => self.strip = Some((content, start)),
            Step::Replace {
                pattern: Pattern::String(from),
                content,
            } if !self.byte_fallback && !*fused => {
                self.replace.push((from, content));
            }
            Step::ByteFallback if !*fused => self.byte_fallback = true,
            Step::ByteLevel if *self == Self::default() => self.byte_level = true,
            Step::Metaspace {
                replacement,
                prepend_scheme,
            } if !self.byte_level && !*fused => match &*prepend_scheme {
                "never" => self.replace.push((replacement.to_string(), " ".to_owned())),
                _ => self.metaspace = Some(replacement),
            },
            step => return Err(format!("decoder: {} is not supported there", step.name())),
        }
        Ok(())
    }

    /// Appends the bytes of a token that is spelt `piece`.
    pub(super) fn spell(&self, mut piece: String, first: bool, bytes: &mut Vec<u8>) {
        if self.byte_level {
            let known = bytes.len();
            for character in piece.chars() {
                let Some(byte) = byte_of(character) else {
                    // Added tokens may be spelt plainly.
                    bytes.truncate(known);
                    bytes.extend_from_slice(piece.as_bytes());
                    return;
                };
                bytes.push(byte);
            }
            return;
        }
        if self.byte_fallback
            && let Some(byte) = fallback_byte(&piece)
        {
            bytes.push(byte);
            return;
        }
        for (from, to) in &self.replace {
            piece = piece.replace(from, to);
        }
        if let Some(space) = self.metaspace {
            piece = piece.replace(space, if first { "" } else { " " });
        }
        bytes.extend_from_slice(piece.as_bytes());
    }
}

impl Step {
    fn name(&self) -> String {
        match self {
            Self::ByteLevel => "ByteLevel".to_owned(),
            Self::ByteFallback => "ByteFallback".to_owned(),
            Self::Fuse => "Fuse".to_owned(),
            Self::Metaspace { .. } => "Metaspace".to_owned(),
            Self::Replace {
                pattern: Pattern::String(from),
                ..
            } => format!("Replace of {from:?}"),
            Self::Replace {
                pattern: Pattern::Regex(from),
                ..
            } => format!("Replace of the expression {from:?}"),
            Self::Strip { start, stop, .. } => {
                format!("Strip of {start} at the start and {stop} at the end")
            }
            Self::Sequence { .. } => "Sequence".to_owned(),
        }
    }
}

/// The byte that `<0x..>` means.
fn fallback_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
}

/// The byte that a character of a byte-level vocabulary means: GPT-2's table, in which printable Latin-1 bytes are
/// themselves and the 68 others are the characters from U+0100 on, in order.
fn byte_of(character: char) -> Option<u8> {
    match character {
        '!'..='~' | '¡'..='¬' | '®'..='ÿ' => u8::try_from(u32::from(character)).ok(),
        // Space and what is below it, delete to no-break space, soft hyphen.
        '\u{100}'..='\u{120}' => u8::try_from(u32::from(character) - 0x100).ok(),
        '\u{121}'..='\u{142}' => u8::try_from(u32::from(character) - 0x121 + 0x7f).ok(),
        '\u{143}' => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;
    use serde_json::{Value, json};

    /// A tokenizer of these tokens; the last is special.
    fn tokenizer(pieces: &[String], decoder: Value) -> Tokenizer {
        let vocabulary: serde_json::Map<String, Value> = pieces
            .iter()
            .enumerate()
            .map(|(id, piece)| (piece.clone(), id.into()))
            .collect();
        let special = pieces.len() - 1;
        let file = json!({
            "version": "1.0",
            "added_tokens": [{
                "id": special, "content": pieces[special], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }],
            "decoder": decoder,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": false},
        });
        Tokenizer::parse(file.to_string().as_bytes()).unwrap()
    }

    fn byte_level() -> Tokenizer {
        let table: Vec<char> = (0..0x144)
            .filter_map(char::from_u32)
            .filter(|&c| byte_of(c).is_some())
            .collect();
        assert_eq!(table.len(), 256);
        let spell = |text: &str| -> String {
            text.bytes()
                .map(|byte| *table.iter().find(|&&c| byte_of(c) == Some(byte)).unwrap())
                .collect()
        };
        let mut pieces: Vec<String> = table.iter().map(char::to_string).collect();
        pieces.extend([" the", "né", "你好", " 😀", "</think> x"].map(spell));
        pieces.extend(["<plain ☺ token>".to_owned(), "<|end|>".to_owned()]);
        tokenizer(
            &pieces,
            json!({
                "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
            }),
        )
    }

    /// As Llama 2's and Mistral's.
    fn sentence_piece() -> Tokenizer {
        let mut pieces: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
        let words = [
            "▁",
            "▁▁▁",
            "▁Hello",
            "▁wor",
            "ld",
            "é",
            "▁你好",
            "a",
            " b",
            "<0x>",
            "<0xG1>",
            "<end>",
        ];
        pieces.extend(words.map(str::to_owned));
        tokenizer(
            &pieces,
            json!({"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]}),
        )
    }

    fn metaspace(scheme: &str) -> Tokenizer {
        let pieces = ["▁Hello", "▁wor", "ld", "▁", "▁a▁b", "<end>"].map(str::to_owned);
        let decoder = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
        tokenizer(&pieces, decoder)
    }

    fn decode(mut decoder: Decoder<'_>, tokens: &[TokenId]) -> String {
        let mut text: String = tokens.iter().map(|&token| decoder.push(token)).collect();
        text += &decoder.finish();
        text
    }

    /// The ids of these pieces.
    fn ids(tokenizer: &Tokenizer, pieces: &[&str]) -> Vec<TokenId> {
        let id = |piece: &&str| {
            (0..400)
                .find(|&id| tokenizer.piece(id).as_deref() == Some(*piece))
                .unwrap()
        };
        pieces.iter().map(id).collect()
    }

    fn random_tokens(random: &mut Random, limit: u64) -> Vec<TokenId> {
        let count = random.below(12);
        (0..count).map(|_| random.below(limit) as TokenId).collect()
    }

    #[test]
    fn byte_level_pieces_are_the_whole() {
        let tokenizer = byte_level();
        let mut random = Random::new(1);
        for _ in 0..5000 {
            let tokens = random_tokens(&mut random, 270);
            assert_eq!(
                decode(tokenizer.decoder(), &tokens),
                tokenizer.decode_whole(&tokens),
                "{tokens:?}"
            );
        }
    }

    #[test]
    fn a_character_comes_with_its_last_byte() {
        let tokenizer = byte_level();
        let mut decoder = tokenizer.decoder();
        let spelt = |bytes: &[u8]| -> Vec<TokenId> {
            let id = |byte: &u8| {
                (0..256).find(|&id| {
                    byte_of(tokenizer.piece(id).unwrap().chars().next().unwrap()) == Some(*byte)
                })
            };
            bytes.iter().map(|byte| id(byte).unwrap()).collect()
        };
        let mut shown = Vec::new();
        for token in spelt("a😀é".as_bytes()) {
            shown.push(decoder.push(token));
        }
        assert_eq!(shown, ["a", "", "", "", "😀", "", "é"]);
        assert_eq!(decoder.finish(), "");
        // A sequence that breaks off is replaced as soon as that is certain.
        let shown: Vec<String> = spelt(&[0xf0, 0x9f, b'x', 0x80])
            .iter()
            .map(|&token| decoder.push(token))
            .collect();
        assert_eq!(shown, ["", "", "\u{fffd}x", "\u{fffd}"]);
        decoder.push(spelt(&[0xe4])[0]);
        assert_eq!(
            (decoder.finish(), decoder.finish()),
            ("\u{fffd}".to_owned(), String::new())
        );
    }

    #[test]
    fn sentence_piece_pieces_are_the_whole() {
        let tokenizer = sentence_piece();
        for (pieces, text) in [
            (&["▁Hello", "▁wor", "ld"][..], "Hello world"),
            (&["▁", "▁Hello"], " Hello"),
            (&["▁▁▁", "a"], "  a"),
            (&["ld", "▁Hello", " b"], "ld Hello b"),
            (
                &["▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁你好"],
                "😀 你好",
            ),
            (&["<0x20>", "a"], "a"),
            (&["<0xE4>", "<0xBD>", "a"], "\u{fffd}\u{fffd}a"),
            (&["<0xFF>", "<0xFE>", "é"], "\u{fffd}\u{fffd}é"),
            (&["a", "<0xE4>", "<0xBD>"], "a\u{fffd}\u{fffd}"),
            (&["<0x>", "<0xG1>"], "<0x><0xG1>"),
            (&[], ""),
        ] {
            let tokens = ids(&tokenizer, pieces);
            assert_eq!(decode(tokenizer.decoder(), &tokens), text, "{pieces:?}");
            assert_eq!(tokenizer.decode_whole(&tokens), text, "{pieces:?}");
        }
        let mut random = Random::new(2);
        let mut compared = 0;
        for _ in 0..5000 {
            // No byte tokens above ASCII: the one exception.
            let tokens: Vec<TokenId> = random_tokens(&mut random, 40)
                .into_iter()
                .map(|token| if token < 28 { token + 230 } else { token + 4 })
                .collect();
            let tokens: Vec<TokenId> = tokens
                .into_iter()
                .filter(|token| !(128..256).contains(token))
                .collect();
            assert_eq!(
                decode(tokenizer.decoder(), &tokens),
                tokenizer.decode_whole(&tokens),
                "{tokens:?}"
            );
            compared += usize::from(!tokens.is_empty());
        }
        assert!(compared > 3000);
    }

    #[test]
    fn valid_characters_of_a_spoilt_run_of_bytes_stay() {
        let tokenizer = sentence_piece();
        let tokens = ids(&tokenizer, &["<0xC3>", "<0xA9>", "<0xFF>", "a"]);
        assert_eq!(decode(tokenizer.decoder(), &tokens), "é\u{fffd}a");
        assert_eq!(tokenizer.decode_whole(&tokens), "\u{fffd}\u{fffd}\u{fffd}a");
    }

    #[test]
    fn metaspace_pieces_are_the_whole() {
        for scheme in ["always", "first", "never"] {
            let tokenizer = metaspace(scheme);
            let mut random = Random::new(3);
            for _ in 0..500 {
                let tokens = random_tokens(&mut random, 7);
                assert_eq!(
                    decode(tokenizer.decoder(), &tokens),
                    tokenizer.decode_whole(&tokens),
                    "{tokens:?}"
                );
            }
        }
    }

    #[test]
    fn a_continuation_keeps_its_leading_space() {
        let hello =
            |tokenizer: &Tokenizer| decode(tokenizer.continuation(), &ids(tokenizer, &["▁Hello"]));
        assert_eq!(
            (hello(&sentence_piece()), hello(&metaspace("always"))),
            (" Hello".to_owned(), " Hello".to_owned())
        );
    }

    #[test]
    fn special_and_unknown_tokens_are_skipped() {
        let tokenizer = metaspace("always");
        assert_eq!(
            decode(tokenizer.decoder(), &[5, 0, 99, 5, 1, 2, u32::MAX]),
            "Hello world"
        );
    }

    #[test]
    fn decoders_that_need_all_tokens_at_once_are_refused() {
        for (decoder, word) in [
            (Value::Null, "no decoder"),
            (
                json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
                "WordPiece",
            ),
            (
                json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
                "Strip",
            ),
            (
                json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}),
                "ByteFallback",
            ),
            (
                json!({"type": "Replace", "pattern": {"Regex": "x+"}, "content": ""}),
                "expression \"x+\"",
            ),
        ] {
            let error = Spelling::parse(decoder).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
