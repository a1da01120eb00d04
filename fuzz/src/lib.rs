//! Fuzz targets: what reads bytes that others wrote, each with what must hold for any bytes.
//!
//! | target | its bytes | what must hold, beside that nothing panics |
//! | --- | --- | --- |
//! | `bodies` | bodies for one orderer, of any configuration | JSON stays JSON; only documents move; bounds are kept; reading is linear, by count |
//! | `texts` | what users write in chats that go on | earlier messages stay as they were sent; a message keeps its text; reading is linear, by count |
//! | `heads` | system texts of one tenant | a report changes no byte; words move, and none is lost or repeated |
//! | `wandering` | the steps of a client that sends contexts with the newest question alone | what the slow model says that keeps all that was ever sent |
//! | `chats` | a client's steps | what the slow model of the property tests says |
//! | `instructions` | a shape of a body, by what it repeats | the shipped module takes at most 1,500 instructions a byte, and no more for a long body |
//! | `json` | a value | the core's scanner takes what `serde_json` takes, and reading is linear, by count |
//! | `configurations` | a configuration of the filter or of the core | one that is taken works |
//! | `updates` | an entry of the ring | what is read is written alike; bounds are kept |
//! | `records` | a client's steps, and damage to what one worker tells another | the other's bodies stay whole |
//! | `feed` | an engine's batches of events | bounds are kept |
//! | `answers` | an engine's answer | its usage does not depend on where it is cut |
//! | `batches` | a file of a batch, and what was left of its answers | each request is asked once, as it stands; what is written is read |
//! | `filter` | a configuration, and what client, engine, retriever and other workers send | salts hold; lengths agree |
//! | `kv_events` | vLLM's events | what is read is no larger than its bytes |
//! | `picker` | a pool's lists of endpoints, their metrics, a gateway's metadata | a pool holds what is listed, each in its place; only what a hint names is eligible |
//! | `grammars` | a JSON schema, or a regular expression | the budget holds, by count; a refusal says why; an answer that follows it is JSON |
//! | `zmtp` | what a ZeroMQ peer sends | it does not depend on how the bytes arrive; what is announced is not reserved |
//! | `checkpoints` | a model's file, GGUF or safetensors | it is loaded, or refused with an error |
//! | `requests` | HTTP requests to the host | no failure of the server's; salts hold; answers are bounded; every place comes back |
//!
//! A target is a function of bytes. libFuzzer calls it in `cargo xtask fuzz` and follows its coverage; the ordinary tests
//! call it with its seeds, with what fuzzing once found (`found/TARGET/`), with what is kept of where it has been (`corpus/TARGET/`), and with
//! seeded changes of all.
//!
//! Targets are functions of an ordinary package: they compile and replay with every test, and libFuzzer needs no
//! nightly toolchain.

mod answers;
mod batches;
mod bodies;
mod chats;
mod checkpoints;
mod configurations;
mod feed;
mod filter;
mod grammars;
mod heads;
mod host;
mod hostile;
pub mod instructions;
mod json;
mod records;
mod requests;
// Their tests, which the host and the gateway compile, need these around them.
#[cfg(not(test))]
mod kv_events;
mod mutate;
#[cfg(not(test))]
mod picker;
mod seeds;
mod settings;
mod texts;
mod updates;
mod wandering;
mod zmtp;

pub use mutate::mutated;

/// Something that reads bytes that others wrote.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it is called.
    pub name: &'static str,
    /// Panics where something does not hold.
    pub run: fn(&[u8]),
    /// Inputs that lead deep into it.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets, in the table's order.
pub const TARGETS: &[Target] = &[
    target("bodies", bodies::run, bodies::seeds),
    target("texts", texts::run, texts::seeds),
    target("heads", heads::run, heads::seeds),
    target("wandering", wandering::run, wandering::seeds),
    target("chats", chats::run, chats::seeds),
    target("instructions", instructions::run, instructions::seeds),
    target("json", json::run, json::seeds),
    target("configurations", configurations::run, configurations::seeds),
    target("updates", updates::run, updates::seeds),
    target("records", records::run, records::seeds),
    target("feed", feed::run, feed::seeds),
    target("answers", answers::run, answers::seeds),
    target("batches", batches::run, batches::seeds),
    target("filter", filter::run, filter::seeds),
    #[cfg(not(test))]
    target("kv_events", kv_events::run, kv_events::seeds),
    #[cfg(not(test))]
    target("picker", picker::run, picker::seeds),
    target("grammars", grammars::run, grammars::seeds),
    target("zmtp", zmtp::run, zmtp::seeds),
    target("checkpoints", checkpoints::run, checkpoints::seeds),
    target("requests", requests::run, requests::seeds),
];

const fn target(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, run, seeds }
}

impl Target {
    /// The target of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        TARGETS.iter().copied().find(|target| target.name == name)
    }
}
