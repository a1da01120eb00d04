//! Tests of answers under a grammar, from a model that knows no language: whatever it is forced to write must be what
//! was requested, whole and byte for byte.

use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::engine::{Engine, EngineConfig, Event, FinishReason, Generation, Request};
use foreword_engine::models::ModelConfig;
use foreword_engine::sampling::{Constraint, Sampling};
use foreword_engine::text::{Grammars, SchemaError, Tokenizer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-yarn")
}

struct House {
    engine: Engine,
    tokenizer: Tokenizer,
    grammars: Grammars,
    stop_tokens: Vec<u32>,
}

impl House {
    fn open(pages: u32, max_running: u32) -> Self {
        let cpu = CpuConfig {
            host_pages: 0,
            precision: Precision::Auto,
            pages,
            page_tokens: 16,
            threads: Some(1),
        };
        let backend = Box::new(CpuBackend::load(&fixture(), &cpu).unwrap());
        let vocabulary = foreword_engine::backend::Backend::shape(&*backend).vocabulary;
        let config = EngineConfig {
            max_waiting: 64,
            max_running,
            max_step_tokens: 64,
            ..EngineConfig::default()
        };
        let tokenizer = Tokenizer::load(&fixture()).unwrap();
        let grammars = Grammars::new(&tokenizer, vocabulary).unwrap();
        Self {
            engine: Engine::start(backend, config),
            tokenizer,
            grammars,
            stop_tokens: ModelConfig::load(&fixture()).unwrap().eos_tokens,
        }
    }

    fn ask(&self, constraint: &Constraint, seed: u64, max_tokens: u32) -> Generation {
        let prompt = format!("Answer number {seed} in JSON:\n");
        let request = Request {
            prompt: self.tokenizer.encode(&prompt, true).unwrap(),
            max_tokens,
            sampling: Sampling::new(1.0, 1.0, 0, seed).unwrap(),
            stop_tokens: self.stop_tokens.clone(),
            constraint: Some(constraint.clone()),
            ..Request::default()
        };
        self.engine.submit(request).unwrap()
    }

    fn listen(&self, mut generation: Generation) -> (String, FinishReason) {
        let mut decoder = self.tokenizer.decoder();
        let mut text = String::new();
        loop {
            match generation.blocking_next().unwrap() {
                Event::Started { .. } | Event::Prompt(_) => {}
                Event::Token { id, .. } => text += &decoder.push(id),
                Event::Finished(reason) => return (text + &decoder.finish(), reason),
                Event::Failed(reason) => panic!("{reason}"),
            }
        }
    }
}

/// Returns schemas of bounded answers, so that even this model ends its answer.
fn schemas() -> Vec<Value> {
    let name = json!({"type": "string", "maxLength": 8});
    vec![
        json!({"type": "boolean"}),
        json!({"enum": ["red", "grün", 3, null, {"a": [1]}]}),
        json!({"const": {"kind": "\"quoted\"\n"}}),
        json!({"type": "integer", "minimum": -20, "maximum": 300}),
        json!({"type": "string", "minLength": 2, "maxLength": 12}),
        json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
        json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}),
        json!({
            "type": "object",
            "properties": {"name": name, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
            "required": ["name", "age"],
            "additionalProperties": false,
        }),
        json!({
            "type": "object",
            "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": name},
            "required": ["b"],
            "additionalProperties": false,
        }),
        json!({"anyOf": [
            {"type": "object", "properties": {"ok": {"const": true}}, "required": ["ok"], "additionalProperties": false},
            {"type": "object", "properties": {"error": name}, "required": ["error"], "additionalProperties": false},
        ]}),
        json!({
            "$defs": {"pair": {
                "type": "array", "prefixItems": [{"type": "boolean"}, name], "items": false, "minItems": 2,
            }},
            "type": "object",
            "properties": {"first": {"$ref": "#/$defs/pair"}, "second": {"$ref": "#/$defs/pair"}},
            "required": ["first", "second"],
            "additionalProperties": false,
        }),
    ]
}

/// Returns whether `schema` describes `value`: the slow, obvious way, for the keywords above.
fn valid(schema: &Value, value: &Value, root: &Value) -> bool {
    let Some(keywords) = schema.as_object() else {
        return schema == &json!(true);
    };
    let length = |value: &Value| match value {
        Value::String(text) => Some(text.chars().count()),
        Value::Array(items) => Some(items.len()),
        _ => None,
    };
    keywords
        .iter()
        .all(|(keyword, rule)| match keyword.as_str() {
            "$defs" | "additionalProperties" | "prefixItems" => true,
            "$ref" => valid(
                root.pointer(&rule.as_str().unwrap()[1..]).unwrap(),
                value,
                root,
            ),
            "anyOf" => rule
                .as_array()
                .unwrap()
                .iter()
                .any(|option| valid(option, value, root)),
            "enum" => rule.as_array().unwrap().contains(value),
            "const" => rule == value,
            "type" => match rule.as_str().unwrap() {
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64(),
                "string" => value.is_string(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                "null" => value.is_null(),
                other => panic!("type {other}"),
            },
            "minimum" => value.as_i64() >= rule.as_i64(),
            "maximum" => value.as_i64() <= rule.as_i64(),
            "minLength" | "minItems" => length(value).unwrap() as u64 >= rule.as_u64().unwrap(),
            "maxLength" | "maxItems" => length(value).unwrap() as u64 <= rule.as_u64().unwrap(),
            "pattern" => {
                let bytes = value.as_str().unwrap().as_bytes();
                assert_eq!(rule, "^[A-Z]{2}-[0-9]{3}$");
                bytes.len() == 6
                    && bytes[..2].iter().all(u8::is_ascii_uppercase)
                    && bytes[2] == b'-'
                    && bytes[3..].iter().all(u8::is_ascii_digit)
            }
            "items" => {
                let first = keywords
                    .get("prefixItems")
                    .map_or(&[][..], |p| p.as_array().unwrap());
                let items = value.as_array().unwrap();
                items
                    .iter()
                    .enumerate()
                    .all(|(index, item)| valid(first.get(index).unwrap_or(rule), item, root))
            }
            "properties" => {
                value
                    .as_object()
                    .unwrap()
                    .iter()
                    .all(|(name, field)| match rule.get(name) {
                        Some(schema) => valid(schema, field, root),
                        None => keywords.get("additionalProperties") != Some(&json!(false)),
                    })
            }
            "required" => rule
                .as_array()
                .unwrap()
                .iter()
                .all(|name| value.get(name.as_str().unwrap()).is_some()),
            other => panic!("keyword {other}"),
        })
}

#[test]
fn every_answer_under_a_schema_is_valid() {
    let house = House::open(512, 8);
    for schema in schemas() {
        let constraint = house.grammars.json_schema(&schema).unwrap();
        let generations: Vec<_> = (0..8)
            .map(|seed| house.ask(&constraint, seed, 400))
            .collect();
        let mut answers = std::collections::HashSet::new();
        for generation in generations {
            let (text, reason) = house.listen(generation);
            assert_eq!(reason, FinishReason::Stop, "{schema}: {text:?}");
            let value: Value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{schema}: {error}: {text:?}"));
            assert!(valid(&schema, &value, &schema), "{schema}: {text:?}");
            assert_eq!(text.trim(), text, "no white space around the whole");
            answers.insert(text);
        }
        assert!(
            answers.len() > 1 || schema.get("const").is_some(),
            "{schema} leaves a choice"
        );
    }
}

#[test]
fn the_validator_sees_what_is_wrong() {
    let schemas = schemas();
    for (index, value) in [
        (0, json!(1)),
        (1, json!("blue")),
        (3, json!(301)),
        (4, json!("x")),
        (5, json!("AB-12")),
        (6, json!([true])),
        (7, json!({"name": "x"})),
        (7, json!({"name": "x", "age": 3, "more": 1})),
        (9, json!({"ok": false})),
        (10, json!({"first": [true, "x"], "second": [true, "x", 1]})),
    ] {
        assert!(!valid(&schemas[index], &value, &schemas[index]), "{value}");
    }
}

#[test]
fn preemption_and_company_change_nothing() {
    let roomy = House::open(512, 8);
    // There is room for about three sequences, and eight want to run.
    let tight = House::open(12, 8);
    let schema = json!({"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 6, "maxItems": 8});
    let answers = |house: &House| -> Vec<String> {
        let constraint = house.grammars.json_schema(&schema).unwrap();
        let generations: Vec<_> = (0..8)
            .map(|seed| house.ask(&constraint, seed, 100))
            .collect();
        generations
            .into_iter()
            .map(|generation| house.listen(generation).0)
            .collect()
    };
    let expected = answers(&roomy);
    assert_eq!(answers(&tight), expected);
    assert!(
        tight.engine.stats().preemptions > 0,
        "{:?}",
        tight.engine.stats()
    );
    assert_eq!(roomy.engine.stats().preemptions, 0);
}

#[test]
fn an_answer_that_is_too_long_is_cut() {
    let house = House::open(64, 1);
    let schema = json!({"type": "array", "items": {"type": "boolean"}, "minItems": 50});
    let constraint = house.grammars.json_schema(&schema).unwrap();
    let (text, reason) = house.listen(house.ask(&constraint, 1, 12));
    assert_eq!(reason, FinishReason::Length);
    assert!(
        text.starts_with('[') && serde_json::from_str::<Value>(&text).is_err(),
        "{text:?}"
    );
}

#[test]
fn any_object_is_an_object() {
    let house = House::open(256, 4);
    let constraint = house.grammars.json_object().unwrap();
    for seed in 0..4 {
        let (text, reason) = house.listen(house.ask(&constraint, seed, 300));
        assert!(text.starts_with('{'), "{text:?}");
        if reason == FinishReason::Stop {
            assert!(
                serde_json::from_str::<Value>(&text).unwrap().is_object(),
                "{text:?}"
            );
        }
    }
}

#[test]
fn what_cannot_be_compiled_is_refused() {
    let house = House::open(16, 1);
    let refusal = |schema: Value| house.grammars.json_schema(&schema).err();
    assert!(matches!(
        refusal(json!({"type": "object", "not": {}})),
        Some(SchemaError::Unsupported { .. })
    ));
    assert!(matches!(
        refusal(json!({"$ref": "#/$defs/missing"})),
        Some(SchemaError::Malformed { place, .. }) if place == "#/$ref"
    ));
    for schema in [
        json!({"type": "wurst"}),
        json!({"type": "integer", "minimum": 3, "maximum": 2}),
        json!({"type": "string", "pattern": "(unclosed"}),
    ] {
        match refusal(schema.clone()) {
            Some(SchemaError::Refused(reason)) => {
                assert!(
                    !reason.is_empty() && !reason.contains('\n'),
                    "{schema}: {reason}"
                );
            }
            other => panic!("{schema}: {other:?}"),
        }
    }
}
