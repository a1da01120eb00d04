//! The features of dependencies, in which builds and tests of the workspace agree: a crate with two sets of features would be
//! compiled twice, and all that depend on it.

use std::collections::BTreeSet;
use std::process::Command;

use foreword_tests::artifacts::repository;

/// Each package that the members need by these kinds of dependencies, with its features.
fn packages(edges: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .current_dir(repository())
        .args(["tree", "--locked", "--offline", "--workspace"])
        .args(["--prefix", "none", "--format", "{p} {f}", "--edges", edges])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines = lines
        .lines()
        .map(|line| line.trim_end_matches(" (*)").to_owned());
    lines.collect()
}

#[test]
fn tests_ask_for_no_feature_that_builds_lack() {
    let (built, tested) = (packages("normal,build"), packages("normal,build,dev"));
    assert!(built.len() > 100);
    let twice: Vec<&String> = built.difference(&tested).collect();
    assert!(
        twice.is_empty(),
        "name the features that tests add to these in benches/Cargo.toml: {twice:#?}"
    );
}
