//! Dry runs and experiments: what goes on in the client's order, and what is learnt of it.

use foreword_ordering::policy::Placement;
use foreword_ordering::random::Random;
use foreword_ordering::{Arm, Config, Experiment, Orderer, Rewrite, RewriteOptions, Tenant, Trial};
use serde_json::{Value, json};

fn orderer(config: Value) -> Orderer {
    Orderer::new(
        Config::from_json(config.to_string().as_bytes())
            .unwrap()
            .with_placement(Placement::FREE),
    )
}

fn tagged(question: &str, ids: &[&str]) -> String {
    let documents = ids
        .iter()
        .map(|id| format!("<doc id=\"{id}\">Text of {id}.</doc>"));
    let documents: Vec<_> = documents.collect();
    let content = format!("{question}\n{}\nWhy?", documents.join("\n"));
    json!({"model": "m", "messages": [{"role": "user", "content": content}]}).to_string()
}

fn with_array(ids: &[&str]) -> String {
    let documents = ids
        .iter()
        .map(|id| json!({"id": id, "text": format!("Text of {id}.")}));
    let documents: Vec<_> = documents.collect();
    json!({"model": "m", "documents": documents, "messages": [{"role": "user", "content": "Why?"}]})
        .to_string()
}

fn on(orderer: &mut Orderer, trial: Trial<'_>, body: &str) -> Rewrite {
    let options = RewriteOptions {
        trial,
        ..RewriteOptions::default()
    };
    orderer
        .rewrite_on(&options, Tenant::default(), body.as_bytes())
        .unwrap()
}

fn text(rewrite: &Rewrite) -> &str {
    std::str::from_utf8(rewrite.body.as_deref().unwrap()).unwrap()
}

#[test]
fn a_dry_run_reports_what_would_be_done_and_sends_the_body_as_it_came() {
    let mut orderer = orderer(json!({}));
    on(&mut orderer, Trial::DryRun, &tagged("", &["a", "b", "c"]));
    let dry = on(&mut orderer, Trial::DryRun, &tagged("", &["c", "a", "b"]));
    assert_eq!(dry.body, None);
    assert!(!dry.ordered);
    assert!(dry.path.runs.is_empty());
    assert_eq!(dry.report.policy, "foresight");
    assert_eq!((dry.report.matched, dry.report.moved), (3, 3));
    assert!(dry.report.hinted);
}

#[test]
fn a_dry_run_learns_the_clients_order_and_not_its_own() {
    let mut orderer = orderer(json!({}));
    on(&mut orderer, Trial::DryRun, &tagged("", &["a", "b", "c"]));
    let reversed = tagged("", &["c", "b", "a"]);
    let as_sent = |rewrite: Rewrite| rewrite.as_sent.unwrap().matched;
    assert_eq!(as_sent(on(&mut orderer, Trial::DryRun, &reversed)), 0);
    assert_eq!(as_sent(on(&mut orderer, Trial::DryRun, &reversed)), 3);
    // The engine holds both: what is ordered now may follow the order that the client sent last.
    let ordered = on(&mut orderer, Trial::None, &reversed);
    assert_eq!((ordered.report.matched, ordered.report.moved), (3, 0));
}

#[test]
fn a_dry_run_over_an_array_tells_what_rendering_would_bring() {
    let mut orderer = orderer(json!({}));
    on(&mut orderer, Trial::DryRun, &with_array(&["a", "b"]));
    let dry = on(&mut orderer, Trial::DryRun, &with_array(&["b", "a"]));
    assert_eq!(dry.body, None);
    assert_eq!((dry.report.matched, dry.as_sent.unwrap().matched), (2, 0));
}

#[test]
fn behind_a_repeat_that_is_sent_nothing_is_expected() {
    let mut orderer = orderer(json!({}));
    let body = tagged("", &["a", "b", "a", "c"]);
    on(&mut orderer, Trial::DryRun, &body);
    assert_eq!(
        orderer.nodes(),
        3,
        "the root, a, b; the engine has c behind a second a"
    );
    let again = on(&mut orderer, Trial::DryRun, &body);
    assert_eq!(again.as_sent.unwrap().matched, 2);
    assert_eq!(again.as_sent.unwrap().dropped, 0);
}

#[test]
fn what_a_dry_run_only_tried_leaves_nothing_behind() {
    let mut orderer = orderer(json!({"tree": {"max_nodes": 8}}));
    for round in 0..200 {
        let ids = [0, 1, 0, 2].map(|id| format!("{round}-{id}"));
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        on(&mut orderer, Trial::DryRun, &tagged("", &ids));
    }
    assert!(orderer.nodes() <= 8);
    assert!(orderer.view(Tenant::default(), "m", 100).len() <= 8);
    assert_eq!(orderer.remembered().messages, 0);
}

#[test]
fn the_control_arm_goes_on_as_it_came_and_is_learnt() {
    let control = Experiment::new("x", 1.0).unwrap();
    let mut orderer = orderer(json!({}));
    on(&mut orderer, Trial::None, &tagged("", &["a", "b", "c"]));
    let sent = on(
        &mut orderer,
        Trial::Experiment(&control),
        &tagged("", &["c", "b", "a"]),
    );
    assert_eq!((sent.body.is_some(), sent.arm), (false, Some(Arm::Control)));
    assert_eq!((sent.report.policy, sent.report.matched), ("retrieval", 0));
    assert!(
        !sent.path.runs.is_empty(),
        "the engine is told what stands where"
    );
    let ordered = on(&mut orderer, Trial::None, &tagged("", &["c", "a", "b"]));
    assert_eq!(ordered.report.matched, 3);
}

#[test]
fn the_control_arm_of_an_array_is_rendered_in_the_clients_order() {
    let control = Experiment::new("x", 1.0).unwrap();
    let mut orderer = orderer(json!({}));
    on(&mut orderer, Trial::None, &with_array(&["a", "b"]));
    let sent = on(
        &mut orderer,
        Trial::Experiment(&control),
        &with_array(&["b", "a"]),
    );
    let sent: Value = serde_json::from_str(text(&sent)).unwrap();
    assert!(sent["documents"].is_null());
    let words = sent["messages"][0]["content"].as_str().unwrap();
    let places = ["Text of b", "Text of a", "Why?"].map(|part| words.find(part).unwrap());
    assert!(places.is_sorted(), "{words}");
    assert!(!words.contains("priority"), "{words}");
}

#[test]
fn a_chat_stays_in_its_arm_from_turn_to_turn() {
    let experiment = Experiment::new("x", 0.5).unwrap();
    let mut orderer = orderer(json!({}));
    let mut arms = [0, 0];
    for chat in 0..64 {
        let mut messages = vec![
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": format!("<doc>one</doc><doc>two</doc> {chat}?")}),
        ];
        let mut seen = Vec::new();
        for turn in 0..3 {
            let body = json!({"model": "m", "messages": messages}).to_string();
            seen.push(
                on(&mut orderer, Trial::Experiment(&experiment), &body)
                    .arm
                    .unwrap(),
            );
            messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
            messages.push(json!({"role": "user", "content": format!("<doc>{turn}</doc> and?")}));
        }
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
        arms[usize::from(seen[0] == Arm::Control)] += 1;
    }
    assert!(arms.iter().all(|count| *count > 10), "{arms:?}");
}

#[test]
fn what_the_clients_order_would_have_found_is_told_beside() {
    let mut random = Random::new(7);
    let mut ordered = orderer(json!({}));
    let mut as_came = orderer(json!({"policy": "retrieval"}));
    let [mut client, mut matched] = [0; 2];
    for _ in 0..300 {
        let mut ids: Vec<String> = (0..8).map(|id| id.to_string()).collect();
        random.shuffle(&mut ids);
        ids.truncate(4);
        let documents = ids.iter().map(|id| {
            let text = format!("What {id} says. ").repeat(9);
            format!("<document id=\"{id}\">{text}</document>")
        });
        let content = format!("{}\nWhy?", documents.collect::<String>());
        let body = json!({"messages": [{"role": "user", "content": content}]}).to_string();
        let report = |orderer: &mut Orderer| {
            let sent = orderer.rewrite(Tenant::default(), body.as_bytes());
            sent.unwrap().report
        };
        let (ordered, as_came) = (report(&mut ordered), report(&mut as_came));
        assert_eq!(ordered.client_matched_tokens, as_came.matched_tokens);
        assert_eq!(as_came.client_matched_tokens, as_came.matched_tokens);
        client += ordered.client_matched_tokens;
        matched += ordered.matched_tokens;
    }
    assert!(
        client > 0 && matched > client + client / 4,
        "{matched}, {client}"
    );
}
