//! Arbitrary bytes as bodies, one after another (a 0 byte between two), to one orderer: nothing panics, and a body that
//! is JSON stays JSON.

#![no_main]

use foreword_ordering::{Config, Orderer};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bodies: &[u8]| {
    let mut orderer = Orderer::new(
        Config::from_json(
            br#"{"policy":"random","conversation":{"max_entries":8,"max_bytes":4096},
                "documents":{"numbered":true,"rules":true,"headings":true}}"#,
        )
        .expect("a valid configuration"),
    );
    for body in bodies.split(|byte| *byte == 0).take(8) {
        if let Ok(rewrite) = orderer.rewrite("", body)
            && let Some(sent) = rewrite.body
            && serde_json::from_slice::<Value>(body).is_ok()
        {
            assert!(
                serde_json::from_slice::<Value>(&sent).is_ok(),
                "JSON stays JSON"
            );
        }
        // Of each of the 16 models, at most.
        let remembered = orderer.remembered();
        assert!(remembered.messages <= 8 * 16 && remembered.bytes <= 4096 * 16);
    }
});
