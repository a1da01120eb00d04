//! What it takes to read bodies that are made to cost: a measurement, for `benches/results/robustness.md`. That the work is linear is
//! asserted elsewhere, by count (`body::hostile` and the fuzz targets).

use crate::hostile;
use foreword_ordering::{Config, Orderer, Skip, Tenant, parse};
use std::time::{Duration, Instant};

const BYTES: usize = 4 << 20;

/// The least of three.
fn time<T>(mut run: impl FnMut() -> T) -> Duration {
    let runs = (0..3).map(|_| {
        let start = Instant::now();
        std::hint::black_box(run());
        start.elapsed()
    });
    runs.min().unwrap()
}

/// `cargo test --release -p foreword-ordering --test ordering hostile_bodies -- --ignored --nocapture`; with `SHAPE=WORDS` only the
/// bodies that are called so, for whoever counts instructions.
#[test]
#[ignore = "a measurement: it takes a release build, and asserts nothing that a clock cannot"]
fn times_of_reading() {
    let all =
        br#"{"documents": {"numbered": true, "rules": true, "headings": true, "outputs": true}}"#;
    let all = Config::from_json(all).unwrap();
    let shape = std::env::var("SHAPE").unwrap_or_default();
    let mut rows: Vec<(Duration, Duration, String)> = Vec::new();
    for (name, body) in hostile::bodies(BYTES) {
        if !name.contains(&shape) {
            continue;
        }
        let body = body.as_bytes();
        let default = time(|| parse(body, &Config::default()).is_ok());
        let everything = time(|| parse(body, &all).is_ok());
        rows.push((default, everything, name));
    }
    rows.sort();
    println!("{:>9} {:>9}  4 MiB of", "default", "all on");
    for (default, everything, name) in rows.iter().rev() {
        let [default, everything] = [default, everything].map(|time| time.as_secs_f64() * 1e3);
        println!("{default:>6.1} ms {everything:>6.1} ms  {name}");
    }
}

#[test]
fn hostile_bodies_are_rewritten_or_left_alone() {
    for (name, body) in hostile::bodies(20_000) {
        let rewrite = Orderer::new(Config::default()).rewrite(Tenant::default(), body.as_bytes());
        if let Ok(Some(sent)) = rewrite.map(|rewrite| rewrite.body) {
            serde_json::from_slice::<&serde_json::value::RawValue>(&sent)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

#[test]
fn a_chat_of_more_messages_than_any_has_is_left_as_it_came() {
    let chat = |messages: usize| {
        let message = r#"{"role":"user","content":"<doc>a</doc>"}"#;
        let others = vec!["{}"; messages - 1].join(",");
        format!(r#"{{"messages":[{message},{others}]}}"#)
    };
    let mut orderer = Orderer::new(Config::default());
    let mut send = |messages| orderer.rewrite(Tenant::default(), chat(messages).as_bytes());
    assert!(send(8_192).is_ok());
    let skip = send(8_193).err().unwrap();
    assert_eq!(skip, Skip::TooManyMessages { found: 8_193 });
    assert_eq!(
        skip.to_string(),
        "the request has 8193 messages and parts of messages, more than the limit of 8192"
    );
    let messages = vec!["{}"; 8_193].join(",");
    for body in [
        format!(r#"{{"message":"a","chat_history":[{messages}]}}"#),
        format!(r#"{{"input":[{messages}]}}"#),
        format!(r#"{{"contents":[{messages}]}}"#),
    ] {
        let skip = orderer.rewrite(Tenant::default(), body.as_bytes()).err();
        assert_eq!(skip, Some(Skip::TooManyMessages { found: 8_193 }));
    }
    // The parts of contents count too, in however many messages they stand.
    let content = |parts: usize| {
        format!(
            r#"{{"role":"user","content":[{}]}}"#,
            vec!["{}"; parts].join(",")
        )
    };
    for (parts, is_too_many) in [(4_095, false), (4_096, true)] {
        let body = format!(r#"{{"messages":[{},{}]}}"#, content(4_095), content(parts));
        let skip = orderer.rewrite(Tenant::default(), body.as_bytes()).err();
        let expected = if is_too_many {
            Skip::TooManyMessages { found: 8_193 }
        } else {
            Skip::NoDocuments
        };
        assert_eq!(skip, Some(expected), "{parts}");
    }
}
