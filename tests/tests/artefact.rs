//! The shipped module under wasmtime, without a proxy: what a request costs it, to the instruction, and that no bytes make it
//! trap.

use foreword_fuzz::{Target, mutated};
use foreword_ordering::random::Random;
use foreword_ordering::{Config, Orderer, Tenant};
use foreword_rehearse::{Answer, Limits, Module, Proxy, Request, Setup, StartError};
use foreword_tests::artifacts::filter_module;
use std::path::Path;
use std::sync::LazyLock;

#[allow(dead_code, unreachable_pub)]
#[path = "../../wasm-module/simulation/tests/support/workloads.rs"]
mod workloads;

/// The module, compiled once for all tests.
static MODULE: LazyLock<Module> =
    LazyLock::new(|| Module::read(&filter_module().unwrap(), Limits::default()).unwrap());

const CHAT: &str = "/v1/chat/completions";

fn proxy(configuration: &[u8], workers: usize) -> Result<Proxy<'static>, StartError> {
    let setup = Setup {
        configuration: configuration.to_vec(),
        workers,
        ..Setup::default()
    };
    Proxy::start(&MODULE, setup)
}

/// Chat requests of 16 KB with 15 tagged documents, from 5,000 by Zipf's law: the benches' standard request.
fn standard(requests: usize) -> Vec<Vec<u8>> {
    const DOCUMENTS: usize = 15;
    const TEXT_BYTES: usize = 16_000 / DOCUMENTS - 40;
    const WORDS: &str =
        "retrieved text of a plausible length, with some punctuation and a number like 42. ";
    let chat = |documents: Vec<u64>| {
        let documents: String = (documents.iter())
            .map(|document| {
                let mut text = format!("{document}: ");
                text.extend(WORDS.chars().cycle().take(TEXT_BYTES - text.len()));
                format!(r#"<document id=\"{document}\">{text}</document>\n"#)
            })
            .collect();
        format!(
            r#"{{"model": "m", "messages": [{{"role": "system", "content": "Answer briefly."}}, {{"role": "user", "content": "{documents}What does it say?"}}], "max_tokens": 64, "stream": false}}"#
        )
    };
    let trace = workloads::zipf_topics(1, requests, 5_000, DOCUMENTS);
    let lists = trace.iter().map(|request| {
        let documents = request.documents.iter();
        documents.map(|document| document.fingerprint.0).collect()
    });
    lists.map(|list| chat(list).into_bytes()).collect()
}

/// Instructions of the median request, and calls into the proxy.
fn cost(workers: usize) -> [u64; 2] {
    let mut proxy = proxy(b"{}", workers).unwrap();
    let outcomes: Vec<_> = (standard(300).into_iter())
        .map(|body| proxy.play(&Request::post(CHAT, body)).unwrap())
        .collect();
    assert!(outcomes.iter().all(|outcome| outcome.fault.is_none()));
    let median = |mut values: Vec<u64>| {
        values.sort_unstable();
        values[values.len() / 2]
    };
    [
        median(outcomes.iter().map(|outcome| outcome.fuel).collect()),
        median(outcomes.iter().map(|outcome| outcome.calls).collect()),
    ]
}

/// The most that the median standard request may cost: 2,002,187 instructions and 37 calls on 25 November 2026, and a
/// twentieth more instructions. It was 1,953,040 and 35 before the access log told what the client's order would have
/// found and the prompt's estimated tokens, and 2,995,692 while a document's words were looked for three times to explain a miss.
/// A change that costs more raises this, and says why.
const BUDGET: [u64; 2] = [2_100_000, 37];

#[test]
fn a_standard_request_stays_within_its_budget_of_instructions_and_calls() {
    let [fuel, calls] = cost(1);
    println!("{fuel} instructions, {calls} calls into the proxy");
    assert!(
        fuel <= BUDGET[0] && calls <= BUDGET[1],
        "{fuel} instructions and {calls} calls, {BUDGET:?} are granted"
    );
    assert!(
        fuel >= BUDGET[0] / 10 * 8,
        "{fuel} instructions: lower the budget of {}, which nothing would reach any more",
        BUDGET[0]
    );
    assert_eq!(cost(1), [fuel, calls], "not the same in every run");
}

#[test]
fn workers_that_share_data_order_like_one() {
    let matched = |workers: usize| {
        let mut proxy = proxy(b"{}", workers).unwrap();
        let reports = standard(100).into_iter().map(|body| {
            let outcome = proxy.play(&Request::post(CHAT, body)).unwrap();
            let report = outcome.response_header("x-foreword").unwrap().to_vec();
            (report, outcome.forwarded.unwrap().body)
        });
        reports.collect::<Vec<_>>()
    };
    assert!(matched(1) == matched(3));
}

fn target(name: &str) -> Target {
    Target::named(name).unwrap()
}

/// A target's seeds, what fuzzing once found, what is kept of where it has been, and changes of all.
fn inputs(name: &str, changes: usize) -> Vec<Vec<u8>> {
    let mut inputs = (target(name).seeds)();
    for kept in ["found", "corpus"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        let files = std::fs::read_dir(folder.join(kept).join(name));
        let mut files: Vec<_> = files
            .into_iter()
            .flatten()
            .map(|file| file.unwrap().path())
            .collect();
        files.sort();
        inputs.extend(files.iter().map(|file| std::fs::read(file).unwrap()));
    }
    let mut random = Random::new(11);
    let known = inputs.len();
    for _ in 0..changes {
        let mut any = || random.below(known as u64) as usize;
        let (input, other) = (any(), any());
        let changed = mutated(&inputs[input], &inputs[other], &mut random);
        inputs.push(changed);
    }
    inputs
}

/// Bodies of the fuzz targets: those of `bodies` stand behind two bytes of settings, a 0 byte between two.
fn bodies() -> Vec<Vec<u8>> {
    let several = inputs("bodies", 300).into_iter().flat_map(|input| {
        let bodies = input.get(2..).unwrap_or_default().split(|byte| *byte == 0);
        bodies.map(<[u8]>::to_vec).collect::<Vec<_>>()
    });
    several.chain(inputs("json", 100)).collect()
}

#[test]
fn no_body_of_the_fuzz_corpus_traps_the_artefact_and_each_is_decided_as_natively() {
    let mut proxy = proxy(b"{}", 1).unwrap();
    let mut native = Orderer::new(Config::default());
    let mut changed = 0;
    for body in bodies() {
        let outcome = proxy.play(&Request::post(CHAT, body.clone())).unwrap();
        assert_eq!(outcome.fault, None, "{}", String::from_utf8_lossy(&body));
        let sent = outcome.forwarded.unwrap().body;
        let rewrite = native.rewrite(Tenant::default(), &body);
        let expected = rewrite.ok().and_then(|rewrite| rewrite.body);
        changed += usize::from(expected.is_some());
        assert!(
            sent == expected.unwrap_or(body),
            "{}",
            String::from_utf8_lossy(&sent)
        );
    }
    assert!(changed > 20, "{changed} bodies were rewritten");
}

#[test]
fn no_answer_of_the_fuzz_corpus_traps_the_artefact() {
    let mut proxy = proxy(b"{}", 1).unwrap();
    let body = br#"{"messages":[{"role":"user","content":"<doc>a</doc>"}]}"#;
    for answer in inputs("answers", 300) {
        let mut request = Request::post(CHAT, body.to_vec());
        request.answer = Answer::json(answer.get(1..).unwrap_or_default().to_vec());
        let outcome = proxy.play(&request).unwrap();
        assert_eq!(outcome.fault, None);
        assert!(
            outcome.response_body == request.answer.body,
            "answers go by untouched"
        );
    }
}

#[test]
fn every_configuration_of_the_fuzz_corpus_is_taken_or_refused_with_a_reason() {
    let [mut taken, mut refused] = [0, 0];
    for configuration in inputs("configurations", 200) {
        match proxy(&configuration, 1) {
            Ok(mut proxy) => {
                taken += 1;
                let outcome = proxy.play(&Request::post(CHAT, b"{}".to_vec())).unwrap();
                assert_eq!(outcome.fault, None);
            }
            Err(StartError::Refused { said }) => {
                refused += 1;
                assert!(
                    !said.is_empty(),
                    "{}",
                    String::from_utf8_lossy(&configuration)
                );
            }
            Err(other) => panic!("{other}: {}", String::from_utf8_lossy(&configuration)),
        }
    }
    assert!(
        taken > 2 && refused > 20,
        "{taken} taken, {refused} refused"
    );
}
