//! `SECURITY.md` promises nothing without a test: each entry of its promises names files and functions that are there.

use std::fs;

use foreword_tests::artifacts::repository;

/// The entries of the section on promises.
fn promises(text: &str) -> Vec<&str> {
    let (_, section) = text.split_once("\n## What is promised").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    section.split("\n- ").skip(1).collect()
}

/// The tests that an entry names: `file.rs::name`, or further names of the same file as `::name`.
fn tests(promise: &str) -> Vec<(&str, &str)> {
    let mut file = "";
    let quoted = promise.split('`').skip(1).step_by(2);
    let named = quoted.filter_map(|words| words.split_once("::"));
    named
        .map(|(path, name)| {
            if !path.is_empty() {
                file = path;
            }
            (file, name)
        })
        .collect()
}

/// What is wrong with a text's promises.
fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for promise in promises(text) {
        let opening = promise.lines().next().unwrap_or_default();
        let tests = tests(promise);
        if tests.is_empty() {
            faults.push(format!("{opening}: it names no test"));
        }
        for (file, name) in tests {
            let source = fs::read_to_string(repository().join(file)).unwrap_or_default();
            if !source.contains(&format!("fn {name}(")) {
                faults.push(format!("{opening}: {file} has no test {name}"));
            }
        }
    }
    faults
}

#[test]
fn every_promise_names_tests_that_are_there() {
    let text = fs::read_to_string(repository().join("SECURITY.md")).unwrap();
    assert!(promises(&text).len() >= 7);
    assert_eq!(faults(&text), [""; 0]);
}

#[test]
fn a_promise_without_a_test_and_a_test_that_left_are_found() {
    let text = "\n## What is promised\n\n- **a** none\n- **b** `tests/tests/promises.rs::faults`, `::gone`\n- **c** `no.rs::a`\n\n## Next\n- d\n";
    let expected = [
        "**a** none: it names no test",
        "**b** `tests/tests/promises.rs::faults`, `::gone`: tests/tests/promises.rs has no test gone",
        "**c** `no.rs::a`: no.rs has no test a",
    ];
    assert_eq!(faults(text), expected);
}
