//! Tests `foreword doctor` with an engine and a gateway that have one fault: it reports that fault and no other.

mod engine;
mod gateway;

use engine::{Engine, Fault};
use serde_json::Value;
use std::net::SocketAddr;
use tokio::process::Command;

/// The doctor's output and exit code.
struct Told {
    code: Option<i32>,
    findings: Vec<(String, String, Value)>,
}

impl Told {
    /// The checks with findings, with their status.
    fn wrong(&self) -> Vec<(&str, &str)> {
        let wrong = |status: &str| status != "ok" && status != "skipped";
        let found = self.findings.iter().filter(|(_, status, _)| wrong(status));
        found
            .map(|(check, status, _)| (&**check, &**status))
            .collect()
    }

    fn status(&self, check: &str) -> &str {
        let found = self.findings.iter().find(|(name, ..)| name == check);
        &found.unwrap_or_else(|| panic!("no {check}")).1
    }
}

async fn ask(arguments: &[&str]) -> Told {
    let output = Command::new(env!("CARGO_BIN_EXE_foreword"))
        .args(["doctor", "--json"])
        .args(arguments)
        .output()
        .await
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{error}"));
    let findings = told["findings"].as_array().unwrap().iter().map(|finding| {
        let text = |name: &str| finding[name].as_str().unwrap().to_owned();
        assert_eq!(finding.as_object().unwrap().len(), 4, "{finding}");
        if matches!(&*text("status"), "warn" | "fail") {
            assert!(!text("remedy").is_empty(), "{finding}");
        }
        (text("check"), text("status"), finding.clone())
    });
    Told {
        code: output.status.code(),
        findings: findings.collect(),
    }
}

/// Examines an engine and a gateway with this fault, with all checks enabled.
async fn examine(fault: Fault) -> Told {
    let engine = Engine::new(fault);
    let (url, events) = (engine.serve().await, engine.publish().await);
    let gateway = match fault {
        Fault::NoGateway => SocketAddr::from(([127, 0, 0, 1], 1)),
        _ => gateway::serve(fault, engine).await,
    };
    ask(&[
        &format!("http://{url}"),
        "--gateway",
        &format!("http://{gateway}/v1"),
        "--gateway-metrics",
        &format!("http://{gateway}/metrics"),
        "--events",
        &format!("tcp://{events}"),
        "--allow-reset",
        "--timeout-s",
        "60",
    ])
    .await
}

/// Each fault, and the only check that may report it.
const SEEDED: [(Fault, &str, &str); 34] = [
    (Fault::NoCaching, "caching", "fail"),
    (Fault::NeverReused, "caching", "fail"),
    (Fault::LongBlocks, "least-reusable", "warn"),
    (Fault::Unreported("chat"), "cached-tokens/chat", "fail"),
    (
        Fault::Unreported("completions"),
        "cached-tokens/completions",
        "fail",
    ),
    (
        Fault::Unreported("responses"),
        "cached-tokens/responses",
        "fail",
    ),
    (
        Fault::Unreported("messages"),
        "cached-tokens/messages",
        "fail",
    ),
    (Fault::ReportedAsZero("chat"), "cached-tokens/chat", "fail"),
    (
        Fault::ReportedAsZero("messages"),
        "cached-tokens/messages",
        "fail",
    ),
    (Fault::Unsalted("chat"), "salts/chat", "fail"),
    (Fault::Unsalted("completions"), "salts/completions", "fail"),
    (Fault::Unsalted("responses"), "salts/responses", "fail"),
    (Fault::Unsalted("messages"), "salts/messages", "fail"),
    (Fault::SaltedInVain, "salts/completions", "warn"),
    (Fault::Date, "template-date", "warn"),
    (Fault::ShuffledTools, "tool-order", "fail"),
    (Fault::NoEvents, "events", "fail"),
    (Fault::SilentEvents, "events", "fail"),
    (Fault::OtherEvents, "events-agree", "fail"),
    (Fault::NoGateway, "gateway", "fail"),
    (Fault::DroppedFields, "gateway-forwards", "fail"),
    (Fault::NoUsage, "gateway-forwards", "fail"),
    (Fault::BrokenStream, "gateway-streams", "fail"),
    (Fault::SilentStream, "gateway-streams", "warn"),
    (Fault::Blind, "gateway-orders", "fail"),
    (Fault::PassedOn, "gateway-orders", "fail"),
    (Fault::OtherEngine, "gateway-orders", "fail"),
    (Fault::TwoMinds, "gateway-agree", "fail"),
    (Fault::DroppedSalt, "gateway-salts", "fail"),
    (
        Fault::Metrics("wasmcustom_foreword_feed_key_mismatches_total{} 4"),
        "gateway-decisions",
        "fail",
    ),
    (
        Fault::Metrics("foreword_matched_percent_bucket{le=\"0.5\"} 462"),
        "gateway-decisions",
        "warn",
    ),
    (
        Fault::Metrics("foreword_corrections_total{} 90"),
        "gateway-decisions",
        "warn",
    ),
    (Fault::UnannouncedReset, "residency", "fail"),
    (Fault::BelievedReset, "residency", "fail"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_engine_and_gateway_pass_every_check() {
    let told = examine(Fault::None).await;
    let other: Vec<_> = told
        .findings
        .iter()
        .filter(|(_, status, _)| status != "ok")
        .collect();
    assert!(other.is_empty(), "{other:#?}");
    assert_eq!(told.code, Some(0));
    for (_, check, _) in SEEDED {
        assert_eq!(told.status(check), "ok");
    }
    // Every check has a fault that it detects.
    for (check, ..) in &told.findings {
        assert!(SEEDED.iter().any(|(_, of, _)| of == check), "{check}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_seeded_fault_is_found_and_no_other() {
    let asked =
        SEEDED.map(|(fault, check, status)| (fault, check, status, tokio::spawn(examine(fault))));
    let mut wrong = Vec::new();
    for (fault, check, status, told) in asked {
        let told = told.await.unwrap();
        let expected = if status == "fail" { 3 } else { 0 };
        if told.wrong() != [(check, status)] || told.code != Some(expected) {
            wrong.push(format!(
                "{fault:?}: {:?}, exit code {:?}",
                told.wrong(),
                told.code
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A clock in the template changes every prefix: prompts that contain it are never reused.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_in_the_template_fails_with_what_it_costs() {
    let told = examine(Fault::Clock).await;
    assert_eq!(told.code, Some(3));
    assert_eq!(told.status("template-date"), "fail");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_given_is_skipped_with_the_line_that_gives_it() {
    let engine = Engine::new(Fault::None);
    let told = ask(&[&format!("http://{}/v1/", engine.serve().await)]).await;
    assert_eq!((told.code, told.wrong()), (Some(0), vec![]));
    for (check, option) in [("events", "--events"), ("residency", "--allow-reset")] {
        assert_eq!(told.status(check), "skipped");
        let found = told.findings.iter().find(|(name, ..)| name == check);
        let remedy = found.unwrap().2["remedy"].as_str().unwrap();
        assert!(remedy.contains(option), "{remedy}");
    }
    assert_eq!(engine.resets(), 0);
}

#[tokio::test]
async fn an_engine_that_does_not_answer_exits_with_1_and_says_so() {
    let output = Command::new(env!("CARGO_BIN_EXE_foreword"))
        .args(["doctor", "http://127.0.0.1:1"])
        .output()
        .await
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
    assert!(
        error.contains("the engine does not answer: http://127.0.0.1:1/v1/models"),
        "{error}"
    );
}
