//! Tests the output and the exit code of `foreword check-config`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn check(files: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_foreword"))
        .arg("check-config")
        .args(files)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gateway-config"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn the_shipped_configurations_are_taken_and_the_place_is_told() {
    let files = [
        "envoy/envoy.yaml",
        "envoy/dynamic-module.yaml",
        "envoy/ext-proc.json",
        "envoy/retrieval.yaml",
        "istio/wasmplugin.yaml",
        "istio/envoyfilter.yaml",
    ];
    let (code, out, _) = check(&files, "");
    assert_eq!(code, Some(0), "{out}");
    assert_eq!(out.lines().count(), files.len(), "{out}");
    assert!(
        out.contains("istio/wasmplugin.yaml: spec.pluginConfig: the filter takes"),
        "{out}"
    );
    assert!(
        out.contains("envoy/envoy.yaml: static_resources.listeners[0]."),
        "{out}"
    );
}

#[test]
fn a_refused_configuration_is_told_with_every_error() {
    let envoy = include_str!("../../../gateway-config/envoy/envoy.yaml");
    let envoy = envoy.replace(
        r#""max_body_bytes": 4194304"#,
        r#""max_body_bytes": 0, "modus": 1"#,
    );
    for (input, place) in [
        (
            r#"{"max_body_bytes": 0, "modus": 1}"#,
            "-: the filter refuses",
        ),
        (&envoy, "-: static_resources.listeners[0]."),
    ] {
        let (code, out, _) = check(&["-"], input);
        assert_eq!(code, Some(1), "{out}");
        for words in [
            place,
            "2 errors",
            "max_body_bytes: 0 is less than the minimum of 1",
            "there is no `modus`, only routes, max_body_bytes, mode,",
        ] {
            assert!(out.contains(words), "{out} lacks {words}");
        }
    }
}

#[test]
fn a_file_without_a_configuration_is_another_failure() {
    for (files, input, words) in [
        (
            ["-"],
            "kind: Service\n",
            "no configuration of Foreword's filter",
        ),
        (["-"], "a: [", "neither JSON nor YAML"),
        (["no/such/file"], "", "cannot read no/such/file"),
    ] {
        let (code, out, err) = check(&files, input);
        assert_eq!((code, out.as_str()), (Some(2), ""));
        assert!(err.contains(words), "{err}");
    }
}
