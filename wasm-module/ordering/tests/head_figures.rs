//! What stabilising brings: prompts of generated traces, whose heads are broken in one way each, in an unbounded prefix
//! cache. `benches/results/heads.md` has the figures; with `--nocapture` the first test prints them, and
//! `cargo test --release -p foreword-ordering --test ordering head_figures -- --ignored --nocapture` the times.

use foreword_ordering::{Config, Orderer, Skip, Tenant};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Instant;

/// How a trace's heads are broken.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    No,
    Tools,
    Keys,
    Clock,
    Session,
    User,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

/// An object of these members, in an order of its own if the keys are broken.
fn object(random: &mut Random, shuffled: bool, members: &[(&str, String)]) -> String {
    let mut members: Vec<String> = members
        .iter()
        .map(|(key, value)| format!("\"{key}\":{value}"))
        .collect();
    if shuffled {
        random.shuffle(&mut members);
    }
    format!("{{{}}}", members.join(","))
}

fn tool(random: &mut Random, shuffled: bool, nth: usize, properties: usize) -> String {
    let mut names = Vec::new();
    let mut each = Vec::new();
    for property in 0..properties {
        let name = format!("argument_{nth}_{property}");
        let text = format!(
            "\"What the tool does with its argument number {property}, told at some length.\""
        );
        let members = [("type", "\"string\"".to_owned()), ("description", text)];
        each.push((name.clone(), object(random, shuffled, &members)));
        names.push(format!("\"{name}\""));
    }
    let each: Vec<(&str, String)> = each
        .iter()
        .map(|(name, value)| (&**name, value.clone()))
        .collect();
    let properties = object(random, shuffled, &each);
    if shuffled {
        random.shuffle(&mut names);
    }
    let parameters = [
        ("type", "\"object\"".to_owned()),
        ("properties", properties),
        ("required", format!("[{}]", names.join(","))),
    ];
    let parameters = object(random, shuffled, &parameters);
    let members = [
        ("name", format!("\"tool_{nth}\"")),
        (
            "description",
            format!("\"Tool number {nth} of a kind that agents are given.\""),
        ),
        ("parameters", parameters),
    ];
    let function = object(random, shuffled, &members);
    object(
        random,
        shuffled,
        &[("type", "\"function\"".to_owned()), ("function", function)],
    )
}

fn system(random: &mut Random, broken: Broken, nth: usize) -> String {
    let names = [
        "Ann Lee", "Bob Ray", "Eve Fox", "Max Roe", "Zoe Poe", "Ian Orr",
    ];
    let clock = match broken {
        Broken::Clock => format!(
            "{:02}:{:02}:{:02}",
            8 + nth / 3_600,
            nth / 60 % 60,
            nth % 60
        ),
        _ => "08:00:00".to_owned(),
    };
    let session = if broken == Broken::Session {
        random.below(1 << 30)
    } else {
        7
    };
    let user = if broken == Broken::User {
        random.below(names.len() * 40)
    } else {
        0
    };
    let mut lines = vec![
        "You are the assistant of a company's help desk.".to_owned(),
        format!("The current date and time is 2026-11-22 {clock}."),
        format!("Session ID: {session:08x}"),
    ];
    for rule in 0..12 {
        lines.push(format!("Rule {rule}: answer from the documents, name the one that says it, and say so where none of them does."));
    }
    lines.push(format!(
        "You are talking to {}, desk {}.",
        names[user % names.len()],
        1 + user / names.len()
    ));
    lines.join("\n")
}

/// The bodies of a trace: twelve tools, a system text, five documents of forty.
fn trace(broken: Broken, requests: usize) -> Vec<String> {
    let mut random = Random(broken as u64 + 11);
    let mut choice = Random(5);
    let request = |nth| {
        let shuffled = broken == Broken::Keys;
        let mut tools: Vec<String> = (0..12)
            .map(|tool_| tool(&mut random, shuffled, tool_ + 10, 4))
            .collect();
        if broken == Broken::Tools {
            random.shuffle(&mut tools);
        }
        let topic = choice.below(6);
        let mut ids: Vec<usize> = (0..8).map(|id| topic * 7 + id).collect();
        choice.shuffle(&mut ids);
        let documents = ids[..5].iter().map(|id| {
            let words = format!("Document {id} tells what its subject is. ").repeat(20);
            format!("<doc id=\"d{id}\">{words}</doc>")
        });
        let documents: Vec<String> = documents.collect();
        let content = format!("{}\nQuestion {nth}: what is it?", documents.join("\n"));
        let messages = json!([
            {"role": "system", "content": system(&mut random, broken, nth)},
            {"role": "user", "content": content},
        ]);
        format!(
            r#"{{"model":"m","messages":{messages},"tools":[{}]}}"#,
            tools.join(",")
        )
    };
    (0..requests).map(request).collect()
}

/// The share of prompt bytes, in pages of 64, that an earlier prompt begins with, from the third request on.
fn reuse(head: &Value, bodies: &[String]) -> f64 {
    let config = json!({"head": head}).to_string();
    let mut orderer = Orderer::new(Config::from_json(config.as_bytes()).unwrap());
    let mut held: BTreeSet<String> = BTreeSet::new();
    let (mut reused, mut all) = (0, 0);
    for (nth, body) in bodies.iter().enumerate() {
        let sent = match orderer.rewrite(Tenant::default(), body.as_bytes()) {
            Ok(rewrite) => rewrite
                .body
                .map_or(body.clone(), |sent| String::from_utf8(sent).unwrap()),
            Err(Skip::NoDocuments) => body.clone(),
            Err(skip) => panic!("{skip}"),
        };
        let tools = sent.find("\"tools\":").map_or("", |at| &sent[at..]);
        let value: Value = serde_json::from_str(&sent).unwrap();
        let mut prompt = tools.to_owned();
        for message in value["messages"].as_array().unwrap() {
            prompt += &format!(
                "<{}>{}",
                message["role"],
                message["content"].as_str().unwrap()
            );
        }
        let shared = |other: &String| {
            other
                .bytes()
                .zip(prompt.bytes())
                .take_while(|(one, other)| one == other)
                .count()
        };
        let before = held.range(..prompt.clone()).next_back().map_or(0, shared);
        let behind = held.range(prompt.clone()..).next().map_or(0, shared);
        if nth >= 2 {
            reused += before.max(behind) / 64 * 64;
            all += prompt.len();
        }
        held.insert(prompt);
    }
    reused as f64 / all as f64
}

#[test]
fn a_broken_head_that_is_stabilised_reuses_nine_tenths_of_an_unbroken_one() {
    let patterns = json!({"mode": "apply", "volatile": {"learn": false, "add": [
        {"name": "desk", "pattern": "^You are talking to [^\\n]+$"}]}});
    let learned = json!({"mode": "apply", "volatile": {"patterns": false}});
    let both = json!({"mode": "apply"});
    let off = json!({"mode": "off"});
    let whole = reuse(&off, &trace(Broken::No, 200));
    assert!(whole > 0.5, "{whole}");
    println!("unbroken {:.1} %", whole * 100.0);
    let kinds = [
        Broken::Tools,
        Broken::Keys,
        Broken::Clock,
        Broken::Session,
        Broken::User,
    ];
    for broken in kinds {
        let bodies = trace(broken, 200);
        let share = |head: &Value| reuse(head, &bodies);
        let came = share(&off);
        let figures = [share(&patterns), share(&learned), share(&both)];
        println!(
            "{broken:?}: as it came {:.1} %; by pattern, learned, both {:.1?} %",
            came * 100.0,
            figures.map(|share| share * 100.0)
        );
        assert!(came < 0.9 * whole, "{broken:?} is broken");
        for share in figures {
            assert!(share >= 0.9 * whole, "{broken:?}: {share} of {whole}");
        }
    }
}

/// The tools of a request: five that all requests offer, and some of seven others.
fn offered(random: &mut Random) -> Vec<usize> {
    let all = [2, 3, 7, 8, 11];
    (0..12)
        .filter(|tool| random.below(2) == 0 || all.contains(tool))
        .collect()
}

#[test]
fn tools_that_every_request_offers_are_shared_though_others_differ() {
    let mut random = Random(3);
    let mut bodies: Vec<String> = Vec::new();
    for body in trace(Broken::No, 200) {
        let mut value: Value = serde_json::from_str(&body).unwrap();
        let tools = value["tools"].take();
        let offered = offered(&mut random).into_iter();
        value["tools"] = offered.map(|tool| tools[tool].clone()).collect();
        bodies.push(value.to_string());
    }
    // The client's tools stand by name.
    let by_name = reuse(&json!({"mode": "off"}), &bodies);
    let learned = reuse(&json!({"mode": "apply"}), &bodies);
    println!(
        "tools differ: by name {:.1} %, learned {:.1} %",
        by_name * 100.0,
        learned * 100.0
    );
    assert!(learned > by_name + 0.03, "{learned} {by_name}");
}

/// The mean time of a decision, in microseconds.
fn microseconds(head: &Value, bodies: &[String]) -> f64 {
    let config = json!({"head": head}).to_string();
    let mut best = f64::MAX;
    for _ in 0..7 {
        let mut orderer = Orderer::new(Config::from_json(config.as_bytes()).unwrap());
        for body in &bodies[..bodies.len() / 2] {
            let _ = orderer.rewrite(Tenant::default(), body.as_bytes());
        }
        let rest = &bodies[bodies.len() / 2..];
        let start = Instant::now();
        for body in rest {
            let _ = orderer.rewrite(Tenant::default(), body.as_bytes());
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / rest.len() as f64);
    }
    best
}

#[test]
#[ignore = "a measurement: see the module's text"]
fn times() {
    let off = json!({"mode": "off"});
    let bodies = |tools: usize, properties: usize, broken: Broken, turns: usize| -> Vec<String> {
        let mut random = Random(3);
        let request = |nth: usize| {
            let mut tools: Vec<String> = (0..tools)
                .map(|tool_| tool(&mut random, broken == Broken::Keys, tool_ + 100, properties))
                .collect();
            if broken == Broken::Tools {
                random.shuffle(&mut tools);
            }
            let mut messages =
                vec![json!({"role": "system", "content": system(&mut random, broken, nth)})];
            for turn in 0..turns {
                let role = if turn % 2 == 0 { "user" } else { "assistant" };
                messages
                    .push(json!({"role": role, "content": format!("Turn {turn}. ").repeat(60)}));
            }
            let documents = format!("<doc id=\"a{}\">x</doc><doc id=\"b\">y</doc>", nth % 5);
            messages
                .push(json!({"role": "user", "content": format!("{documents}\nQuestion {nth}?")}));
            let tools = tools.join(",");
            format!(
                r#"{{"model":"m","messages":{},"tools":[{tools}]}}"#,
                Value::from(messages)
            )
        };
        (0..400).map(request).collect()
    };
    for (name, tools, broken, turns) in [
        ("no tools, no history, unbroken", 0, Broken::No, 0),
        ("64 KB of tools, 40 messages, unbroken", 24, Broken::No, 40),
        (
            "64 KB of tools, 40 messages, tools shuffled",
            24,
            Broken::Tools,
            40,
        ),
        (
            "64 KB of tools, 40 messages, keys shuffled",
            24,
            Broken::Keys,
            40,
        ),
        ("64 KB of tools, 40 messages, clock", 24, Broken::Clock, 40),
        ("64 KB of tools, 40 messages, user", 24, Broken::User, 40),
    ] {
        let bodies = bodies(tools, 14, broken, turns);
        let size = bodies[0].len();
        let times =
            ["off", "report", "apply"].map(|mode| microseconds(&json!({"mode": mode}), &bodies));
        println!(
            "{name} ({size} bytes): off {:.1} µs, report {:.1}, apply {:.1}",
            times[0], times[1], times[2]
        );
    }
    let _ = off;
}
