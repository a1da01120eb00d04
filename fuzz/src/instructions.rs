//! Bounds on the instructions that the shipped module takes for a request, whatever the request says.
//!
//! ```text
//!   shape ──▶ bodies of two sizes, eight times apart ──▶ foreword_filter.wasm under wasmtime ──▶ instructions a byte
//! ```
//!
//! Everything counts: parsing, the decision, the markers, the log and the ticks that follow. Two bounds hold: an absolute
//! one, and one on growth, which a cost that rises with the square of the size breaks eight times over.
//!
//! Under libFuzzer an input is a shape: a byte that chooses the configuration, then what comes first, what is repeated, and
//! what comes last, parted by a byte that is no UTF-8. An input that costs more than all before it counts as new code.

pub use crate::hostile::requests;

use crate::hostile::{BODIES, DECISIONS, TEXTS, numbered};
use foreword_rehearse::{Limits, Module, Proxy, Request, Setup};
use foreword_tests::artifacts::filter_module;
use serde_json::{Value, json};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// Most instructions for each byte of a body.
const MOST: f64 = 1_500.0;

/// The larger body may cost this many times as much a byte as the smaller one.
const GROWTH: f64 = 1.6;
/// Instructions a byte that the larger body may cost on top of that.
const MARGIN: f64 = 100.0;

/// Bytes of the smaller body.
const SMALL: usize = 32 << 10;

static MODULE: LazyLock<Module> = LazyLock::new(|| {
    let limits = Limits {
        fuel: 1 << 50,
        deadline: Duration::from_secs(600),
        ..Limits::default()
    };
    let file = filter_module().unwrap_or_else(|error| panic!("{error:#}"));
    Module::read(&file, limits).unwrap_or_else(|error| panic!("{error}"))
});

/// Returns the configurations under which requests are counted, by name.
#[must_use]
pub fn configurations() -> [(&'static str, Value); 6] {
    let marked = |cache: &str| {
        let engine = json!({"name": "e", "block_tokens": 16, "cache": cache});
        json!({"max_body_bytes": 33_554_432, "engines": [engine]})
    };
    let all = json!({
        "max_body_bytes": 33_554_432,
        "ordering": {
            "head": {"mode": "apply"},
            "conversation": {"pin": true, "answers": "all"},
            "documents": {"numbered": true, "rules": true, "headings": true, "outputs": true},
        },
    });
    [
        ("default", json!({})),
        ("head and pins", all),
        ("anthropic", marked("anthropic")),
        ("openai", marked("openai")),
        ("bedrock", marked("bedrock")),
        ("units", marked("units")),
    ]
}

/// Returns the most instructions for each byte that any of these bodies takes, played one after the other, and those of
/// all ticks.
#[must_use]
pub fn cost(configuration: &Value, bodies: &[String]) -> f64 {
    let setup = Setup {
        configuration: configuration.to_string().into_bytes(),
        // The tick that follows a request comes before the next one.
        interval: Duration::from_millis(200),
        ..Setup::default()
    };
    let started = Proxy::start(&MODULE, setup);
    let mut proxy = started.unwrap_or_else(|error| panic!("{error}"));
    let mut most = 0.0_f64;
    let mut bytes = 0;
    for body in bodies {
        let path = match body {
            body if body.contains(r#""input":"#) => "/v1/responses",
            body if body.contains(r#""system":"#) => "/v1/messages",
            _ => "/v1/chat/completions",
        };
        let played = proxy.play(&Request::post(path, body.clone().into_bytes()));
        let outcome = played.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(outcome.fault, None);
        bytes += body.len();
        most = most.max(outcome.fuel as f64 / body.len() as f64);
    }
    let totals = proxy.finish().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(totals.faults, []);
    let ticks = totals.callbacks.get("proxy_on_tick");
    most + ticks.map_or(0, |ticks| ticks.fuel) as f64 / bytes as f64
}

/// Returns whether a body may cost so many instructions a byte, and one eight times as long so many.
#[must_use]
pub fn is_bounded([less, more]: [f64; 2]) -> bool {
    less <= MOST && more <= MOST && more <= GROWTH * less + MARGIN
}

pub(crate) fn run(bytes: &[u8]) {
    let Some((&choice, shape)) = bytes.split_first() else {
        return;
    };
    let parts: Vec<&[u8]> = shape.splitn(3, |byte| *byte == PARTED).collect();
    let Ok([before, repeated, after]) = <[&[u8]; 3]>::try_from(parts) else {
        return;
    };
    let [Ok(before), Ok(repeated), Ok(after)] = [before, repeated, after].map(str::from_utf8)
    else {
        return;
    };
    if repeated.is_empty() || before.len() + after.len() > SMALL / 4 {
        return;
    }
    let configurations = configurations();
    let (name, configuration) = &configurations[usize::from(choice) % configurations.len()];
    let costs = [SMALL, 8 * SMALL].map(|bytes| {
        let bodies = [100, 101].map(|first| numbered([before, repeated, after], bytes, first));
        cost(configuration, &bodies)
    });
    let [less, more] = costs;
    let worst = less.max(more) / STEP;
    let reached = COSTS.get(worst as usize).or(COSTS.last());
    if let Some(reached) = reached {
        reached.store(1, Ordering::Relaxed);
    }
    assert!(
        is_bounded(costs),
        "{name}: {less:.0} and {more:.0} instructions a byte"
    );
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let chats = TEXTS.iter().map(|(_, [before, repeated, after])| {
        let before = format!(r#"{{"messages":[{{"role":"user","content":"{before}"#);
        (before, *repeated, format!(r#"{after}"}}]}}"#))
    });
    let shapes = DECISIONS.iter().chain(BODIES);
    let shapes = shapes.map(|(_, [before, repeated, after])| {
        ((*before).to_owned(), *repeated, (*after).to_owned())
    });
    let seed = |(at, (before, repeated, after)): (u8, (String, &str, String))| {
        let parts = [before.as_bytes(), repeated.as_bytes(), after.as_bytes()];
        [&[at][..], &parts.join(&PARTED)].concat()
    };
    (0_u8..=u8::MAX)
        .zip(shapes.chain(chats))
        .map(seed)
        .collect()
}

/// Parts the pieces of a shape.
const PARTED: u8 = 0xff;

/// Instructions a byte that an input must cost more than the costliest before it to be new.
const STEP: f64 = 10.0;

/// A counter for each step of cost, which libFuzzer reads beside those of coverage: so it looks for what costs more.
#[expect(
    unsafe_code,
    reason = "libFuzzer finds these counters by the section they stand in"
)]
#[cfg_attr(
    target_os = "linux",
    unsafe(link_section = "__libfuzzer_extra_counters")
)]
static COSTS: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];
