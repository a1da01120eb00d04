//! Cuts: where a text can be cut so that its pieces' tokens are the text's tokens.
//!
//! ```text
//!   … of the cellar.\n ┃ <document id="b">\n ┃ Behind the …
//!                      └ a token ends here whatever is around it
//! ```
//!
//! Tokenizers of the GPT-2 kind first split a text by a regular expression, and then merge bytes within each part. In
//! the expressions known here, no part extends over a newline into a character that is not white space, and none looks
//! back. So tokens end there. The expressions differ in their look *ahead*. GPT-2's own expression leaves the last
//! character of a run of white space to the next part (`\s+(?!\S)`), so a run of several would be split differently at
//! the end of a piece; there only a lone newline is a cut. The later ones (cl100k's descendants: Llama 3, Qwen) match a
//! run that ends with a newline whole (`\s*[\r\n]+`) before they look ahead.
//!
//! Added tokens are found before the expression is applied. They must not contain a newline, nor extend over the white
//! space around them. Of the normalisers, only NFC is known not to look over a newline.
//!
//! Texts of an unlisted expression are not cut, because the expression has not been analysed. Cuts are tested at load
//! on [`PROBES`] and not used where the test fails.

use serde::Deserialize;
use serde_json::Value as Json;

/// The rule that says where a text can be cut without changing its tokens: after certain newlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cuts {
    /// After every newline that is followed by a character that is not white space.
    EveryNewline,
    /// After newlines between two characters that are not white space.
    LoneNewlines,
}

impl Cuts {
    /// Returns the rule that says where texts of a tokenizer can be cut; `file` has the bytes of its `tokenizer.json`.
    /// Returns `None` if no rule is known for it.
    pub(super) fn recognise(file: &[u8]) -> Option<Self> {
        let file: File = serde_json::from_slice(file).ok()?;
        let plain = |token: &AddedToken| {
            !(token.content.contains(['\n', '\r'])
                || token.single_word
                || token.lstrip
                || token.rstrip)
        };
        let known = file.added_tokens.iter().all(plain)
            && (file.normalizer.is_null() || file.normalizer["type"] == "NFC")
            && file.model.kind == "BPE"
            && file.model.dropout.is_null();
        if !known {
            return None;
        }
        let steps = match file.pre_tokenizer["pretokenizers"].as_array() {
            Some(steps) if file.pre_tokenizer["type"] == "Sequence" => steps.as_slice(),
            _ => std::slice::from_ref(&file.pre_tokenizer),
        };
        let byte_level = |step: &Json, own_expression: bool| {
            step["type"] == "ByteLevel"
                && step["add_prefix_space"] == false
                && step["use_regex"] == own_expression
        };
        match steps {
            [single] if byte_level(single, true) => Some(Self::LoneNewlines),
            [split, bytes]
                if split["type"] == "Split"
                    && split["behavior"] == "Isolated"
                    && split["invert"] == false
                    && byte_level(bytes, false) =>
            {
                let expression = split["pattern"]["Regex"].as_str()?;
                EXPRESSIONS
                    .contains(&expression)
                    .then_some(Self::EveryNewline)
            }
            _ => None,
        }
    }

    /// Iterates over the pieces into which `text` is cut, in order; concatenated they equal the text.
    pub(super) fn pieces(self, text: &str) -> impl Iterator<Item = &str> {
        let mut start = 0;
        let mut newlines = text.match_indices('\n');
        std::iter::from_fn(move || {
            for (at, _) in newlines.by_ref() {
                if self.cuts_behind(text, at) {
                    let piece = &text[start..=at];
                    start = at + 1;
                    return Some(piece);
                }
            }
            let rest = &text[start..];
            start = text.len();
            (!rest.is_empty()).then_some(rest)
        })
    }

    fn cuts_behind(self, text: &str, newline: usize) -> bool {
        let next = text[newline + 1..].chars().next();
        let before = || text[..newline].chars().next_back();
        let blank = |character: Option<char>| character.is_none_or(char::is_whitespace);
        !blank(next) && (self == Self::EveryNewline || !blank(before()))
    }
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    model: Model,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// The fields of `model` in a `tokenizer.json` that decide whether texts can be cut.
#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    dropout: Json,
}

/// Regular expressions for splitting texts, of tokenizers for which it is known where texts can be cut.
const EXPRESSIONS: [&str; 3] = [
    // Llama 3, cl100k.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Qwen 2, 2.5 and 3.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Qwen 3.5: marks belong to words.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Test texts whose tokens change with a cut in the wrong place: runs of white space before it, and all kinds of
/// characters around it.
pub(super) const PROBES: &[&str] = &[
    "a\nb",
    "a\n\nb\n\n\nc",
    "a \nb  \n\t\nc\t\n\n d\n e",
    "a\r\nb\r\n\r\nc\r\n\rd",
    "a.\nb!\n\nc?\r\n(d)\n-\n\n-",
    "it's\n's\n\n'll\nI'LL\n'",
    "1\n2\n\n34567\n89\n 1",
    "\n\u{301}a\ne\u{301}\n\n\u{301}\n\u{200d}x",
    "é\nß\n\n東京\n\nñ\n🦜\n\n🦜🏽",
    "\u{a0}\n\u{a0}a\u{85}\nb\u{2028}\nc\n\u{3000}d",
    "\n\n\na\n",
    "   \na   \n\n   b",
    "/\n/\n\n//\n\n/",
    "<|im_start|>a\n<|im_end|>\n<|im_start|>\nb\n\n<|im_end|>",
    "def f():\n    return 1\n\n\nclass C:\n\tpass\n",
    "{\n  \"a\": [\n    1,\n\n    2\n  ]\n}\n",
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn recognise(change: impl FnOnce(&mut Json)) -> Option<Cuts> {
        let mut file = json!({
            "added_tokens": [{"content": "<|end|>", "special": true}],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": EXPRESSIONS[0]}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            ]},
            "model": {"type": "BPE", "dropout": null, "vocab": {}, "merges": []},
        });
        change(&mut file);
        Cuts::recognise(file.to_string().as_bytes())
    }

    #[test]
    fn only_what_is_known_is_cut() {
        assert_eq!(recognise(|_| {}), Some(Cuts::EveryNewline));
        assert_eq!(
            recognise(|file| file["normalizer"] = Json::Null),
            Some(Cuts::EveryNewline)
        );
        let own = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true});
        assert_eq!(
            recognise(|file| file["pre_tokenizer"] = own),
            Some(Cuts::LoneNewlines)
        );
        let expression = "/pre_tokenizer/pretokenizers/0/pattern/Regex";
        // GPT-4o's: punctuation includes slashes after newlines.
        let o200k = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        for (place, value) in [
            (expression, json!(o200k)),
            (
                "/pre_tokenizer/pretokenizers/0/behavior",
                json!("MergedWithNext"),
            ),
            (
                "/pre_tokenizer/pretokenizers/1/add_prefix_space",
                json!(true),
            ),
            ("/normalizer/type", json!("NFKC")),
            ("/model/type", json!("Unigram")),
            ("/model/dropout", json!(0.1)),
            ("/added_tokens/0/content", json!("\n\n")),
        ] {
            assert_eq!(
                recognise(|file| *file.pointer_mut(place).unwrap() = value),
                None,
                "{place}"
            );
        }
        assert_eq!(
            recognise(|file| file["added_tokens"][0]["lstrip"] = true.into()),
            None
        );
    }

    #[test]
    fn pieces_are_the_text() {
        let pieces = |cuts: Cuts, text| cuts.pieces(text).collect::<Vec<_>>();
        let text = "\na\n\nb \nc\n d\ne\n";
        assert_eq!(
            pieces(Cuts::EveryNewline, text),
            ["\n", "a\n\n", "b \n", "c\n d\n", "e\n"]
        );
        assert_eq!(
            pieces(Cuts::LoneNewlines, text),
            ["\na\n\nb \nc\n d\n", "e\n"]
        );
        assert!(pieces(Cuts::EveryNewline, "").is_empty());
        for probe in PROBES {
            assert_eq!(pieces(Cuts::EveryNewline, probe).concat(), *probe);
        }
    }
}
