//! The time that the filter adds to one request: from its first byte sent to the first event of the answer.
//!
//! `cargo bench -p foreword-benches -- latency`
//!
//! One client has one connection to each Envoy and sends one request at a time, alternating between the Envoys, so that
//! other load on the machine affects all alike. The order is drawn anew in each round, so that no Envoy always has the
//! same predecessor. Requests have 16 KB and 15 documents; the upstream answers at once with the first event of a stream,
//! which ends a little later, as an engine's does: if both came together, what a filter does at the end of a request would
//! be timed with what it does before. The clock starts before the request is written, because on a busy core Envoy may be
//! done with it before the writing call returns.
//!
//! Besides an Envoy with no filter, there are Envoys whose filters only buffer: Envoy's own buffer filter, which shows
//! the cost of waiting for whole bodies; a minimal Wasm filter (`benches/buffer`); the same with the body copied into
//! the VM and back; and the same with the body scanned and hashed once and a header set each way, the least that
//! rewriting in Wasm costs.
//!
//! ```text
//! … latency requests=6000 turn=1       requests to each Envoy, and how many in a row before the next Envoy
//! … latency end_us=2000                microseconds between the first event and the end of the answer
//! FOREWORD_BEFORE=…/old.wasm …    another build of the filter beside this one
//! ```
//!
//! With `turn=1`, nine Envoys, each with a VM, evict each other from the processor's caches with every request. An
//! Envoy that works alone is warmer, as with `turn=50`.

use std::time::Duration;

use anyhow::Result;
use foreword_benches::variant::Variant;
use foreword_benches::{Arguments, chats};
use foreword_ordering::random::Random;
use foreword_tests::artifacts::{dynamic_module, wasm_module};
use foreword_tests::http::post;
use foreword_tests::{GatewayOptions, Shell, Upstream};
use serde_json::json;

const REQUESTS: usize = 6_000;
const END_US: u64 = 2_000;
const BUFFER: &str = "- name: envoy.filters.http.buffer
  typed_config:
    \"@type\": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer
    max_request_bytes: 4194304
";
/// Most time that the filter may add, from median to median.
const WASM_ADDS: Duration = Duration::from_micros(500);
const DYNAMIC_ADDS: Duration = Duration::from_micros(200);

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    let requests = if arguments.benching {
        arguments.number("requests").unwrap_or(REQUESTS)
    } else {
        20
    };
    let turn = arguments.number("turn").unwrap_or(1).max(1);
    let bodies: Vec<Vec<u8>> = chats().iter().map(|chat| post(chat.as_bytes())).collect();
    let end = Duration::from_micros(arguments.number("end_us").unwrap_or(END_US));
    let upstream = Upstream::scripted_forgetful(move |_, reply| {
        reply.begin_events()?;
        reply.event(r#"{"choices": []}"#)?;
        std::thread::sleep(end);
        reply.event("[DONE]")?;
        reply.end_events()
    })?;

    let without = GatewayOptions {
        plugin: None,
        ..GatewayOptions::new(upstream.address())
    };
    let buffer = GatewayOptions {
        filters_before: Some(BUFFER.to_owned()),
        ..without.clone()
    };
    let wasm = GatewayOptions {
        shell: Shell::Wasm,
        ..GatewayOptions::new(upstream.address())
    };
    let dynamic = GatewayOptions {
        shell: Shell::Dynamic,
        module: Some(dynamic_module("release")?),
        ..GatewayOptions::new(upstream.address())
    };
    let holding = GatewayOptions {
        module: Some(wasm_module("foreword-buffer")?),
        ..wasm.clone()
    };
    let copying = GatewayOptions {
        plugin: Some(json!({"copy": true})),
        ..holding.clone()
    };
    let least = GatewayOptions {
        plugin: Some(json!({"copy": true, "read": true})),
        ..holding.clone()
    };
    let with = |plugin| GatewayOptions {
        plugin: Some(plugin),
        ..wasm.clone()
    };
    let unlogged = with(json!({"log_fields": false}));
    let alone = with(json!({"log_fields": false, "agreement": {"entries": 0}}));
    let unexplained = with(json!({"explain": {"requests": 0}}));
    let before = std::env::var_os("FOREWORD_BEFORE").map(|module| GatewayOptions {
        module: Some(module.into()),
        ..wasm.clone()
    });
    let mut variants = vec![
        Variant::start("no filter", &without, "")?,
        Variant::start("buffer filter, Envoy's", &buffer, "")?,
        Variant::start("buffer filter, Wasm", &holding, "")?,
        Variant::start("the same, copying", &copying, "")?,
        Variant::start("the same, and reading once", &least, "")?,
        Variant::start("foreword, Wasm", &wasm, "documents=15")?,
        Variant::start("the same, no log fields", &unlogged, "documents=15")?,
        Variant::start("the same, no ring either", &alone, "documents=15")?,
        Variant::start("the same, explaining nothing", &unexplained, "documents=15")?,
        Variant::start("foreword, dynamic", &dynamic, "documents=15")?,
    ];
    if let Some(before) = before {
        variants.push(Variant::start("foreword before", &before, "documents=15")?);
    }
    let warm_up = requests / 10;
    let mut random = Random::new(1);
    let mut order: Vec<usize> = (0..variants.len()).collect();
    for round in 0..(requests + warm_up).div_ceil(turn) {
        random.shuffle(&mut order);
        for &index in &order {
            for number in round * turn..(round + 1) * turn {
                variants[index].ask(&bodies[number % bodies.len()], number >= warm_up)?;
            }
        }
    }

    println!(
        "first event of an answer, {requests} requests of 16 KB to each, one at a time, {turn} in a row"
    );
    println!(
        "| | median | p99 | median added | of Envoy's buffer's time | of the Wasm buffer's | in the filter |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let base = variants[0].quantile(0.5);
    let buffered = [1, 2].map(|peer: usize| variants[peer].quantile(0.5).as_secs_f64());
    for variant in &mut variants {
        let (median, slow) = (variant.quantile(0.5), variant.quantile(0.99));
        println!(
            "| {} | {} µs | {} µs | {} µs | {:.2} | {:.2} | {} |",
            variant.name,
            median.as_micros(),
            slow.as_micros(),
            median.saturating_sub(base).as_micros(),
            median.as_secs_f64() / buffered[0],
            median.as_secs_f64() / buffered[1],
            variant
                .in_filter()?
                .map_or_else(String::new, |us| format!("{us:.0} µs")),
        );
    }
    let added = |variant: &mut Variant| variant.quantile(0.5).saturating_sub(base);
    let [_, _, _, _, _, wasm, _, _, _, dynamic, ..] = &mut variants[..] else {
        unreachable!("ten at least")
    };
    let holds = added(wasm) < WASM_ADDS && added(dynamic) < DYNAMIC_ADDS;
    println!("must hold: Wasm adds less than {WASM_ADDS:?}, dynamic less than {DYNAMIC_ADDS:?}");
    arguments.require(holds)
}
