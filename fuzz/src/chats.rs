//! Chats that go on, fork and are edited, against the slow model that the property tests use: six bytes a step.

#[path = "../../wasm-module/ordering/tests/model/mod.rs"]
pub(crate) mod model;

use self::model::Step;
use foreword_ordering::random::Random;

pub(crate) fn run(input: &[u8]) {
    if let Some((setup, steps)) = input.split_first() {
        let (steps, _) = steps.as_chunks();
        model::run(*setup, &steps[..steps.len().min(48)]);
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    (0..8).map(|seed| random(seed, 1 + 6 * 8)).collect()
}

/// The bodies of the first steps, and the bytes behind them.
pub(crate) fn bodies(input: &[u8], most: usize) -> (Vec<String>, &[u8]) {
    let (steps, rest) = input.split_at(input.len().min(most * size_of::<Step>()));
    let (steps, _) = steps.as_chunks();
    (model::bodies(steps), rest)
}

pub(crate) fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..length).map(|_| random.bits() as u8).collect()
}
