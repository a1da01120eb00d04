//! Configurations and the values or errors that they give.

use super::*;

fn error(json: &str) -> String {
    Config::from_json(json.as_bytes())
        .err()
        .unwrap()
        .to_string()
}

#[test]
fn an_empty_configuration_and_an_empty_object_give_the_defaults() {
    for json in ["", " \n", "{}"] {
        let config = Config::from_json(json.as_bytes()).unwrap();
        assert_eq!(
            config.routes,
            ["/v1/chat/completions", "/v1/messages", "/v1/responses"]
        );
        assert_eq!(config.max_body_bytes, 4_194_304);
        assert_eq!(config.tenant, None);
        assert_eq!(config.salt, None);
        assert_eq!(config.mode, Mode::Order);
        assert_eq!(config.experiment, None);
        assert_eq!(config.bypass_header, None);
        assert!(config.log_fields);
        assert_eq!(config.on_failure, OnFailure::Pass);
        assert_eq!(config.report_header.as_deref(), Some("x-foreword"));
        assert_eq!(config.request_headers, RequestHeaders::Hold);
        assert_eq!(config.path_header.name, "x-foreword-path");
        assert!(config.path_header.enabled);
    }
}

#[test]
fn every_field_is_read() {
    let json = r#"{"ordering": {}, "routes": ["/a", "/b"], "max_body_bytes": 7,
        "tenant": {"header": "X-Tenant"}, "salt": {"key_env": "KEY"}, "mode": "dry-run",
        "experiment": {"control_share": 0.25}, "on_failure": "refuse", "report_header": null,
        "bypass_header": "X-Raw", "path_header": "X-Path", "request_headers": "release", "log_fields": false}"#;
    let config = Config::from_json(json.as_bytes()).unwrap();
    assert_eq!(config.routes, ["/a", "/b"]);
    assert_eq!(config.max_body_bytes, 7);
    assert_eq!(config.tenant, Some(TenantSource::Header("x-tenant".into())));
    assert_eq!(config.salt, Some(SaltKey::Environment("KEY".into())));
    assert_eq!(config.mode, Mode::DryRun);
    assert_eq!(config.experiment, Experiment::new("default", 0.25));
    assert_eq!(config.bypass_header.as_deref(), Some("x-raw"));
    assert!(!config.log_fields);
    assert_eq!(config.on_failure, OnFailure::Refuse);
    assert_eq!(config.report_header, None);
    assert_eq!(config.request_headers, RequestHeaders::Release);
    assert_eq!(config.path_header.name, "x-path");
    let config = Config::from_json(br#"{"path_header": null}"#).unwrap();
    assert!(!config.path_header.enabled);
}

#[test]
fn only_an_object_is_a_configuration() {
    for json in ["[]", "null", "7", "routes"] {
        assert!(error(json).contains("not a JSON object"), "{json}");
    }
}

#[test]
fn an_unknown_field_is_named() {
    assert!(error(r#"{"max_body": 1}"#).contains("unknown field `max_body`"));
}

#[test]
fn a_bad_value_is_named_with_field_value_and_limit() {
    for (json, parts) in [
        (
            r#"{"max_body_bytes": 0}"#,
            ["max_body_bytes", "0", "1 to 33554432"],
        ),
        (
            r#"{"max_body_bytes": 33554433}"#,
            ["max_body_bytes", "33554433", "1 to 33554432"],
        ),
        (
            r#"{"max_body_bytes": "4MB"}"#,
            ["max_body_bytes", "\"4MB\"", "whole number"],
        ),
        (r#"{"routes": []}"#, ["routes", "[]", "1 to 64"]),
        (
            r#"{"routes": ["v1"]}"#,
            ["routes", "\"v1\"", "begins with \"/\""],
        ),
        (
            r#"{"routes": ["/v1?x=1"]}"#,
            ["routes", "\"/v1?x=1\"", "no query"],
        ),
        (
            r#"{"tenant": {"header": "a b"}}"#,
            ["tenant.header", "\"a b\"", "1 to 64 characters"],
        ),
        (
            r#"{"tenant": "x-tenant"}"#,
            ["tenant: \"x-tenant\"", "an object", "claim"],
        ),
        (
            r#"{"tenant": {"header": "a", "claim": "b"}}"#,
            ["tenant", "`header`", "`claim`"],
        ),
        (
            r#"{"tenant": {"claim": "sub"}}"#,
            ["tenant.payload", "null", "1 to 256 characters"],
        ),
        (
            r#"{"tenant": {"claim": [], "payload": "p"}}"#,
            ["tenant.claim", "[]", "1 to 8"],
        ),
        (
            r#"{"salt": {"key_env": "A B"}}"#,
            ["salt.key_env", "\"A B\"", "environment variable"],
        ),
        (
            r#"{"salt": {"key_env": "A"}}"#,
            ["salt", "derived", "needs `tenant`"],
        ),
        (
            r#"{"tenant": {"header": "t"}, "salt": {"key_env": "A", "open_paths": ["/%61"]}}"#,
            ["salt.open_paths", "\"/%61\"", "no \"%\""],
        ),
        (
            r#"{"tenant": {"header": "t"}, "salt": {"key_env": "A", "open_paths": "/a"}}"#,
            ["salt.open_paths", "\"/a\"", "a list of 0 to 64 paths"],
        ),
        (
            r#"{"tenant": {"header": "t"}, "salt": {"open_paths": []}}"#,
            ["salt", "this object", "either `key` or `key_env`"],
        ),
        (
            r#"{"routes": ["/a"], "tenant": {"header": "t"}, "salt": {"key_env": "A", "open_paths": ["/a"]}}"#,
            ["salt.open_paths", "without a salt", "none of `routes`"],
        ),
        (
            r#"{"mode": "shadow"}"#,
            ["mode", "\"shadow\"", "\"order\" or \"dry-run\""],
        ),
        (
            r#"{"experiment": {"control_share": 1.5}}"#,
            ["experiment.control_share", "1.5", "from 0 to 1"],
        ),
        (
            r#"{"experiment": {"name": "a b", "control_share": 1}}"#,
            ["experiment.name", "\"a b\"", "1 to 64"],
        ),
        (
            r#"{"experiment": {"share": 1}}"#,
            ["experiment", "share", "name, control_share"],
        ),
        (
            r#"{"log_fields": "yes"}"#,
            ["log_fields", "\"yes\"", "true or false"],
        ),
        (r#"{"routes": null}"#, ["routes", "null", "1 to 64"]),
        (
            r#"{"routes": ["/a/{model"]}"#,
            ["routes", "\"/a/{model\"", "braces"],
        ),
        (
            r#"{"routes": ["/{a}{b}"]}"#,
            ["routes", "\"/{a}{b}\"", "one in each part"],
        ),
        (
            r#"{"routes": ["/{Model}"]}"#,
            ["routes", "\"/{Model}\"", "lower-case"],
        ),
        (
            r#"{"routes": ["/{model}"], "tenant": {"header": "t"}, "salt": {"key_env": "A"}}"#,
            ["routes", "byte by byte", "cache_salt"],
        ),
        (
            r#"{"report_header": "host"}"#,
            ["report_header", "\"host\"", "begins with \"x-\""],
        ),
        (
            r#"{"on_failure": "drop"}"#,
            ["on_failure", "\"drop\"", "\"pass\" or \"refuse\""],
        ),
        (
            r#"{"request_headers": true}"#,
            ["request_headers", "true", "\"hold\" or \"release\""],
        ),
        (
            r#"{"tenant": {"header": "X-Foreword"}}"#,
            ["report_header", "tenant.header", "must differ"],
        ),
        (
            r#"{"bypass_header": "X-Foreword-Path"}"#,
            ["path_header", "bypass_header", "must differ"],
        ),
        (
            r#"{"path_header": "host"}"#,
            ["path_header", "\"host\"", "begins with \"x-\""],
        ),
        (
            r#"{"path_header": "X-Foreword"}"#,
            ["report_header", "path_header", "must differ"],
        ),
    ] {
        let message = error(json);
        for part in parts {
            assert!(message.contains(part), "{json}: {message:?} lacks {part:?}");
        }
    }
}

#[test]
fn a_long_bad_value_is_quoted_in_part() {
    let message = error(&format!(r#"{{"on_failure": "{}"}}"#, "é".repeat(5_000)));
    assert!(message.len() < 400, "{} bytes", message.len());
}

#[test]
fn a_fault_in_the_ordering_part_says_where_it_is() {
    let message = error(r#"{"ordering": {"no_such_field": 1}}"#);
    assert!(
        message.contains("ordering") && message.contains("no_such_field"),
        "{message}"
    );
}

#[test]
fn a_claim_is_a_name_or_the_names_on_the_way_to_it() {
    let path = |json: &str| {
        let config = Config::from_json(json.as_bytes()).unwrap();
        match config.tenant {
            Some(TenantSource::Claim(path)) => path,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        path(r#"{"tenant": {"claim": "https://example.com/tenant", "payload": "jwt"}}"#),
        [
            "envoy.filters.http.jwt_authn",
            "jwt",
            "https://example.com/tenant"
        ]
    );
    assert_eq!(
        path(r#"{"tenant": {"claim": ["org", "id"], "payload": "jwt", "namespace": "mine"}}"#),
        ["mine", "jwt", "org", "id"]
    );
}

#[test]
fn open_paths_come_with_salts_alone() {
    let open = |json: &str| Config::from_json(json.as_bytes()).unwrap().open_paths;
    assert_eq!(open("{}"), [""; 0]);
    let salted = |more: &str| {
        format!(r#"{{"tenant": {{"header": "t"}}, "salt": {{"key_env": "A"{more}}}}}"#)
    };
    assert_eq!(open(&salted("")), ["/v1/models", "/health"]);
    assert_eq!(open(&salted(r#", "open_paths": []"#)), [""; 0]);
    assert_eq!(open(&salted(r#", "open_paths": ["/ping"]"#)), ["/ping"]);
}

#[test]
fn a_key_is_read_from_hexadecimal_digits_and_never_shown() {
    let key = "0123456789abcdefABCDEF".repeat(4);
    let json = format!(r#"{{"tenant": {{"header": "t"}}, "salt": {{"key": "{key}"}}}}"#);
    let config = Config::from_json(json.as_bytes()).unwrap();
    let Some(salt @ SaltKey::Bytes(bytes)) = &config.salt else {
        panic!("no key");
    };
    assert_eq!(bytes[..4], [0x01, 0x23, 0x45, 0x67]);
    assert_eq!(format!("{salt:?}"), "SaltKey(44 bytes)");
    let secret = "5ecre7".repeat(10);
    for json in [
        format!(r#"{{"salt": {{"key": "{secret}"}}}}"#),
        format!(r#"{{"salt": {{"key": "{secret}{secret}x"}}}}"#),
        format!(r#"{{"salt": "{secret}"}}"#),
        format!(r#"{{"salt": {{"key": "{secret}", "key_env": "A"}}}}"#),
        format!(r#"{{"salt": {{"keys": "{secret}"}}}}"#),
    ] {
        let message = error(&json);
        assert!(
            message.contains("salt") && !message.contains("5ecre7"),
            "{message}"
        );
    }
}
