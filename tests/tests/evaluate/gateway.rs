//! Tests that the library sends the same requests as real Envoy with the filter, and that the answers are the same.

use super::{Evaluation, answer, arm, error_of, figures_of, first_document, question};
use foreword_tests::{Gateway, GatewayOptions, Host, Received, Upstream, artifacts};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Returns questions whose documents overlap, and a chat that returns to them.
fn evaluation() -> Evaluation {
    let mut lines: Vec<_> = (0..8).map(|number| question(number, number % 3)).collect();
    let long = "A text that is longer than the hint that stands for it is. ".repeat(3);
    let turn = |number: usize| {
        let mut turn = question(number, 1);
        let documents = turn["documents"].as_array_mut().unwrap();
        documents.insert(1, json!({"id": "long", "text": long}));
        turn
    };
    for chat in 20..23 {
        lines.push(json!({"turns": [turn(chat), turn(chat + 10), turn(chat)]}));
    }
    Evaluation::of(&lines)
}

/// Returns arguments without salts, in which bodies would differ.
fn arguments(gateway: &SocketAddr) -> Vec<String> {
    let gateway = format!("http://{gateway}");
    [
        "--json",
        "--arms",
        "retrieval,dedup+hint,gateway",
        "--no-cache-salt",
        "--max-tokens",
        "8",
        "--gateway",
        &gateway,
    ]
    .map(String::from)
    .to_vec()
}

/// Returns a field of an arm's answers, by question and turn.
fn kept(evaluation: &Evaluation, arm: &str, member: &str) -> Vec<(String, Value)> {
    let records = evaluation.records();
    let of_arm = records.iter().filter(|record| record["arm"] == arm);
    let mut kept: Vec<_> = of_arm
        .map(|record| {
            (
                format!("{} {}", record["case"], record["turn"]),
                record[member].clone(),
            )
        })
        .collect();
    kept.sort_by(|left, right| left.0.cmp(&right.0));
    kept
}

#[test]
fn the_same_bodies_are_sent() {
    // Requests through the gateway carry headers of Envoy's.
    let is_through = |request: &Received| request.header("x-request-id").is_some();
    let upstream =
        Upstream::scripted(|request, reply| answer(reply, &first_document(request))).unwrap();
    let gateway = Gateway::start(&GatewayOptions::new(upstream.address())).unwrap();
    let evaluation = evaluation();
    let arguments = arguments(&gateway.address());
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let output = evaluation.run(&upstream, &arguments);
    let figures = figures_of(&output);
    assert!(!error_of(&output).contains("warning"), "the filter reports");
    assert!(arm(&figures, "dedup+hint")["moved"].as_u64().unwrap() > 0);
    assert!(
        arm(&figures, "dedup+hint")["deduplicated"]
            .as_u64()
            .unwrap()
            > 0
    );

    let received = upstream.received();
    let (through, direct): (Vec<_>, Vec<_>) = received.iter().partition(|r| is_through(r));
    assert_eq!((through.len(), direct.len()), (17, 34));
    // Turn by turn, the library also sent what came through Envoy.
    let mut unmatched: Vec<_> = direct.iter().map(|request| request.text()).collect();
    for request in through {
        let text = request.text();
        let same = unmatched.iter().position(|other| *other == text);
        let same = same.unwrap_or_else(|| panic!("only Envoy sent {text}"));
        unmatched.swap_remove(same);
    }
    // The same holds for every one of these under `dedup+hint`; the rest are retrieval order's.
    let hashes = |arm: &str| kept(&evaluation, arm, "answer");
    assert_eq!(hashes("dedup+hint"), hashes("gateway"));
    let retrieval = arm(&figures, "retrieval");
    assert_eq!((&retrieval["moved"], unmatched.len()), (&json!(0), 17));
    assert!(
        unmatched
            .iter()
            .all(|body| !body.contains("priority order"))
    );
}

#[test]
fn a_model_gives_the_same_answers_through_the_gateway() {
    let model = artifacts::smollm2().unwrap();
    let host = Host::start(&model, &["--name", "m", "--kv-tokens", "16384"]).unwrap();
    let gateway = Gateway::start(&GatewayOptions::new(host.address())).unwrap();
    let evaluation = Evaluation::of(&handbook()).scored();
    let arguments = arguments(&gateway.address());
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let output = evaluation.command(host.address(), &arguments).output();
    let figures = figures_of(&output.unwrap());
    let answers = kept(&evaluation, "dedup+hint", "answer");
    assert_eq!(answers.len(), 7);
    assert!(answers.iter().all(|(_, answer)| answer != ""));
    assert_eq!(answers, kept(&evaluation, "gateway", "answer"));
    assert_eq!(
        kept(&evaluation, "dedup+hint", "prompt_tokens"),
        kept(&evaluation, "gateway", "prompt_tokens")
    );
    let gateway = arm(&figures, "gateway");
    assert!(gateway["reused"].as_f64().unwrap() > 0.0);
    // The gateway arranges a forced answer's prompt as it arranged the asked one.
    let likelihood = |name: &str| arm(&figures, name)["answer_logprob"]["mean"].clone();
    assert_eq!(likelihood("gateway"), likelihood("dedup+hint"));
    let nats = likelihood("gateway").as_f64().unwrap();
    assert!((-8.0..0.0).contains(&nats), "{figures}");
}

/// Returns four questions and a chat of three turns about the handbook, with two documents each.
fn handbook() -> Vec<Value> {
    let read = |name: &str| -> Vec<Value> {
        let path = artifacts::repository().join("examples/handbook").join(name);
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let documents = read("documents.jsonl");
    let turns = read("questions.jsonl")
        .into_iter()
        .zip(read("retrieved.jsonl"))
        .map(|(asked, retrieved)| {
            let found = retrieved["documents"].as_array().unwrap().iter().take(2);
            let found: Vec<_> = found
                .map(|id| documents.iter().find(|document| document["id"] == *id))
                .collect();
            json!({"question": asked["question"], "documents": found, "answers": [asked["answer"]]})
        });
    let answered = turns.filter(|turn| turn["answers"][0].is_string());
    let turns: Vec<_> = answered.take(7).collect();
    let (alone, chats) = turns.split_at(4);
    let chats = chats.chunks(3).map(|turns| json!({ "turns": turns }));
    alone.iter().cloned().chain(chats).collect()
}
