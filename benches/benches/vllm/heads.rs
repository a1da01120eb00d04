//! A head that breaks: twelve tools and a system text before the documents, of which one part differs from request to
//! request. The cached share of an unbroken head is compared with that of each broken one, as it comes and stabilised.

use anyhow::{Result, ensure};
use foreword_benches::xquad::Corpus;
use foreword_tests::http::{Client, post};
use foreword_tests::{Gateway, GatewayOptions};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Usage;
use super::engine::{MODEL, Vllm};

/// The stabilised share may be this many percentage points below that of the unbroken head.
const MUST_HOLD: f64 = 3.0;
const TOOLS: usize = 12;
/// Arguments of each tool: with more, prompts exceed the checkpoint's context, whose tokenizer knows little of JSON.
const PROPERTIES: usize = 2;
const DOCUMENTS: usize = 5;

/// Which part of the head differs from request to request.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Nothing,
    Tools,
    Keys,
    Clock,
    Session,
    User,
}

/// Prints the table. Returns whether each broken head, stabilised, is cached as an unbroken one is.
pub(crate) fn heads(vllm: &Vllm, corpus: &Corpus, requests: usize, rank: &Value) -> Result<bool> {
    let share = |bodies: &[String], mode| share(vllm, bodies, mode, rank);
    let unbroken = share(&bodies(corpus, requests, Broken::Nothing), "report")?;
    println!(
        "\n| head | as it comes | stabilised | below the unbroken |\n| --- | ---: | ---: | ---: |\n\
         | unbroken | {unbroken:.1} % | | |"
    );
    let mut holds = true;
    for (name, broken) in [
        ("tools in another order", Broken::Tools),
        ("keys of tools in another order", Broken::Keys),
        ("a clock", Broken::Clock),
        ("a session's id", Broken::Session),
        ("the user's name and desk at the end", Broken::User),
    ] {
        let bodies = bodies(corpus, requests, broken);
        let came = share(&bodies, "report")?;
        let stabilised = share(&bodies, "apply")?;
        let below = unbroken - stabilised;
        println!("| {name} | {came:.1} % | {stabilised:.1} % | {below:.1} |");
        holds &= below <= MUST_HOLD;
    }
    println!("\n(must hold: at most {MUST_HOLD} points below the unbroken head)");
    Ok(holds)
}

/// Returns the cached share of all prompt tokens, in percent, with this `rank` and `head.mode`.
fn share(vllm: &Vllm, bodies: &[String], mode: &str, rank: &Value) -> Result<f64> {
    vllm.reset()?;
    let options = GatewayOptions {
        plugin: Some(json!({"ordering": {"head": {"mode": mode}, "rank": rank}})),
        ..GatewayOptions::new(vllm.address)
    };
    let gateway = Gateway::start(&options)?;
    let mut client = Client::connect(gateway.address())?;
    let mut total = Usage::default();
    for body in bodies {
        client.send(&post(body.as_bytes()))?;
        let response = client.response()?;
        ensure!(
            response.status == 200,
            "answered {}: {}",
            response.status,
            String::from_utf8_lossy(&response.body)
        );
        let usage = Usage::of(&response.json()?)?;
        total.prompt += usage.prompt;
        total.cached += usage.cached;
    }
    Ok(total.share())
}

/// The requests, with XQuAD's questions and their best paragraphs.
fn bodies(corpus: &Corpus, requests: usize, broken: Broken) -> Vec<String> {
    let retrievals = corpus.retrievals().into_iter().take(requests);
    let body = |(nth, paragraphs, question): (usize, &[usize], &str)| {
        let documents = paragraphs.iter().map(|&paragraph| {
            let text = &corpus.paragraphs[paragraph];
            format!("<document id=\"{paragraph:03}\">{text}</document>\n")
        });
        let content = documents.collect::<String>() + question;
        let messages = json!([
            {"role": "system", "content": system(broken, nth as u64)},
            {"role": "user", "content": content},
        ]);
        let tools = tools(broken, nth as u64);
        // Printed by hand, because the order of keys matters.
        format!(
            r#"{{"model":"{MODEL}","max_tokens":1,"temperature":0,"messages":{messages},"tools":[{tools}]}}"#
        )
    };
    let numbered = retrievals.enumerate();
    numbered
        .map(|(nth, retrieval)| {
            let best = &retrieval.paragraphs[..DOCUMENTS.min(retrieval.paragraphs.len())];
            body((nth, best, &retrieval.question))
        })
        .collect()
}

fn system(broken: Broken, nth: u64) -> String {
    let names = [
        "Ann Lee", "Bob Ray", "Eve Fox", "Max Roe", "Zoe Poe", "Ian Orr",
    ];
    let varying = |part, value: u64| if broken == part { value } else { 0 };
    let seconds = varying(Broken::Clock, nth * 7);
    let session = varying(Broken::Session, draw("session", nth) >> 32);
    let user = varying(Broken::User, draw("user", nth)) as usize % 240;
    let rules = (0..12).map(|rule| {
        format!("Rule {rule}: answer from the documents, name the one that says it, and say so where none of them does.\n")
    });
    format!(
        "You are the assistant of a company's help desk.\n\
         The current date and time is 2026-11-22 {:02}:{:02}:{:02}.\nSession ID: {session:08x}\n\
         {}You are talking to {}, desk {}.",
        8 + seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60,
        rules.collect::<String>(),
        names[user % names.len()],
        1 + user / names.len(),
    )
}

fn tools(broken: Broken, nth: u64) -> String {
    let tool = |number: usize| {
        let properties = (0..PROPERTIES).map(|property| {
            let description = Value::from(format!(
                "What tool {number} does with argument {property}, told at some length."
            ));
            let members = [
                ("type", r#""string""#.to_owned()),
                ("description", description.to_string()),
            ];
            (
                format!("argument_{number}_{property}"),
                object(broken, nth, &members),
            )
        });
        let properties: Vec<(String, String)> = properties.collect();
        let named: Vec<(&str, String)> = properties
            .iter()
            .map(|(name, value)| (&**name, value.clone()))
            .collect();
        let parameters = [
            ("type", r#""object""#.to_owned()),
            ("properties", object(broken, nth, &named)),
            ("required", json!([properties[0].0]).to_string()),
        ];
        let members = [
            ("name", format!(r#""tool_{number}""#)),
            (
                "description",
                format!(r#""Tool number {number} of a kind that agents are given.""#),
            ),
            ("parameters", object(broken, nth, &parameters)),
        ];
        let function = object(broken, nth, &members);
        object(
            broken,
            nth,
            &[("type", r#""function""#.to_owned()), ("function", function)],
        )
    };
    let mut tools: Vec<String> = (10..10 + TOOLS).map(tool).collect();
    if broken == Broken::Tools {
        tools.sort_by_cached_key(|tool| draw(tool, nth));
    }
    tools.join(",")
}

/// An object of these members, in an order of this request's own where the keys are what is broken.
fn object(broken: Broken, nth: u64, members: &[(&str, String)]) -> String {
    let mut members: Vec<&(&str, String)> = members.iter().collect();
    if broken == Broken::Keys {
        members.sort_by_cached_key(|(key, _)| draw(key, nth));
    }
    let members: Vec<String> = members
        .iter()
        .map(|(key, value)| format!("\"{key}\":{value}"))
        .collect();
    format!("{{{}}}", members.join(","))
}

/// A number drawn for these words in this request.
fn draw(words: &str, nth: u64) -> u64 {
    xxh3_64_with_seed(words.as_bytes(), nth)
}
