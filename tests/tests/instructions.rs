//! The shipped module takes a bounded number of instructions for each byte of a request: tested with every hostile shape of
//! the core's tests, under every configuration. The bounds stand in `foreword_fuzz::instructions`, whose fuzz target looks for more shapes.

use foreword_fuzz::instructions::{configurations, cost, is_bounded, requests};

/// Bytes of the smaller bodies; the larger ones have eight times as many. `FOREWORD_TEST_BODY_BYTES` says another number.
fn small() -> usize {
    let given = std::env::var("FOREWORD_TEST_BODY_BYTES").ok();
    given.map_or(32 << 10, |bytes| bytes.parse().unwrap())
}

/// Plays every shape under the configuration of that name.
fn measure(name: &str) {
    let configurations = configurations();
    let (_, configuration) = configurations
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap();
    let (less, more) = (requests(small()), requests(8 * small()));
    assert!(less.len() >= 150, "{}", less.len());
    let mut wrong = Vec::new();
    for ((shape, less), (_, more)) in less.iter().zip(&more) {
        let costs = [less, more].map(|bodies| cost(configuration, bodies));
        if !is_bounded(costs) {
            wrong.push(format!("{shape}: {costs:.0?} instructions a byte"));
        }
    }
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
}

#[test]
fn a_byte_is_cheap_by_default() {
    measure("default");
}

#[test]
fn a_byte_is_cheap_where_heads_are_stabilised_and_contexts_pinned() {
    measure("head and pins");
}

#[test]
fn a_byte_is_cheap_with_anthropics_markers() {
    measure("anthropic");
}

#[test]
fn a_byte_is_cheap_with_openais_markers() {
    measure("openai");
}

#[test]
fn a_byte_is_cheap_with_bedrocks_markers() {
    measure("bedrock");
}

#[test]
fn a_byte_is_cheap_with_units() {
    measure("units");
}
