//! Grammars over a checkpoint's vocabulary: from a JSON schema to a [`Constraint`].
//!
//! The compiler and the machine are `llguidance`'s. Here stand what it is given (every token's bytes, as the decoder
//! spells them, so that a mask speaks of the text that a client gets), what it is asked for, and the bounds: a schema
//! comes from a client.

use super::schema::{self, SchemaError};
use super::{TextError, Tokenizer};
use crate::TokenId;
use crate::sampling::Constraint;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// Compiles grammars for one tokenizer.
pub struct Grammars(ParserFactory);

impl Grammars {
    /// Spells the vocabulary of a model whose rows of logits are `vocabulary` wide. Takes some tenths of a second for
    /// a large one.
    ///
    /// # Errors
    /// [`TextError::Grammar`] when the vocabulary cannot be used.
    pub fn new(tokenizer: &Tokenizer, vocabulary: u32) -> Result<Self, TextError> {
        // Special tokens are never part of the text, so they have no bytes and are never allowed. The end of the
        // answer gets an id beyond the row: which of the model's tokens end it is the sampler's business.
        let mut words: Vec<Vec<u8>> = (0..vocabulary as TokenId)
            .map(|token| tokenizer.bytes(token).unwrap_or_default())
            .collect();
        words.push(END.to_vec());
        let info = TokRxInfo::new(vocabulary + 1, vocabulary);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
        let mut factory = ParserFactory::new(
            &environment,
            InferenceCapabilities::default(),
            &llguidance::earley::SlicedBiasComputer::json_slices(),
        )
        .map_err(|error| TextError::Grammar(error.to_string()))?;
        // Neither standard error nor an error's words shall hold the answer's text.
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_grammar_size = MAX_GRAMMAR;
        limits.max_lexer_states = MAX_LEXER_STATES;
        Ok(Self(factory))
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// Never in practice.
    pub fn json_object(&self) -> Result<Constraint, SchemaError> {
        self.json_schema(&json!({"type": "object"}))
    }

    /// JSON that `schema` describes: its properties in the schema's order, at most [`MAX_SPACES`] characters of white
    /// space between two tokens of JSON, none around the whole. Takes milliseconds; not for the engine's thread.
    ///
    /// # Errors
    /// [`SchemaError`] names the part of the schema that is not supported or over a bound.
    pub fn json_schema(&self, schema: &Json) -> Result<Constraint, SchemaError> {
        schema::check(schema)?;
        let mut schema = schema.clone();
        JsonCompileOptions {
            whitespace_pattern: Some(format!(r"[\x20\x0A\x0D\x09]{{1,{MAX_SPACES}}}")),
            ..JsonCompileOptions::default()
        }
        .apply_to(&mut schema);
        let parser = self
            .0
            .create_parser(TopLevelGrammar::from_json_schema(schema));
        let mut matcher = Matcher::new(parser);
        // Some of the cost only shows when the first mask is computed.
        let outcome = matcher.compute_mask();
        match outcome {
            Ok(_) => Ok(Constraint::new(matcher)),
            Err(error) => Err(SchemaError::Refused(first_line(&error.to_string()))),
        }
    }
}

/// The compiler's words without the backtrace that it appends to some.
fn first_line(reason: &str) -> String {
    match reason.lines().next() {
        Some(line) if !line.starts_with("panic") => line.to_owned(),
        _ => "the compiler cannot handle it".to_owned(),
    }
}

/// The end of the answer in the trie: the byte that no text has, and a name.
const END: &[u8] = b"\xff<end>";

/// White space that may stand between two tokens of JSON. A model of little talent would otherwise write it for ever.
pub const MAX_SPACES: u32 = 64;

/// Symbols in the productions of a grammar: a megabyte or so.
const MAX_GRAMMAR: usize = 100_000;

/// States of the lexer: one or two kilobytes each.
const MAX_LEXER_STATES: usize = 10_000;
