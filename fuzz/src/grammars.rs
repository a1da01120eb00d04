//! What a request wants its answer to follow: a JSON schema or, where the bytes are no JSON, a regular expression for a
//! string. What is taken is followed for some tokens.

use foreword_engine::TokenId;
use foreword_engine::sampling::{NextToken, Sampler, Sampling};
use foreword_engine::text::{Cancel, Grammars, SchemaError, Tokenizer};
use foreword_ordering::random::Random;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::OnceLock;

pub(crate) fn run(input: &[u8]) {
    let schema = serde_json::from_slice(input).unwrap_or_else(|_| {
        let pattern = String::from_utf8_lossy(input);
        json!({"type": "string", "pattern": pattern})
    });
    let (outcome, work) = checkpoint().grammars.prepare(&schema, &Cancel::default());
    assert!(
        work.fuel <= FUEL && work.bytes <= BYTES,
        "{work:?} for {schema}"
    );
    match outcome {
        Ok(constraint) => {
            let stop = [END];
            let sampler = Sampler::new(Sampling::greedy(), &[], &stop, Some(constraint), None);
            follow(sampler, input, &schema);
        }
        Err(SchemaError::Cancelled) => panic!("nobody cancelled {schema}"),
        Err(error) => is_told(&error.to_string()),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let schemas = [
        json!({"type": "object", "required": ["name", "age"], "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 30},
            "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "additionalProperties": false}),
        json!({"type": "array", "minItems": 1, "maxItems": 9, "items": {"anyOf": [{"type": "null"}, {"type": "boolean"},
            {"enum": ["red", 7, null]}, {"const": {"a": [1, "b"]}}]}}),
        json!({"$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}}}, "$ref": "#/$defs/tree"}),
        json!({"allOf": [{"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}}},
            {"type": "object", "properties": {"n": {"type": "number", "multipleOf": 0.01, "exclusiveMinimum": -1e3}}}]}),
        json!({"oneOf": [{"type": "string", "pattern": "^[a-z]{2,8}(-[0-9]+)?$"}, {"type": "string", "format": "date-time"}]}),
        json!({"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "minProperties": 1, "maxProperties": 3,
            "additionalProperties": {"type": "integer"}}),
        json!({"type": "array", "prefixItems": [{"type": "integer", "multipleOf": 9_973}], "items": false}),
        json!({"$defs": {"a": {"$anchor": "a", "type": "string"}}, "properties": {"x": {"$ref": "#a"}, "y": {"$ref": "#/$defs/b"}}}),
        json!({"type": "integer", "multipleOf": 9_999_991}),
        json!({"type": "string", "minLength": 8000, "maxLength": 8100}),
        json!({"type": "string", "pattern": "^((a{1,1000}b{1,1000}){1,1000}c){1,1000}$"}),
        json!({"anyOf": [{"allOf": [{"pattern": "a"}, {"pattern": "b$"}]}, true, {}]}),
        json!(true),
    ];
    let patterns = [
        r"^(\d{4})-(0[1-9]|1[0-2])$",
        r"^[\w.+-]+@\w+\.[a-z]{2,}$",
        r"(a|b)*c{3,}[^\s\\]?",
        r"\p{L}+\b(?:x|\u00e9)",
        "(?=a)b",
        "((((a*)*)*)*)*$",
        "[",
    ];
    let schemas = schemas.iter().map(|schema| schema.to_string().into_bytes());
    schemas.chain(patterns.map(Vec::from)).collect()
}

/// A vocabulary of a real checkpoint's shape, and its grammars.
struct Checkpoint {
    tokenizer: Tokenizer,
    grammars: Grammars,
}

fn checkpoint() -> &'static Checkpoint {
    static CHECKPOINT: OnceLock<Checkpoint> = OnceLock::new();
    CHECKPOINT.get_or_init(|| {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/engine/fixtures/qwen3-yarn");
        let tokenizer = Tokenizer::load(&folder).expect("the fixture is whole");
        let grammars = Grammars::new(&tokenizer, END + 1).expect("and its vocabulary is usable");
        Checkpoint {
            tokenizer,
            grammars,
        }
    })
}

/// An answer that the input chooses, as far as it leads: what ends is JSON.
fn follow(mut sampler: Sampler, input: &[u8], schema: &Value) {
    let seed = input.iter().fold(7, |seed: u64, byte| {
        seed.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    let mut random = Random::new(seed);
    let mut logits = vec![0.0; END as usize + 1];
    let mut answer = Vec::new();
    for position in 0..TOKENS {
        for logit in &mut logits {
            *logit = (random.bits() >> 40) as f32;
        }
        let is_over = match sampler.next(&mut logits, position) {
            Ok(NextToken::Token { id, last, .. }) => {
                answer.extend(checkpoint().tokenizer.bytes(id).unwrap_or_default());
                last
            }
            Ok(NextToken::Stop) => true,
            // A step has bounds too, and ends the answer.
            Err(error) => return is_told(&error.to_string()),
        };
        if is_over {
            let text = String::from_utf8_lossy(&answer);
            let is_json = serde_json::from_slice::<IgnoredAny>(&answer).is_ok();
            return assert!(is_json, "{schema} led to {text}");
        }
    }
}

/// A reason is a line that fits into an answer, without what only the compiler's authors can read.
fn is_told(reason: &str) {
    let is_line = !reason.is_empty() && !reason.contains('\n');
    assert!(is_line && reason.len() <= REASON, "{reason}");
}

/// Units of work for a grammar, as the engine allows them, and what its last step may overshoot.
const FUEL: u64 = 1_200_000;

/// Bytes of a lexer that has only been prepared.
const BYTES: usize = 64 << 20;

/// The last row of logits of the fixture stands for the end of an answer.
const END: TokenId = 4095;

/// Of an answer that is followed.
const TOKENS: u32 = 40;

/// Bytes of a reason.
const REASON: usize = 4096;
