//! Hostile schemas: what those who attack JSON-schema engines send. Each is either compiled within the counted bounds,
//! or refused with a reason that names a bound. Nothing here is timed: what is counted is the compiler's own units.

use foreword_engine::text::{Cancel, Grammars, SchemaError, Tokenizer};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::OnceLock;

/// Units of work for a grammar, as the engine allows them, and what its last step may overshoot.
const FUEL: u64 = 1_200_000;

/// Rows of logits of the fixture.
const VOCABULARY: u32 = 4096;

/// Bytes of a lexer that has only been prepared.
const BYTES: usize = 64 << 20;

fn grammars() -> &'static Grammars {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    GRAMMARS.get_or_init(|| {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-yarn");
        let tokenizer = Tokenizer::load(&fixture).unwrap();
        Grammars::new(&tokenizer, VOCABULARY).unwrap()
    })
}

/// An object of `count` properties, each of which `schema` makes.
fn object(count: usize, schema: impl Fn(usize) -> Value) -> Value {
    let properties: Map<String, Value> = (0..count)
        .map(|index| (format!("p{index}"), schema(index)))
        .collect();
    let required: Vec<&String> = properties.keys().collect();
    json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
}

/// What comes of a schema: nothing, or the refusal. Its work is bounded in any case.
fn outcome(schema: &Value) -> Result<(), String> {
    let (outcome, work) = grammars().prepare(schema, &Cancel::default());
    assert!(work.fuel <= FUEL && work.bytes <= BYTES, "{work:?}");
    outcome.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn hostile_schemas_are_refused_by_a_bound_that_is_named() {
    let alternatives = |width: usize, tail: char| {
        let options: Vec<String> = (0..width)
            .map(|index| format!("[a-z{}]{tail}{index}", index % 10))
            .collect();
        json!({"type": "string", "pattern": format!("^({})$", options.join("|"))})
    };
    for (name, schema, bound) in [
        (
            "a large prime divides",
            json!({"type": "integer", "multipleOf": 9_999_991}),
            "multipleOf must be above 0, with at most 6 decimals",
        ),
        (
            "nothing divides by 0",
            json!({"type": "integer", "multipleOf": 0}),
            "multipleOf must be above 0",
        ),
        (
            "a divisor of 300 decimals",
            json!({"type": "number", "multipleOf": 1e-300}),
            "multipleOf must be above 0, with at most 6 decimals",
        ),
        (
            "two divisors, whose least common multiple overflows",
            json!({"allOf": [{"type": "integer", "multipleOf": 9_973}, {"multipleOf": 9_967}]}),
            "2 multipleOf for one number, more than 1",
        ),
        (
            "500 properties with length bounds",
            object(
                500,
                |index| json!({"type": "string", "minLength": 1, "maxLength": 20 + index}),
            ),
            "characters to count for minLength and maxLength (equal bounds count once), more than 8192",
        ),
        (
            "a very long string",
            json!({"type": "string", "maxLength": 1_000_000_000_000_u64}),
            "characters to count",
        ),
        (
            "patterns that all must match",
            json!({"allOf": [alternatives(20, 'x'), alternatives(20, 'y'), alternatives(20, 'z')]}),
            "3 patterns and formats for one string, more than 2",
        ),
        (
            "the same, through properties and references",
            json!({
                "$defs": {"a": {"properties": {"s": alternatives(9, 'x')}}, "b": {"properties": {"s": alternatives(9, 'y')}}},
                "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"properties": {"s": alternatives(9, 'z')}}],
            }),
            "3 patterns and formats for one string, more than 2",
        ),
        (
            "a pattern for each pair of alternatives",
            json!({"allOf": [
                {"anyOf": (0..30).map(|n| json!({"type": "string", "pattern": format!("^a{n}")})).collect::<Vec<_>>()},
                {"anyOf": (0..30).map(|n| json!({"type": "string", "pattern": format!("b{n}$")})).collect::<Vec<_>>()},
            ]}),
            "patterns and formats, counting each combination that allOf makes",
        ),
        (
            "500 strings with formats",
            object(500, |_| json!({"type": "string", "format": "email"})),
            "patterns and formats",
        ),
        (
            "a long pattern",
            json!({"type": "string", "pattern": "(a|b)".repeat(1_000)}),
            "5000 bytes in a pattern, more than 1024",
        ),
        (
            "pattern properties, each compared with each",
            json!({"type": "object", "patternProperties": (0..200).map(|n| (format!("^p{n}$"), json!({}))).collect::<Map<_, _>>()}),
            "9 pattern properties, more than 8",
        ),
        (
            "one of a thousand properties",
            json!({
                "type": "object", "minProperties": 1, "additionalProperties": false,
                "properties": (0..1000).map(|n| (format!("p{n}"), json!({"type": "null"}))).collect::<Map<_, _>>(),
            }),
            "1000 properties beside minProperties or maxProperties, more than 128",
        ),
        (
            "exactly one of many enums",
            json!({"oneOf": (0..40).map(|n| json!({"enum": (0..90).map(|m| format!("{n} {m}")).collect::<Vec<_>>()})).collect::<Vec<_>>()}),
            "schemas and values within a oneOf, more than 2000",
        ),
        (
            "enums without end",
            object(
                20,
                |n| json!({"enum": (0..900).map(|m| n * 1000 + m).collect::<Vec<_>>()}),
            ),
            "values in enums and consts, more than 4000",
        ),
        (
            "a constant of 100 KB",
            json!({"const": "x".repeat(100_000)}),
            "100000 bytes in a value, more than 4096",
        ),
        (
            "a million laughs",
            json!({
                "$defs": (0..20).map(|n| {
                    let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
                    (format!("d{n}"), json!({"anyOf": [{"allOf": [next, next]}, {"allOf": [next, next]}]}))
                }).chain([("d20".to_owned(), json!({"anyOf": [{"const": "ha"}, {"pattern": "^ho$"}]}))]).collect::<Map<_, _>>(),
                "$ref": "#/$defs/d0",
            }),
            "patterns and formats",
        ),
        (
            "what is no schema, behind a reference",
            json!({"$ref": "#/examples/0", "examples": [{"type": "integer", "multipleOf": 9_999_991}]}),
            "#/$ref must be a reference to a schema within the schema",
        ),
        (
            "a reference that the compiler reads otherwise",
            json!({"$defs": {"a b": {}, "a%20b": {}}, "$ref": "#/$defs/a%20b", "minLength": 1}),
            "#/$ref must be a reference without `%` and `~`",
        ),
        (
            "a schema that is its own base, and so another one",
            json!({
                "$defs": {"x": {"$id": "urn:x", "properties": {"a": {"$ref": "#/$defs/y"}}, "$defs": {"y": {}}}},
                "$ref": "#/$defs/x",
            }),
            "`$id` at #/$defs/x is not supported",
        ),
    ] {
        match outcome(&schema) {
            Err(reason) => assert!(reason.contains(bound), "{name}: {reason}"),
            Ok(()) => panic!("{name} was taken"),
        }
    }
}

/// What looks hostile and is cheap, and what people send.
#[test]
fn schemas_within_the_bounds_are_compiled() {
    for (name, schema) in [
        ("a divisor", json!({"type": "integer", "multipleOf": 9_973})),
        (
            "cents",
            json!({"type": "number", "multipleOf": 0.01, "minimum": 0}),
        ),
        (
            "500 properties with one length bound",
            object(
                500,
                |_| json!({"type": "string", "minLength": 1, "maxLength": 100}),
            ),
        ),
        (
            "a repetition within a repetition",
            json!({"type": "string", "pattern": "^((a{1,1000}b{1,1000}){1,1000}c){1,1000}$"}),
        ),
        (
            "arrays of arrays without end",
            json!({"type": "array", "items": {"type": "array", "items": {"type": "null"}, "maxItems": 1_000_000}, "minItems": 1_000_000}),
        ),
        (
            "numbers at their ends",
            json!({"type": "number", "minimum": -1e15, "maximum": 1e15}),
        ),
        (
            "a schema that contains itself",
            json!({
                "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}}},
                "$ref": "#/$defs/tree",
            }),
        ),
        (
            "an inherited object",
            json!({
                "$defs": {"base": {"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}}, "required": ["id"]}},
                "allOf": [{"$ref": "#/$defs/base"}, {"type": "object", "properties": {"name": {"type": "string"}}}],
            }),
        ),
        (
            "a thousand values",
            json!({"enum": (0..1000).map(|n| format!("value {n}")).collect::<Vec<_>>()}),
        ),
    ] {
        if let Err(reason) = outcome(&schema) {
            panic!("{name}: {reason}");
        }
    }
}

#[test]
fn a_cancelled_grammar_is_not_prepared() {
    let cancel = Cancel::default();
    cancel.cancel();
    let (outcome, work) = grammars().prepare(&json!({"type": "object"}), &cancel);
    assert_eq!(outcome.err(), Some(SchemaError::Cancelled));
    assert_eq!(work.states, 0);
}

/// What is prepared stays usable when its request ends, for a clone of it may be running.
#[test]
fn cancelling_later_changes_nothing() {
    let cancel = Cancel::default();
    let (outcome, work) = grammars().prepare(&json!({"type": "boolean"}), &cancel);
    cancel.cancel();
    assert!(outcome.is_ok());
    assert!(
        work.fuel > 0 && work.states > 0 && work.bytes > 0,
        "{work:?}"
    );
}
