//! Incremental decoding: from tokens to text as they arrive.
//!
//! Hugging Face's decoders take all tokens at once. Decoding everything again for each token would cost time in the
//! square of the answer, and a window of recent tokens shows spurious spaces and replacement characters at its edges.
//! Here each token is converted once to *bytes*, by the rules of its tokenizer. Only bytes of an incomplete character
//! are held back, at most three. The concatenated pieces equal the text that `tokenizers` decodes from all tokens, with
//! one exception. If a byte-fallback tokenizer spells valid characters and then an invalid byte in one run of byte
//! tokens, `tokenizers` replaces the whole run, including the valid characters. Here those have already been returned
//! and stay.

use super::tokenizer::Tokenizer;
use crate::TokenId;

/// Decodes tokens to text as they arrive. Holds back the bytes of an unfinished UTF-8 character, and skips special
/// tokens.
pub struct Decoder<'a> {
    tokenizer: &'a Tokenizer,
    /// Bytes of an unfinished character, kept until the character is complete: at most three between calls.
    held: Vec<u8>,
    /// Number of leading spaces of the text that are still to be stripped if they come.
    strip: usize,
    /// True before the first token of a text that does not continue a prompt: its leading space may be omitted.
    first: bool,
}

impl<'a> Decoder<'a> {
    fn new(tokenizer: &'a Tokenizer, beginning: bool) -> Self {
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

    /// Returns the text that `token` completes; empty for a special token, or if the character is still unfinished.
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

    /// Ends the text: returns replacement characters for the bytes of an unfinished character, or an empty text.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        let text = self.replacement(held.len());
        self.strip(text)
    }

    /// Converts all bytes that have been kept to text, except an unfinished character at the end. Invalid bytes are
    /// replaced.
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

    /// Returns the replacement for a sequence of `bytes` bytes that is not a character: one U+FFFD for the sequence,
    /// or, with a byte-fallback tokenizer, one for each byte.
    fn replacement(&self, bytes: usize) -> String {
        let count = if self.tokenizer.spelling().byte_fallback {
            bytes
        } else {
            bytes.min(1)
        };
        "\u{fffd}".repeat(count)
    }

    /// Strips from `text` the spaces that only mark the beginning of the whole text, as far as they have not been
    /// stripped yet.
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

impl Tokenizer {
    /// Returns a decoder for a generation that is a separate text, such as an answer in a chat. A space that only marks
    /// the beginning of the text is omitted.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder::new(self, true)
    }

    /// Returns a decoder for a generation that continues its prompt: a leading space is kept.
    pub fn continuation(&self) -> Decoder<'_> {
        Decoder::new(self, false)
    }
}

#[cfg(test)]
mod tests {
    use super::super::spelling::byte_of;
    use super::*;
    use foreword_ordering::random::Random;
    use serde_json::{Value, json};

    /// Returns a tokenizer of these tokens; the last one is special.
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

    /// Returns a tokenizer like Llama 2's and Mistral's.
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

    /// Returns the ids of these pieces.
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
        // An incomplete sequence is replaced as soon as no byte can complete it.
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
            // No byte tokens above ASCII: they are the exception in the module documentation.
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
}
