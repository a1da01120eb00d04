use super::*;

fn render(options: &str, json: &str) -> String {
    let mut environment = minijinja::Environment::new();
    environment.add_filter("tojson", tojson);
    let value = to_value(&serde_json::from_str(json).unwrap());
    let source = format!("{{{{ value | tojson{options} }}}}");
    environment
        .render_str(&source, Value::from_pairs([("value", value)]))
        .unwrap()
}

#[test]
fn json_is_written_as_python_writes_it() {
    // Expected: `json.dumps(json.loads(input), ensure_ascii=False, …)` of CPython 3.11.
    let tool = r#"{"z": [1, 2.50, -0.0, true, null], "a": {"<b>": "it's & \"q\" \\ \n\u0001\u007f é 😀"}, "e": []}"#;
    let compact = r#"{"z": [1, 2.5, -0.0, true, null], "a": {"<b>": "it's & \"q\" \\ \n\u0001"#;
    assert_eq!(
        render("", tool),
        format!("{compact}\u{7f} é 😀\"}}, \"e\": []}}")
    );
    assert_eq!(
        render("(indent=2)", r#"{"b": [1, {"c": {}}], "a": []}"#),
        "{\n  \"b\": [\n    1,\n    {\n      \"c\": {}\n    }\n  ],\n  \"a\": []\n}"
    );
    assert_eq!(render("(indent=none)", "[1, 2]"), "[1, 2]");
    assert_eq!(
        render(
            "(separators=(',', ':'), sort_keys=true)",
            r#"{"b": 1, "a": [1, 2]}"#
        ),
        r#"{"a":[1,2],"b":1}"#
    );
    assert_eq!(
        render("(ensure_ascii=true)", "\"é😀\u{7f}\""),
        "\"\\u00e9\\ud83d\\ude00\u{7f}\""
    );
    assert_eq!(render("", "18446744073709551615"), "18446744073709551615");
}

#[test]
fn floats_look_as_python_prints_them() {
    for (value, text) in [
        (1.0, "1.0"),
        (0.1, "0.1"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e+16"),
        (1.5e300, "1.5e+300"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-2.5e-7, "-2.5e-07"),
        (123_456.789, "123456.789"),
        (f64::INFINITY, "Infinity"),
    ] {
        assert_eq!(float(value), text);
    }
}
