//! Random chats that go on, fork and are edited, against the slow model that the property tests use.

#![no_main]

#[path = "../../tests/model/mod.rs"]
mod model;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((setup, steps)) = bytes.split_first() else {
        return;
    };
    let steps: Vec<[u8; 6]> = steps
        .chunks_exact(6)
        .take(48)
        .map(|step| [step[0], step[1], step[2], step[3], step[4], step[5]])
        .collect();
    model::run(*setup, &steps);
});
