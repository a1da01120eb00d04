//! Tests `foreword doctor` with `foreword serve` and a small real model.

use crate::support::process::Process;
use serde_json::Value;
use tokio::process::Command;

/// Examines a host started with these arguments; returns the exit code, and the checks with their status.
async fn examine(arguments: &[&str], more: &[&str]) -> (Option<i32>, Vec<(String, String)>) {
    let host = Process::serve(arguments);
    let internal = format!("http://{}", host.internal);
    let output = Command::new(env!("CARGO_BIN_EXE_foreword"))
        .args(["doctor", &format!("http://{}", host.address)])
        .args(["--internal", &internal, "--allow-reset", "--json"])
        .args(more)
        .output()
        .await
        .unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap().to_owned();
    let findings = told["findings"].as_array().unwrap().iter();
    let findings = findings.map(|finding| (text(finding, "check"), text(finding, "status")));
    println!("{told:#}");
    (output.status.code(), findings.collect())
}

fn other_than_ok(findings: &[(String, String)]) -> Vec<(&str, &str)> {
    let other = findings.iter().filter(|(_, status)| status != "ok");
    other.map(|(check, status)| (&**check, &**status)).collect()
}

#[tokio::test]
async fn our_host_passes_every_check_by_its_own_feed() {
    let (code, findings) = examine(&[], &[]).await;
    assert_eq!((code, other_than_ok(&findings)), (Some(0), vec![]));
    assert_eq!(findings.len(), 15);
}

#[tokio::test]
async fn our_host_without_a_cache_has_one_failure() {
    let (code, findings) = examine(&["--no-enable-prefix-caching"], &[]).await;
    let other = other_than_ok(&findings).into_iter();
    let failed: Vec<_> = other.filter(|(_, status)| *status != "skipped").collect();
    assert_eq!((code, failed), (Some(3), vec![("caching", "fail")]));
}
