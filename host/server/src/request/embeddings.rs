//! `POST /v1/embeddings`: the fields of a request for the embedding vectors of texts.

use super::fields::{Fields, missing, wrong_type, wrong_value};
use crate::failure::Failure;
use serde_json::Value;

/// A validated request for the embedding vectors of texts.
#[derive(Debug)]
pub struct Embeddings {
    /// The requested model; `None` for the configured embedder.
    pub model: Option<String>,
    /// The texts to embed, 1 to 2,048.
    pub input: Vec<String>,
    /// The encoding of the vectors in the response.
    pub encoding: Encoding,
    /// The number of dimensions that the client asks for; `None` if it does not say. Refused unless it is the
    /// embedder's.
    pub dimensions: Option<u32>,
}

/// The encoding of the vectors in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// An array of numbers.
    Float,
    /// Little-endian `f32` values in base64.
    Base64,
}

/// OpenAI's maximum number of texts in one request.
const MAX_INPUTS: usize = 2048;

impl Embeddings {
    /// Parses the body of a request for embedding vectors.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid field.
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let mut fields = Fields::parse(body)?;
        let encoding = match fields.string("encoding_format")?.as_deref() {
            None | Some("float") => Encoding::Float,
            Some("base64") => Encoding::Base64,
            Some(other) => {
                let wanted = "\"float\" or \"base64\"";
                return Err(wrong_value("encoding_format", wanted, &other.into()));
            }
        };
        let dimensions = fields.count("dimensions", 1..=i64::from(u32::MAX))?;
        Ok(Self {
            model: fields.string("model")?,
            input: take_input(&mut fields)?,
            encoding,
            dimensions,
        })
    }
}

fn take_input(fields: &mut Fields) -> Result<Vec<String>, Failure> {
    const WANTED: &str = "a string or an array of strings";
    let texts = match fields.take("input") {
        None => return Err(missing("input")),
        Some(Value::String(text)) => return Ok(vec![text]),
        Some(Value::Array(texts)) => texts,
        Some(other) => return Err(wrong_type("input", WANTED, &other)),
    };
    if !(1..=MAX_INPUTS).contains(&texts.len()) {
        let message = format!(
            "input must hold 1 to {MAX_INPUTS} texts, got {}",
            texts.len()
        );
        return Err(Failure::invalid("input", message));
    }
    let text = |(at, text)| match text {
        Value::String(text) => Ok(text),
        // OpenAI accepts tokens of its own tokenizer, which have no meaning here.
        Value::Number(_) | Value::Array(_) => Err(Failure::invalid(
            "input",
            "input must be text: tokens mean something to the tokenizer that made them only",
        )),
        other => Err(wrong_type(&format!("input[{at}]"), "a string", &other)),
    };
    texts.into_iter().enumerate().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_or_several_are_taken_and_tokens_are_not() {
        let parse = |body: &str| Embeddings::parse(body.as_bytes());
        let refusal = |body: &str| parse(body).err().unwrap().to_string();
        assert_eq!(parse(r#"{"input": "a"}"#).unwrap().input, ["a"]);
        let several =
            parse(r#"{"input": ["a", "b"], "encoding_format": "base64", "dimensions": 3}"#);
        let several = several.unwrap();
        assert_eq!(
            (several.input.len(), several.encoding),
            (2, Encoding::Base64)
        );
        assert_eq!(several.dimensions, Some(3));
        assert!(refusal(r#"{"input": [1, 2]}"#).contains("input must be text"));
        assert!(refusal(r#"{"input": [[1], [2]]}"#).contains("input must be text"));
        assert_eq!(
            refusal(r#"{"input": ["a", true]}"#),
            "input[1] must be a string, got a boolean"
        );
        assert!(refusal(r#"{"input": []}"#).contains("1 to 2048 texts, got 0"));
        assert!(refusal("{}").contains("input is missing"));
        assert!(refusal(r#"{"input": "a", "encoding_format": "hex"}"#).contains("got \"hex\""));
    }
}
