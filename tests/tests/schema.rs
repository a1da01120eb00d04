//! Tests that the schema of the plugin configuration states what the filter accepts and its defaults, and that the
//! README's table does too.

use std::collections::BTreeMap;

use foreword_filter::{Config, ConfigError, SCHEMA};
use foreword_ordering::RawConfig;
use foreword_ordering::random::Random;
use foreword_tests::artifacts::repository;
use jsonschema::Validator;
use serde_json::{Map, Value, json};

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

/// Returns every field that holds a value, by its path, with its part of the schema. Objects are entered.
fn leaves(schema: &Value) -> BTreeMap<String, Value> {
    fn enter(at: &str, schema: &Value, leaves: &mut BTreeMap<String, Value>) {
        for (name, part) in schema["properties"].as_object().unwrap() {
            let path = if at.is_empty() {
                name.clone()
            } else {
                format!("{at}.{name}")
            };
            if part["properties"].is_object() {
                enter(&path, part, leaves);
            } else {
                leaves.insert(path, part.clone());
            }
        }
    }
    let mut found = BTreeMap::new();
    enter("", schema, &mut found);
    found
}

/// Sets the value at a path; objects on the way are created.
fn put(config: &mut Value, path: &str, value: Value) {
    let mut at = config;
    for name in path.split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = at
            .as_object_mut()
            .unwrap()
            .entry(name)
            .or_insert(Value::Null);
    }
    *at = value;
}

#[test]
fn the_schema_is_one_and_takes_the_defaults_and_the_shipped_configurations() {
    let schema = schema();
    assert!(jsonschema::meta::is_valid(&schema));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut defaults = json!({});
    for (path, part) in leaves(&schema) {
        let optional = ["experiment", "tenant", "salt", "engines", "retrieval"]
            .map(|name| path.starts_with(name));
        if !optional.contains(&true) {
            put(&mut defaults, &path, part["default"].clone());
        }
    }
    assert!(validator.is_valid(&defaults), "{defaults}");
    let spelt = Config::from_json(defaults.to_string().as_bytes()).unwrap();
    let silent = Config::from_json(b"{}").unwrap();
    let core: RawConfig = serde_json::from_value(defaults["ordering"].clone()).unwrap();
    assert_eq!(core, RawConfig::default());
    let said = |config: &Config| {
        format!(
            "{:?}",
            (
                (
                    &config.routes,
                    config.max_body_bytes,
                    config.mode,
                    &config.experiment
                ),
                (
                    &config.tenant,
                    &config.salt,
                    config.on_failure,
                    &config.report_header
                ),
                (
                    &config.bypass_header,
                    config.request_headers,
                    &config.path_header
                ),
                config.log_fields,
            )
        )
    };
    assert_eq!(said(&spelt), said(&silent));

    for name in ["envoy", "dynamic-module", "retrieval"] {
        let path = repository().join(format!("gateway-config/envoy/{name}.yaml"));
        let text = std::fs::read_to_string(path).unwrap();
        let (_, value) = text.split_once("value: |\n").unwrap();
        let (value, _) = value.split_once("          # Foreword: end.").unwrap();
        let shipped: Value = serde_json::from_str(value).unwrap();
        assert!(validator.is_valid(&shipped), "{name}: {shipped}");
    }
}

/// The filter names the fields that it knows when it is given an unknown one.
#[test]
fn the_schema_has_the_fields_that_the_filter_has() {
    let error = Config::from_json(br#"{"?": 1}"#).err().unwrap().to_string();
    let (_, named) = error.split_once("expected one of ").unwrap();
    let (named, _) = named.split_once(" at line").unwrap();
    let mut known: Vec<_> = named
        .split(", ")
        .map(|name| name.trim_matches('`'))
        .collect();
    known.sort_unstable();
    let schema = schema();
    let properties = schema["properties"].as_object().unwrap();
    let mut told: Vec<_> = properties.keys().map(String::as_str).collect();
    told.sort_unstable();
    assert_eq!(told, known);
}

/// Returns values to try for a field of this kind: around its limits, of its type, and of other types.
fn values(path: &str, part: &Value, random: &mut Random) -> Value {
    let mut pool = vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(0),
        json!(1),
        json!(0.5),
        json!(1e300),
        json!(""),
        json!("x"),
        json!([]),
        json!({}),
        json!(["a"]),
        json!([1]),
        json!({"x": 1}),
        json!(u64::MAX),
        json!(-0.5),
        json!("a b"),
        json!("é"),
        json!("x-y"),
        json!("a\nb"),
        json!("y".repeat(300)),
    ];
    for limit in ["minimum", "maximum"] {
        if let Some(limit) = part[limit].as_u64() {
            let around = [limit.saturating_sub(1), limit, limit.saturating_add(1)];
            pool.extend(around.map(|number| json!(number)));
        }
    }
    let by_name: &[Value] = &match path.rsplit('.').next().unwrap() {
        "routes" | "open_paths" | "salts" => vec![
            json!(["/"]),
            json!(["/a", "/b/c"]),
            json!(["/a?b"]),
            json!(["/a b"]),
            json!(["/%41"]),
            json!(["/#"]),
            json!([format!("/{}", "a".repeat(255))]),
            json!([format!("/{}", "a".repeat(256))]),
            json!(["/é"]),
            json!(vec!["/a"; 64]),
            json!(vec!["/a"; 65]),
            json!(["a"]),
            json!(["/~!$&'()*+,;=:@\"<>"]),
            json!(["/v1beta/models/{model}:generateContent", "/{a}/{b}"]),
            json!(["/{Model}"]),
            json!(["/{a}{b}"]),
            json!(["/a}"]),
            json!(["/{}"]),
            json!([format!("/{{{}}}", "a".repeat(33))]),
        ],
        "template" => vec![
            json!("{order}"),
            json!("a {order} b"),
            json!("{order}{order}"),
            json!("{ order}"),
            json!("\n{order}\n"),
        ],
        "label" => vec![
            json!("{label}"),
            json!("[{label}]"),
            json!("{label} {label}"),
        ],
        "location" => vec![
            json!("{document}"),
            json!("{document} {document}"),
            json!("see {document}"),
        ],
        "tags" | "loose_tags" => vec![
            json!(["a.b-c:d_e"]),
            json!(["a b"]),
            json!([""]),
            json!(vec!["a"; 33]),
            json!(["a".repeat(65)]),
        ],
        "key" => vec![
            json!("ab".repeat(32)),
            json!("AB".repeat(128)),
            json!("ab".repeat(31)),
            json!("ab".repeat(129)),
            json!("a".repeat(65)),
            json!("xy".repeat(32)),
        ],
        "engines" => {
            let engine = |name: &str, port: u32| json!({"name": name, "address": format!("10.0.0.1:{port}")});
            vec![
                json!([{"name": "a"}]),
                json!([engine("a", 1), engine("b", 2)]),
                json!([engine("a b", 1)]),
                json!([{"name": "a", "address": "[::1]:8000", "feed": {"cluster": "c", "token": "t"}}]),
                json!([{"name": "a", "address": "host:1"}]),
                json!([{"name": "a", "address": null, "feed": null}]),
                json!([{"name": "a", "feed": {"cluster": "c", "token": "a b"}}]),
                json!([{"name": "a", "feed": {"cluster": ""}}]),
                json!([{"name": "a", "feed": {"cluster": "c", "key": "ab".repeat(32), "token": null}}]),
                json!([{"name": "a", "feed": {"cluster": "c", "key": "ab".repeat(31)}}]),
                json!([{"name": "a", "feed": {"cluster": "c", "key_env": "FEED_KEY", "key": null}}]),
                json!([{"name": "a", "feed": {"cluster": "c", "key_env": "A B"}}]),
                json!([{"name": "a", "feed": {"token": "t"}}]),
                json!([{"name": "a", "feed": {"cluster": "c", "other": 1}}]),
                json!([{"address": "10.0.0.1:1"}]),
                json!([{"name": "a", "nickname": "b"}]),
                // Rules that no schema can express.
                json!([{"name": "a", "feed": {"cluster": "c", "key_env": "K", "key": "ab".repeat(32)}}]),
                json!([{"name": "a"}, {"name": "b"}]),
                json!([engine("a", 1), engine("a", 2)]),
                json!([{"name": "a", "address": "10.0.0.999:1"}]),
                json!([{"name": "a", "address": "10.0.0.1:99999"}]),
            ]
        }
        "history" => vec![
            json!(["0123456789abcdef"]),
            json!(["0123456789ABCDEF1123456789abcdef", "0123456789abcdef"]),
            json!(["0123456789abcdeg"]),
            json!(["0123456789abcde"]),
            json!([""]),
            json!(["0123456789abcdé"]),
            json!(["+123456789abcdef"]),
            json!([fingerprints(4096)]),
            json!([fingerprints(4097)]),
            json!(vec!["0123456789abcdef"; 4097]),
        ],
        "claim" => vec![
            json!("sub"),
            json!(["a", "b"]),
            json!(["a", ""]),
            json!(vec!["a"; 8]),
            json!(vec!["a"; 9]),
            json!("a\u{0}b"),
            json!("é".repeat(256)),
        ],
        "header" | "key_env" | "name" | "ring" | "payload" | "namespace" => vec![
            json!("X-Tenant"),
            json!("a.b_c-d"),
            json!("a".repeat(64)),
            json!("a".repeat(65)),
        ],
        "report_header" | "bypass_header" | "path_header" => vec![
            json!("X-A"),
            json!("x-"),
            json!("host"),
            json!(format!("x-{}", "a".repeat(62))),
            json!(format!("x-{}", "a".repeat(63))),
        ],
        _ => vec![],
    };
    // Two times in three, a plausible value.
    if random.below(3) > 0 {
        pool = by_name.to_vec();
        pool.extend(part["enum"].as_array().into_iter().flatten().cloned());
        for likely in ["default", "default", "minimum", "maximum"] {
            pool.extend(part.get(likely).cloned());
        }
        if part["type"] == "boolean" {
            pool.extend([json!(true), json!(false)]);
        }
        if pool.is_empty() {
            pool.push(json!("x"));
        }
    }
    pool.swap_remove(random.below(pool.len() as u64) as usize)
}

/// Returns a context of so many documents, as a history has it.
fn fingerprints(documents: u64) -> String {
    (1..=documents).map(|at| format!("{at:016x}")).collect()
}

/// Returns some fields with random values; sometimes with a field that does not exist, or a value where an object
/// belongs.
fn configuration(leaves: &BTreeMap<String, Value>, random: &mut Random) -> Value {
    let mut config = json!({});
    for _ in 0..=random.below(4) {
        let at = random.below(leaves.len() as u64) as usize;
        let (path, part) = leaves.iter().nth(at).unwrap();
        // Where one of several fields is required, this makes the configuration valid.
        let companion: Option<(&str, Value)> = match path.as_str() {
            "tenant.claim" => Some(("tenant.payload", json!("jwt"))),
            "tenant.payload" | "tenant.namespace" => Some(("tenant.claim", json!("sub"))),
            "experiment.name" => Some(("experiment.control_share", json!(0.5))),
            "salt.open_paths" => Some(("salt.key", json!("ab".repeat(32)))),
            path if path.starts_with("salt.") => Some(("tenant", json!({"header": "t"}))),
            path if path.starts_with("retrieval.") => Some(("retrieval.cluster", json!("c"))),
            _ => None,
        };
        if let Some((path, value)) = companion.filter(|_| random.below(4) > 0) {
            put(&mut config, path, value);
        }
        put(&mut config, path, values(path, part, random));
    }
    if random.below(12) == 0 {
        let places = [
            "x",
            "ordering.x",
            "ordering.tree.x",
            "tenant.x",
            "salt.x",
            "agreement.x",
            "ordering.hint",
        ];
        let at = random.below(places.len() as u64) as usize;
        put(&mut config, places[at], json!(["unexpected"]));
    }
    config
}

/// Returns whether the schema may accept engines that the filter refuses: no schema can say that several engines have
/// different addresses, nor that an address is valid.
fn is_laxer(field: &str, config: &Value) -> bool {
    let several = config["engines"]
        .as_array()
        .is_some_and(|engines| engines.len() > 1);
    (field == "engines" && several)
        || (field == "engines.address" && config.to_string().contains(":99999"))
        || config.to_string().contains(".999:")
}

/// Compares the schema's verdict on a configuration with the filter's. Rules between headers' names are checked by the
/// filter alone.
fn agree(validator: &Validator, config: &Value) -> bool {
    let taken = Config::from_json(config.to_string().as_bytes());
    let valid = validator.is_valid(config);
    match &taken {
        Ok(_) => assert!(valid, "only the schema refuses {config}"),
        Err(ConfigError::Conflict { field, .. }) if *field != "salt" => {}
        // Rules between engines, and rules on an address beyond its form.
        Err(ConfigError::Invalid { field, .. }) if is_laxer(field, config) => {}
        Err(error) => assert!(!valid, "only the filter refuses {config}: {error}"),
    }
    taken.is_ok()
}

#[test]
fn schema_and_filter_agree_on_random_configurations() {
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let leaves = leaves(&schema);
    let mut random = Random::new(11);
    let rounds = 20_000;
    let valid = (0..rounds)
        .filter(|_| agree(&validator, &configuration(&leaves, &mut random)))
        .count();
    // There must be many of both kinds, or the agreement says little.
    assert!(
        (rounds / 5..rounds * 4 / 5).contains(&valid),
        "{valid} of {rounds} were valid"
    );
}

#[test]
fn every_value_of_every_field_is_judged_alike() {
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut random = Random::new(12);
    for (path, part) in leaves(&schema) {
        let mut both = [false, false];
        for _ in 0..400 {
            let mut config = json!({});
            match path.as_str() {
                "tenant.claim" => put(&mut config, "tenant.payload", json!("jwt")),
                "tenant.payload" => put(&mut config, "tenant.claim", json!("sub")),
                "tenant.namespace" => {
                    config = json!({"tenant": {"claim": "sub", "payload": "jwt"}});
                }
                "experiment.name" => put(&mut config, "experiment.control_share", json!(0.5)),
                path if path.starts_with("salt.") => {
                    put(&mut config, "tenant", json!({"header": "t"}));
                    if path == "salt.open_paths" {
                        put(&mut config, "salt.key", json!("ab".repeat(32)));
                    }
                }
                path if path.starts_with("retrieval.") => {
                    put(&mut config, "retrieval.cluster", json!("c"));
                }
                _ => {}
            }
            put(&mut config, &path, values(&path, &part, &mut random));
            both[usize::from(agree(&validator, &config))] = true;
        }
        assert_eq!(
            both,
            [true, true],
            "{path} was never valid, or never invalid"
        );
    }
}

/// Returns the rows of the README's tables: fields, and the column with default and allowed values.
fn rows() -> Vec<(Vec<String>, String)> {
    let text =
        std::fs::read_to_string(repository().join("gateway-config/envoy/README.md")).unwrap();
    let mut rows = Vec::new();
    let mut prefix = None;
    for line in text.lines() {
        if !line.starts_with('|') {
            prefix = None;
            continue;
        }
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        match (cells[0], prefix) {
            ("field", _) if cells[1] == "default" => prefix = Some(""),
            ("field of `ordering`", _) => prefix = Some("ordering."),
            (first, Some(prefix)) if first.starts_with('`') => {
                let fields = first
                    .split(", ")
                    .map(|name| format!("{prefix}{}", name.trim_matches('`')));
                rows.push((fields.collect(), cells[1].to_owned()));
            }
            _ => {}
        }
    }
    rows
}

#[test]
fn the_table_for_people_has_every_field_with_the_schemas_default() {
    let schema = schema();
    let leaves = leaves(&schema);
    let rows = rows();
    let mut told = Vec::new();
    for (fields, default) in &rows {
        let defaults: Vec<&str> = default.split(", ").collect();
        for (at, field) in fields.iter().enumerate() {
            told.push(field.as_str());
            let part = leaves.get(field).unwrap_or_else(|| {
                // An object, by its name, or a field of a list's items.
                let path = field.replace("[].", "/items/properties/");
                let pointer = format!("/properties/{}", path.replace('.', "/properties/"));
                schema
                    .pointer(&pointer)
                    .unwrap_or_else(|| panic!("{field} is not in the schema"))
            });
            let said = |text: &str| serde_json::from_str::<Value>(text.trim_matches('`')).ok();
            let expected = match said(default) {
                Some(value) => Some(value),
                None if part["type"] == "array" && default.starts_with('`') => {
                    Some(defaults.iter().map(|tag| tag.trim_matches('`')).collect())
                }
                None if defaults.len() == fields.len() => said(defaults[at]),
                None => None,
            };
            match expected {
                Some(expected) => assert_eq!(part["default"], expected, "{field}"),
                // Words: "RAGBoost's words", or nothing.
                None => assert!(
                    part["default"].is_null() || part["type"] == "string",
                    "{field}: {default:?}"
                ),
            }
        }
    }
    let untold: Vec<_> = leaves
        .keys()
        .filter(|path| !told.contains(&path.as_str()))
        .collect();
    assert!(untold.is_empty(), "{untold:?}");
    assert!(told.len() > 40, "{told:?}");
}
