//! Grammars over a checkpoint's vocabulary: from a JSON schema to a [`Constraint`].
//!
//! `llguidance` provides the compiler and the machine. This module provides every token's bytes, as the decoder spells
//! them (so that a mask describes the text that a client receives), the options, and the bounds: a schema comes from a
//! client.

use super::schema::{self, SchemaError};
use super::{TextError, Tokenizer};
use crate::TokenId;
use crate::sampling::Constraint;
use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{CancellationHandle, JsonCompileOptions, Matcher, ParserFactory};
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Compiles JSON schemas to grammars that constrain answers, for one tokenizer.
pub struct Grammars(ParserFactory);

impl Grammars {
    /// Builds a trie of all tokens' bytes, for a model whose rows of logits have `vocabulary` entries. Takes some
    /// tenths of a second for a large vocabulary.
    ///
    /// # Errors
    /// [`TextError::Grammar`] when the vocabulary cannot be used.
    pub fn new(tokenizer: &Tokenizer, vocabulary: u32) -> Result<Self, TextError> {
        // Special tokens are never part of the text, so they have no bytes and are never allowed. The end of the answer
        // gets an id beyond the row: the sampler decides which of the model's tokens end it.
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
        // Neither standard error nor an error's message may contain the answer's text.
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_grammar_size = MAX_GRAMMAR;
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.initial_lexer_fuel = INITIAL_FUEL;
        limits.step_lexer_fuel = STEP_FUEL;
        limits.step_max_items = STEP_ITEMS;
        limits.max_items_in_row = ROW_ITEMS;
        Ok(Self(factory))
    }

    /// Returns the constraint that allows any JSON object.
    ///
    /// # Errors
    /// Never in practice.
    pub fn json_object(&self) -> Result<Constraint, SchemaError> {
        self.json_schema(&json!({"type": "object"}))
    }

    /// Returns the constraint that allows the JSON texts that `schema` describes: properties in the schema's order, one
    /// space after each `:` and `,`, and no other white space between JSON tokens. Takes milliseconds; not for the
    /// engine's thread.
    ///
    /// # Errors
    /// [`SchemaError`] names the part of the schema that is unsupported or exceeds a bound.
    pub fn json_schema(&self, schema: &Json) -> Result<Constraint, SchemaError> {
        self.prepare(schema, &Cancel::default()).0
    }

    /// Compiles a schema as [`Grammars::json_schema`] does, unless `cancel` ends it. Also returns the work that was
    /// done, whatever the outcome.
    pub fn prepare(
        &self,
        schema: &Json,
        cancel: &Cancel,
    ) -> (Result<Constraint, SchemaError>, GrammarWork) {
        let mut work = GrammarWork::default();
        let outcome = schema::check(schema).and_then(|()| {
            // A panic of the compiler becomes an error of this request alone.
            let compile = || Ok(self.compile(schema.clone(), cancel, &mut work));
            catch_unwind(AssertUnwindSafe(compile)).unwrap_or_else(|error| Err(refused(&error)))
        });
        (outcome, work)
    }

    /// Compiles a schema within the bounds on work and memory. The compiler counts its steps and gives up beyond a
    /// limit, with one exception: the first transition of the lexer, by each of 256 bytes, has no limit, and tries
    /// every remainder of a `multipleOf`. Therefore these transitions are made here first, under a limit.
    fn compile(
        &self,
        mut schema: Json,
        cancel: &Cancel,
        work: &mut GrammarWork,
    ) -> Result<Constraint, SchemaError> {
        JsonCompileOptions {
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            whitespace_flexible: false,
            ..JsonCompileOptions::default()
        }
        .apply_to(&mut schema);
        cancel.check()?;
        let grammar = GrammarInit::Serialized(TopLevelGrammar::from_json_schema(schema));
        let limits = self.0.limits();
        let (grammar, lexer) = grammar
            .to_internal(Some(self.0.tok_env().clone()), limits.clone())
            .map_err(|error| refused(&error))?;
        work.fuel = lexer.cost();
        cancel.check()?;

        let mut whole = lexer.clone();
        whole.add_extra_lexemes(&self.0.extra_lexemes());
        let mut automaton = whole
            .to_regex_vec(&mut limits.clone())
            .map_err(|error| refused(&error))?;
        let spent = automaton.total_fuel_spent();
        automaton.set_fuel(limits.initial_lexer_fuel.saturating_sub(spent).max(1));
        automaton.set_max_states(limits.max_lexer_states);
        let start = automaton.initial_state(&whole.all_lexemes());
        for byte in 0..=u8::MAX {
            if automaton.has_error() || cancel.check().is_err() {
                break;
            }
            automaton.transition(start, byte);
        }
        work.fuel = automaton.total_fuel_spent();
        work.states = automaton.stats().num_states;
        work.bytes = automaton.num_bytes();
        cancel.check()?;
        if automaton.has_error() {
            return Err(SchemaError::TooLarge {
                what: "steps to compile",
                found: usize::try_from(work.fuel).unwrap_or(usize::MAX),
                limit: INITIAL_FUEL as usize,
            });
        }

        let parser = self
            .0
            .create_parser_from_init_default(GrammarInit::Internal(grammar, lexer));
        let mut matcher = Matcher::new(parser).into_cancellable();
        // Some of the cost only occurs when the first mask is computed.
        cancel.attach(matcher.cancellation_handle())?;
        let outcome = matcher.compute_mask();
        cancel.attach(None)?;
        match outcome {
            Ok(_) => Ok(Constraint::new(matcher)),
            Err(error) => Err(refused(&error)),
        }
    }
}

/// The work that compiling one grammar took, in counts that do not depend on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrammarWork {
    /// Units of work that the compiler counted.
    pub fuel: u64,
    /// Number of states of the grammar's lexer.
    pub states: usize,
    /// Bytes of memory that the grammar's lexer takes.
    pub bytes: usize,
}

/// A handle that cancels the compilation of a grammar whose result is no longer needed. Clones cancel the same one.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<Mutex<Cancelling>>);

#[derive(Debug, Default)]
struct Cancelling {
    cancelled: bool,
    /// Cancels the step that runs now, if it can be interrupted from within; `None` otherwise.
    inner: Option<CancellationHandle>,
}

impl Cancel {
    /// Ends the compilation at its next check, with [`SchemaError::Cancelled`]. A completed compilation is unaffected.
    pub fn cancel(&self) {
        let mut state = self.0.lock();
        state.cancelled = true;
        if let Some(inner) = &state.inner {
            inner.cancel();
        }
    }

    /// Returns whether [`Cancel::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        let state = self.0.lock();
        state.cancelled
    }

    fn check(&self) -> Result<(), SchemaError> {
        if self.is_cancelled() {
            return Err(SchemaError::Cancelled);
        }
        Ok(())
    }

    /// Makes [`Cancel::cancel`] also cancel `inner` from now on; `None` ends that. Returns [`SchemaError::Cancelled`]
    /// if it was called already.
    fn attach(&self, inner: Option<CancellationHandle>) -> Result<(), SchemaError> {
        let mut state = self.0.lock();
        state.inner = inner;
        if state.cancelled {
            return Err(SchemaError::Cancelled);
        }
        Ok(())
    }
}

fn refused(error: &impl ToString) -> SchemaError {
    SchemaError::Refused(first_line(&error.to_string()))
}

/// Returns the first line of the compiler's message, or a general message if the compiler panicked.
fn first_line(reason: &str) -> String {
    match reason.lines().next() {
        Some(line) if !line.starts_with("panic") => line.to_owned(),
        _ => "the compiler cannot handle it".to_owned(),
    }
}

/// The bytes that stand for the end of the answer in the trie of tokens: a byte that no text has, and a name.
const END: &[u8] = b"\xff<end>";

/// Maximum number of units of the compiler's work for one grammar; it does some 50,000 in a millisecond.
const INITIAL_FUEL: u64 = 1_000_000;

/// Maximum number of units of the lexer's work to find the tokens allowed next, once; some 14,000 take a millisecond.
const STEP_FUEL: u64 = 200_000;

/// Maximum number of items of the Earley parser to find the tokens allowed next, once.
const STEP_ITEMS: usize = 50_000;

/// Maximum number of items of the Earley parser at one position of the answer.
const ROW_ITEMS: usize = 2_000;

/// Maximum number of symbols in the productions of one grammar, which take about a megabyte.
const MAX_GRAMMAR: usize = 100_000;

/// Maximum number of states of one answer's lexer, which gets more as the answer grows: some 700 bytes each, so at most
/// about 70 MB for an answer. A counted character takes some ten states ([`schema`] bounds their number).
const MAX_LEXER_STATES: usize = 100_000;
