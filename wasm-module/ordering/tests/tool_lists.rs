//! Lists of tools as six APIs hold them, and what clients change in them: golden files, and that nothing is changed but the
//! order of what has none.
//!
//! `tests/tool-lists/API-CHANGE/N.in.json` is the Nth request, `N.out.json` what is sent for it. `UPDATE_GOLDEN=1 cargo test -p
//! foreword-ordering --test ordering tool_lists` writes them anew. The lists are made up in the manner of those of
//! the Berkeley Function-Calling Leaderboard, with which `benches/benches/tool_lists.rs` does the same.

use crate::lists::{Api, Broken, Json, differ_by_order_alone};
use foreword_ordering::{Config, Orderer, Skip, Tenant};
use proptest::prelude::*;
use std::path::Path;

fn orderer(mode: &str) -> Orderer {
    let config = format!(r#"{{"head":{{"mode":"{mode}"}}}}"#);
    Orderer::new(Config::from_json(config.as_bytes()).unwrap())
}

fn send(orderer: &mut Orderer, body: &str) -> String {
    match orderer.rewrite(Tenant::default(), body.as_bytes()) {
        Ok(rewrite) => rewrite
            .body
            .map_or(body.to_owned(), |sent| String::from_utf8(sent).unwrap()),
        Err(Skip::NoDocuments) => body.to_owned(),
        Err(skip) => panic!("{skip}"),
    }
}

/// Functions with all that real lists have: `required` on either side of `properties`, defaults of every kind, `enum`s in an
/// order that means something, objects in objects, arguments that are called like a schema's words.
const FUNCTIONS: &str = include_str!("tool_lists/functions.json");

fn functions() -> Vec<Json> {
    Json::of(FUNCTIONS).elements().to_vec()
}

fn body(api: Api, broken: Broken, nth: u64) -> String {
    let system = "You may call functions, and say so when none fits.";
    api.body(
        &broken.of(&functions(), nth),
        system,
        &[
            ("user", "Book a table for two."),
            ("assistant", "For when?"),
            ("user", "Tonight at eight."),
        ],
    )
}

#[test]
fn lists_become_what_the_golden_files_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tool-lists");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1");
    let mut wrong = Vec::new();
    let every_change = Broken::ALL.map(|broken| (Api::Chat, broken));
    let every_api = Api::ALL.map(|api| (api, Broken::Order));
    for (api, broken) in every_change.into_iter().chain(every_api) {
        let folder = folder.join(format!("{}-{}", api.name(), broken.name()));
        let mut orderer = orderer("apply");
        for nth in 1..=3 {
            let body = body(api, broken, nth);
            let sent = send(&mut orderer, &body);
            for (kind, text) in [("in", &body), ("out", &sent)] {
                let path = folder.join(format!("{nth}.{kind}.json"));
                if update {
                    std::fs::create_dir_all(&folder).unwrap();
                    std::fs::write(&path, text).unwrap();
                }
                if std::fs::read_to_string(&path).unwrap_or_default() != **text {
                    wrong.push(format!("{} should be:\n{text}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_list_in_another_order_or_form_is_sent_as_the_first_one_was() {
    // An object in `default` is a value, whose keys keep their places; one tool has such.
    let mut functions = functions();
    functions.retain(|function| function.get("name") != Some(&Json::string("restaurants.find")));
    for api in Api::ALL {
        for broken in [Broken::Order, Broken::Keys] {
            let mut orderer = orderer("apply");
            let body = |nth| api.body(&broken.of(&functions, nth), "s", &[("user", "u")]);
            let sent: Vec<String> = (1..6).map(|nth| send(&mut orderer, &body(nth))).collect();
            for later in &sent[1..] {
                assert_eq!(*later, sent[0], "{} {}", api.name(), broken.name());
            }
        }
    }
}

#[test]
fn nothing_but_order_differs_for_any_api_and_any_change() {
    for api in Api::ALL {
        for broken in Broken::ALL {
            let (mut applying, mut reporting) = (orderer("apply"), orderer("report"));
            for nth in 0..20 {
                let body = body(api, broken, nth);
                assert_eq!(send(&mut reporting, &body), body);
                let sent = send(&mut applying, &body);
                if let Err(difference) = differ_by_order_alone(api, &body, &sent) {
                    panic!("{} {}: {difference}", api.name(), broken.name());
                }
            }
        }
    }
}

#[test]
fn the_comparison_finds_what_must_not_happen() {
    let came = body(Api::Chat, Broken::No, 0);
    let alike = |from: &str, to: &str| {
        assert!(came.contains(from), "{from}");
        differ_by_order_alone(Api::Chat, &came, &came.replacen(from, to, 1)).is_ok()
    };
    assert!(alike(r#"["city","people"]"#, r#"["people","city"]"#));
    assert!(!alike(r#"["city","people"]"#, r#"["city"]"#));
    assert!(!alike(
        r#"["low","medium","high"]"#,
        r#"["medium","low","high"]"#
    ));
    assert!(!alike(
        r#"{"unit":"km","value":5}"#,
        r#"{"value":5,"unit":"km"}"#
    ));
    assert!(!alike("For when?", "For whom?"));
    assert!(!alike("2.5", "2.50001"));
}

/// JSON that a schema may hold anywhere.
fn json() -> impl Strategy<Value = Json> {
    let key = prop::sample::select(vec![
        "a",
        "b",
        "type",
        "enum",
        "required",
        "properties",
        "default",
        "examples",
        "oneOf",
        "anyOf",
        "items",
        "description",
        "dependentRequired",
        "$defs",
        "const",
        "name",
    ]);
    let leaf = prop_oneof![
        Just(Json::Plain("1".into())),
        Just(Json::Plain("null".into())),
        "[a-c]{0,2}".prop_map(Json::String),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::Array),
            prop::collection::hash_map(key.clone(), inner, 0..5).prop_map(|members| {
                let members = members.into_iter();
                Json::Object(
                    members
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever stands in a tool, and however keys and tools are shuffled: the first form comes back, or the client's own.
    #[test]
    fn no_word_of_any_schema_is_lost_or_moved(schemas in prop::collection::vec(json(), 1..6), seed: u16) {
        let functions: Vec<Json> = schemas.into_iter().enumerate().map(|(at, schema)| {
            Json::object(vec![("name", Json::String(format!("f{at}"))), ("parameters", schema)])
        }).collect();
        let mut orderer = orderer("apply");
        for (nth, broken) in [Broken::No, Broken::Keys, Broken::Order, Broken::Subset, Broken::Keys].into_iter().enumerate() {
            let body = Api::Chat.body(&broken.of(&functions, u64::from(seed) + nth as u64), "s", &[("user", "u")]);
            let sent = send(&mut orderer, &body);
            prop_assert!(sent.len() == body.len());
            let compared = differ_by_order_alone(Api::Chat, &body, &sent);
            prop_assert!(compared.is_ok(), "{}", compared.unwrap_err());
        }
    }
}
