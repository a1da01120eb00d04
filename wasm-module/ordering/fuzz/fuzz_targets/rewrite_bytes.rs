//! Arbitrary bytes as bodies, one after another (a 0 byte between two), to one orderer: nothing panics, a body that is
//! JSON stays JSON, and its documents are looked for in any prompt.

#![no_main]

use foreword_ordering::path::Locator;
use foreword_ordering::{Config, Orderer, Tenant};
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
        let Ok(rewrite) = orderer.rewrite(Tenant::default(), body) else {
            continue;
        };
        let sent = rewrite.body.as_deref().unwrap_or(body);
        let prompt = String::from_utf8_lossy(body);
        let _ = Locator::new(Config::default()).locate(&rewrite.path, sent, &prompt);
        if let Some(sent) = rewrite.body
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
