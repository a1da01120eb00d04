//! A checkpoint's tokenizer: `tokenizer.json`, as the `tokenizers` crate reads it.

use super::TextError;
use super::pieces::Cuts;
use super::spelling::Spelling;
use crate::TokenId;
use crate::models::gguf::{Gguf, around, is_gguf};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::{Model, PostProcessorWrapper};

/// The tokenizer of a checkpoint, read from its `tokenizer.json`.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    spelling: Spelling,
    /// The rule by which texts can be cut into pieces that are tokenised separately; `None` if no rule is known to be
    /// safe.
    cuts: Option<Cuts>,
}

impl Tokenizer {
    /// Reads the tokenizer from `tokenizer.json` in `folder`, or from a GGUF file if `folder` is one.
    ///
    /// # Errors
    /// Returns [`TextError::Checkpoint`] when the file is missing, malformed or unsupported.
    pub fn load(folder: &Path) -> Result<Self, TextError> {
        if is_gguf(folder) {
            let tokenizer = Gguf::open(folder).and_then(|file| file.tokenizer())?;
            return Self::parse(tokenizer.to_string().as_bytes())
                .map_err(|reason| TextError::checkpoint(folder, reason));
        }
        let file = folder.join("tokenizer.json");
        let bytes = std::fs::read(&file).map_err(|error| TextError::checkpoint(&file, error))?;
        let mut tokenizer =
            Self::parse(&bytes).map_err(|reason| TextError::checkpoint(&file, reason))?;
        // Without a valid file, the chat template's reader says so.
        let config = std::fs::read(folder.join("tokenizer_config.json")).unwrap_or_default();
        tokenizer.surround(&serde_json::from_slice(&config).unwrap_or_default());
        Ok(tokenizer)
    }

    /// Makes the tokenizer add the special tokens that `config`, a `tokenizer_config.json`, asks for by `add_bos_token` and
    /// `add_eos_token`: `transformers`' classes for Llama and Gemma then ignore what `tokenizer.json` adds.
    fn surround(&mut self, config: &Value) {
        let class = config["tokenizer_class"].as_str().unwrap_or_default();
        let class = class.strip_suffix("Fast").unwrap_or(class);
        let adds = |field: &str| config[field].as_bool();
        let (begins, ends) = (adds("add_bos_token"), adds("add_eos_token"));
        if !["LlamaTokenizer", "GemmaTokenizer"].contains(&class) || begins.or(ends).is_none() {
            return;
        }
        let token = |field: &str| {
            let name = config[field]
                .as_str()
                .or(config[field]["content"].as_str())?;
            Some((u64::from(self.token(name)?), name))
        };
        let first = token("bos_token").filter(|_| begins.unwrap_or(true));
        let last = token("eos_token").filter(|_| ends.unwrap_or(false));
        let processor = serde_json::from_value(around(first, last));
        if let Ok(processor) = processor {
            let processor: PostProcessorWrapper = processor;
            self.inner.with_post_processor(Some(processor));
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        // The crate has assertions instead of errors for some malformed files, such as a merge of unknown tokens.
        let parsed = catch_unwind(|| tokenizers::Tokenizer::from_bytes(bytes));
        let parsed =
            parsed.map_err(|_| "malformed: the tokenizers crate panicked on it".to_owned())?;
        let mut inner = parsed.map_err(|error| error.to_string())?;
        // Some files carry the settings of their training run. A prompt is never truncated or padded.
        inner
            .with_truncation(None)
            .map_err(|error| error.to_string())?;
        inner.with_padding(None);
        let decoder =
            serde_json::to_value(inner.get_decoder()).map_err(|error| error.to_string())?;
        let spelling = Spelling::parse(decoder)?;
        Ok(Self {
            inner,
            spelling,
            cuts: Cuts::recognise(bytes),
        })
    }

    /// Returns the tokens of `text`. If `special` is true, the tokenizer adds its special tokens for a raw prompt, such
    /// as a BOS token; pass false for a rendered chat template, which already contains them. Names of special tokens in
    /// the text become those tokens, as in `transformers`.
    ///
    /// # Errors
    /// Returns [`TextError::Encode`] when the tokenizer refuses the text.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<TokenId>, TextError> {
        let encoded = catch_unwind(AssertUnwindSafe(|| self.inner.encode_fast(text, special)));
        let encoded =
            encoded.map_err(|_| TextError::Encode("the tokenizers crate panicked".to_owned()))?;
        let encoding = encoded.map_err(|error| TextError::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns a number of tokens above `limit` if `text` has more than `limit` tokens for certain; otherwise `None`. Takes
    /// little memory, where [`Tokenizer::encode`] takes some 400 bytes for a byte of a hostile text. Texts of up to
    /// `limit` bytes are not read.
    ///
    /// # Errors
    /// Returns [`TextError::Encode`] when the tokenizer refuses the text.
    pub fn exceeds(&self, text: &str, limit: u32) -> Result<Option<u32>, TextError> {
        let (mut tokens, mut enough, mut rest) = (0_u64, u64::from(limit), text);
        if text.len() as u64 <= enough {
            return Ok(None);
        }
        while tokens <= enough && !rest.is_empty() {
            let (window, later) = rest.split_at(rest.floor_char_boundary(WINDOW.min(rest.len())));
            tokens += self.encode(window, false)?.len() as u64;
            enough += EDGE;
            rest = later;
        }
        Ok((tokens > enough).then(|| u32::try_from(tokens).unwrap_or(u32::MAX)))
    }

    /// Returns the tokens as [`Tokenizer::encode`] does and, for each of `at` (byte offsets in the text, ascending),
    /// the number of tokens that lie wholly before it. A token that encodes part of a character counts as the whole
    /// character.
    ///
    /// # Errors
    /// Returns [`TextError::Encode`] when the tokenizer refuses the text.
    pub fn encode_counting(
        &self,
        text: &str,
        special: bool,
        at: &[usize],
    ) -> Result<(Vec<TokenId>, Vec<u32>), TextError> {
        let encoded = catch_unwind(AssertUnwindSafe(|| self.inner.encode(text, special)));
        let encoded =
            encoded.map_err(|_| TextError::Encode("the tokenizers crate panicked".to_owned()))?;
        let encoding = encoded.map_err(|error| TextError::Encode(error.to_string()))?;
        let mut counts = Vec::with_capacity(at.len());
        let tokens = encoding.get_offsets().iter().zip(encoding.get_tokens());
        for (before, (&(_, end), piece)) in (0..).zip(tokens) {
            // Some tokenizers omit white space from a token's offsets, although the token includes it.
            let goes_on = |at: usize| {
                end == at
                    && piece.ends_with(BYTE_LEVEL_SPACES)
                    && !text
                        .get(..at)
                        .unwrap_or_default()
                        .ends_with(char::is_whitespace)
            };
            while at
                .get(counts.len())
                .is_some_and(|&at| at < end || goes_on(at))
            {
                counts.push(before);
            }
        }
        counts.resize(at.len(), u32::try_from(encoding.len()).unwrap_or(u32::MAX));
        Ok((encoding.get_ids().to_vec(), counts))
    }

    pub(super) fn cuts(&self) -> Option<Cuts> {
        self.cuts
    }

    pub(super) fn spelling(&self) -> &Spelling {
        &self.spelling
    }

    /// Returns the spelling of `token` in the vocabulary, which stands for its bytes. Returns `None` for special tokens
    /// and for ids beyond the vocabulary (models round its size up).
    pub(super) fn piece(&self, token: TokenId) -> Option<String> {
        let added = self.inner.get_added_vocabulary();
        let piece = added
            .simple_id_to_token(token)
            .or_else(|| self.inner.get_model().id_to_token(token))?;
        (!added.is_special_token(&piece)).then_some(piece)
    }

    /// Returns the bytes that `token` stands for within a text, possibly part of a character. Returns `None` for
    /// special tokens and for ids that the vocabulary does not have.
    pub fn bytes(&self, token: TokenId) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.spelling.spell(self.piece(token)?, false, &mut bytes);
        Some(bytes)
    }

    /// Returns the name of `token` if it is a special token, such as `<|im_end|>`; otherwise `None`.
    pub fn special_name(&self, token: TokenId) -> Option<String> {
        let added = self.inner.get_added_vocabulary();
        added
            .simple_id_to_token(token)
            .filter(|name| added.is_special_token(name))
    }

    /// Returns the token with this name, such as `<|im_end|>`; `None` if the vocabulary has none.
    pub fn token(&self, name: &str) -> Option<TokenId> {
        self.inner.token_to_id(name)
    }

    #[cfg(test)]
    pub(super) fn decode_whole(&self, tokens: &[TokenId]) -> String {
        self.inner.decode(tokens, true).unwrap()
    }
}

/// The characters by which byte-level vocabularies spell a space, a tab, a line feed and a carriage return.
const BYTE_LEVEL_SPACES: [char; 4] = ['Ġ', 'ĉ', 'Ċ', 'č'];

/// Number of bytes of a long text whose tokens are counted at once.
const WINDOW: usize = 64 << 10;
/// Number of tokens that a text may have more because it is divided between two windows.
const EDGE: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_is_known_by_its_windows() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
        for family in ["llama", "qwen2"] {
            let tokenizer = Tokenizer::load(&fixtures.join(family)).unwrap();
            for text in [
                "1!",
                "It says what it says.\n",
                "a\n",
                "Übersetzer 😀 ",
                "    ",
            ] {
                let text = text.repeat(200_000 / text.len());
                let count = tokenizer.encode(&text, false).unwrap().len() as u32;
                let exceeds = |limit| tokenizer.exceeds(&text, limit).unwrap();
                for limit in [count, count + 1, u32::MAX] {
                    assert_eq!(exceeds(limit), None, "{family}, {text:.20?}, {limit}");
                }
                let found = exceeds(count / 2);
                assert!(
                    found.is_some_and(|found| found > count / 2 && found <= count + 64),
                    "{family}, {text:.20?}: {found:?} of {count}"
                );
            }
        }
    }

    #[test]
    fn tokens_are_counted_up_to_any_byte() {
        // Unchanged, and as in vocabularies that trim their tokens' offsets (such as Llama 3's).
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen2/tokenizer.json");
        let json = std::fs::read_to_string(file).unwrap();
        let mut trimming: serde_json::Value = serde_json::from_str(&json).unwrap();
        trimming["post_processor"] = serde_json::json!(
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
        );
        for json in [json, trimming.to_string()] {
            let tokenizer = Tokenizer::parse(json.as_bytes()).unwrap();
            let text = "<doc id=\"a\">\nDer Übersetzer, naïve 😀 text.</doc>\n\nWhat follows?";
            let at: Vec<usize> = (0..=text.len() + 1).collect();
            let (tokens, counts) = tokenizer.encode_counting(text, false, &at).unwrap();
            assert_eq!(tokens, tokenizer.encode(text, false).unwrap());
            // Text offset at which each prefix of the tokens ends; `None` within a character.
            let ends: Vec<Option<usize>> = (0..=tokens.len())
                .map(|count| tokenizer.decode_whole(&tokens[..count]))
                .map(|beginning| text.starts_with(&beginning).then_some(beginning.len()))
                .collect();
            for (at, count) in at.into_iter().zip(counts) {
                if at > 0
                    && text
                        .get(..at)
                        .is_some_and(|text| text.ends_with(char::is_whitespace))
                {
                    // Trimmed and absent white space cannot be distinguished: the count may be one too low, but never
                    // too high.
                    assert!(
                        ends[count as usize].is_some_and(|end| end <= at),
                        "at byte {at}"
                    );
                    continue;
                }
                let expected = (0..=tokens.len())
                    .rev()
                    .find(|&count| ends[count].is_some_and(|end| end <= at));
                assert_eq!(Some(count as usize), expected, "at byte {at}");
            }
        }
    }

    #[test]
    fn special_tokens_of_raw_prompts_are_those_of_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen2/tokenizer.json");
        std::fs::copy(file, folder.path().join("tokenizer.json")).unwrap();
        let added = |config: &str| {
            std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
            let tokenizer = Tokenizer::load(folder.path()).unwrap();
            let plain = tokenizer.encode("Hello", false).unwrap();
            let special = tokenizer.encode("Hello", true).unwrap();
            let start = special.windows(plain.len()).position(|part| part == plain);
            let name = |token: &TokenId| tokenizer.special_name(*token).unwrap();
            let (before, rest) = special.split_at(start.unwrap());
            let after = &rest[plain.len()..];
            (
                before.iter().map(name).collect::<Vec<_>>(),
                after.iter().map(name).collect::<Vec<_>>(),
            )
        };
        let tokens = r#""bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>""#;
        let config = |class: &str, adds: &str| {
            added(&format!(
                r#"{{"tokenizer_class": "{class}", {adds} {tokens}}}"#
            ))
        };
        let (bos, eos) = (
            vec!["<|im_start|>".to_owned()],
            vec!["<|im_end|>".to_owned()],
        );
        let unchanged = added("{}");
        for (class, adds, expected) in [
            (
                "LlamaTokenizerFast",
                r#""add_bos_token": true,"#,
                (bos.clone(), vec![]),
            ),
            ("GemmaTokenizer", r#""add_eos_token": true,"#, (bos, eos)),
            (
                "LlamaTokenizer",
                r#""add_bos_token": false,"#,
                (vec![], vec![]),
            ),
            ("LlamaTokenizer", "", unchanged.clone()),
            (
                "PreTrainedTokenizerFast",
                r#""add_bos_token": true,"#,
                unchanged,
            ),
        ] {
            assert_eq!(config(class, adds), expected, "{class} {adds}");
        }
    }

    #[test]
    fn malformed_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Tokenizer::load(folder.path()).err().unwrap().to_string();
        assert!(error.contains("tokenizer.json: No such file"), "{error}");
        let missing_token =
            r#"{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}"#;
        for content in ["", "{}", "[]", r#"{"model": 3}"#, missing_token] {
            std::fs::write(folder.path().join("tokenizer.json"), content).unwrap();
            let error = Tokenizer::load(folder.path()).err().unwrap();
            assert!(
                matches!(&error, TextError::Checkpoint(error) if error.file.ends_with("tokenizer.json")),
                "{error}"
            );
        }
    }
}
