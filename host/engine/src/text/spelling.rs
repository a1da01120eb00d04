//! Spelling: the bytes that a vocabulary's pieces stand for, by the `decoder` of `tokenizer.json`.
//!
//! | vocabulary | a piece | its bytes |
//! | --- | --- | --- |
//! | byte-level (GPT-2, Llama 3, Qwen) | `ĠÃ©` | a character a byte: ` é` |
//! | SentencePiece (Llama 2, Mistral, Gemma) | `▁wor`, `<0xE4>` | ` wor`, the byte E4 |
//! | metaspace | `▁wor` | ` wor`, and `wor` where a text begins |
//!
//! A `decoder` that needs all tokens at once is refused, because text is streamed.

use serde::Deserialize;

/// The rules by which a vocabulary's spellings of tokens stand for bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Spelling {
    /// True if each character of a spelling stands for one byte (GPT-2, Llama 3, Qwen).
    byte_level: bool,
    /// Strings to replace in the spelling of every token, each with its replacement (SentencePiece's `▁` by a space).
    replace: Vec<(String, String)>,
    /// True if a token that is spelt like `<0xE4>` stands for that byte (Llama 2, Mistral).
    pub(super) byte_fallback: bool,
    /// A character, and how many of it are stripped from the beginning of a text at most; `None` to strip nothing.
    pub(super) strip: Option<(char, usize)>,
    /// A character that stands for a space, and for nothing in the first token of a text; `None` if there is none.
    metaspace: Option<char>,
}

/// The `decoder` of a `tokenizer.json`, as written.
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
    /// Reads the rules from the `decoder` of a `tokenizer.json`; fails if it is missing or needs all tokens at once.
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
            // Stripping is supported only at the beginning of the whole text: at the end it would need all tokens at
            // once.
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

    /// Appends to `bytes` the bytes of the token that is spelt `piece`. `first` is true if the token begins the text.
    pub(super) fn spell(&self, mut piece: String, first: bool, bytes: &mut Vec<u8>) {
        if self.byte_level {
            let known = bytes.len();
            for character in piece.chars() {
                let Some(byte) = byte_of(character) else {
                    // Added tokens may be spelt literally.
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

/// Returns the byte that a token spelt `<0x..>` stands for; `None` for any other spelling.
fn fallback_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
}

/// Returns the byte that a character of a byte-level vocabulary stands for, by GPT-2's table: printable Latin-1 bytes
/// are themselves, and the 68 others are the characters from U+0100 on, in order.
pub(super) fn byte_of(character: char) -> Option<u8> {
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
    use serde_json::{Value, json};

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
