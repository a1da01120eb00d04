//! An entry of the ring, which another worker wrote, or nobody knows who.

use crate::seeds;
use crate::settings::{self, Settings};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::feed::{Event, TenantKey};
use foreword_ordering::tree::Scope;
use foreword_ordering::{EngineId, MAX_ENGINES, Orderer, PeerUpdate, Residency, Tenant, Usage};

/// Small bounds, so that what grows beyond them shows.
const BOUNDED: Settings = Settings::new(0x0077);
/// `tree.max_nodes` and `tree.max_trees` of it.
const MAX_NODES: usize = 6 * 4 * MAX_ENGINES as usize;

pub(crate) fn run(entry: &[u8]) {
    let Ok(told) = PeerUpdate::decode(entry) else {
        return;
    };
    let again = told.encode();
    assert_eq!(PeerUpdate::decode(&again).as_ref(), Ok(&told));
    assert!(
        again.len() <= entry.len(),
        "numbers are written in the fewest bytes"
    );
    let mut orderer = Orderer::new(BOUNDED.config());
    for _ in 0..2 {
        orderer.learn(&told);
    }
    assert!(orderer.nodes() <= MAX_NODES);
    settings::is_within(orderer.remembered());
    if PeerUpdate::decode_remote(entry).is_ok() {
        let remembered = orderer.remembered();
        let words = [remembered.messages, remembered.contexts];
        assert_eq!(
            words, [0; 2],
            "what another gateway sends is no part of a chat"
        );
    }
    if let PeerUpdate::OrderingRecord(record) = &told {
        orderer.learn(&PeerUpdate::Residency(record.undone()));
        let all = Usage {
            prompt_tokens: 1,
            cached_tokens: u64::MAX,
        };
        assert!(
            record.judged(all).is_none() || record.uncached() == 0,
            "an engine that held more than there is to hold is not corrected"
        );
        let nothing = Usage {
            prompt_tokens: u64::MAX,
            cached_tokens: 0,
        };
        if let Some(correction) = record.judged(nothing) {
            orderer.learn(&PeerUpdate::Correction(correction));
        }
        // Whoever it was goes on.
        let body = br#"{"messages":[{"role":"user","content":"<doc>a</doc><doc>b</doc>"}]}"#;
        let rewrite = orderer
            .rewrite(record.tenant(), body)
            .expect("it has documents");
        assert_eq!(rewrite.report.documents, 2);
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut entries: Vec<Vec<u8>> = Vec::new();
    for bodies in seeds::golden() {
        let mut orderer = Orderer::new(Settings::new(0x003f).config());
        for body in bodies {
            let Ok(rewrite) = orderer.rewrite(Tenant::default(), &body) else {
                continue;
            };
            entries.push(rewrite.record.encode());
            entries.push(rewrite.record.encode_remote());
            let usage = Usage {
                prompt_tokens: 1_000,
                cached_tokens: 0,
            };
            let correction = rewrite.record.judged(usage);
            entries
                .extend(correction.map(|correction| PeerUpdate::Correction(correction).encode()));
        }
    }
    let (tenant, scope) = (TenantKey::of("salt"), Scope(7));
    let path = vec![(Fingerprint(1), 300), (Fingerprint(2), 200)];
    let removed = path.iter().map(|(document, _)| *document).collect();
    let residency = Residency {
        engine: EngineId(1),
        model: "m".into(),
        events: vec![
            Event::Cleared,
            Event::Stored {
                tenant,
                scope,
                path,
            },
            Event::Removed {
                tenant,
                scope,
                path: removed,
            },
        ],
    };
    entries.push(PeerUpdate::Residency(residency).encode());
    entries
}
