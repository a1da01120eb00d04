//! Batches of an engine's feed, a 0 byte between two, as a reader follows them and tells other workers.

use crate::settings::Settings;
use foreword_ordering::feed::{Batch, Event, FeedKey, Follower, ReadError};
use foreword_ordering::{EngineId, Orderer, PeerUpdate, Residency, Tenant};

const BOUNDED: Settings = Settings::new(0x0077);

pub(crate) fn run(input: &[u8]) {
    let mut orderer = Orderer::new(BOUNDED.config());
    let known = br#"{"model":"m","messages":[{"role":"user","content":"<doc>a</doc>"}]}"#;
    orderer
        .rewrite(Tenant::default(), known)
        .expect("it has a document");
    let mut follower = Follower::default();
    for batch in input.split(|byte| *byte == 0).take(8) {
        let Ok(batch) = Batch::read(batch, None) else {
            continue;
        };
        let again = serde_json::to_vec(&batch.wire(None)).expect("a batch is JSON");
        assert_eq!(Batch::read(&again, None).as_ref(), Ok(&batch));
        let key = FeedKey::new(b"a key");
        let sealed = serde_json::to_vec(&batch.wire(Some(&key))).expect("a batch is JSON");
        assert_eq!(Batch::read(&sealed, Some(&key)).as_ref(), Ok(&batch));
        assert_eq!(Batch::read(&sealed, None), Err(ReadError::Sealed));
        let before = follower.query();
        let changes: Vec<&Event> = follower.follow(&batch).collect();
        if before.is_empty() && !batch.reset {
            assert_eq!(
                changes,
                [&Event::Cleared],
                "it begins with all that is held"
            );
        }
        let told = PeerUpdate::Residency(Residency {
            engine: EngineId(2),
            model: batch.model.as_str().into(),
            events: batch.events.clone(),
        });
        assert_eq!(PeerUpdate::decode(&told.encode()).as_ref(), Ok(&told));
        orderer.learn(&told);
        // Of a tree for the client's documents, one for a model without a tenant: three engines each.
        assert!(orderer.nodes() <= 6 * 3 * 4, "{} nodes", orderer.nodes());
        if let Some(Event::Cleared) = batch.events.last() {
            orderer.learn(&PeerUpdate::Residency(Residency {
                engine: EngineId(0),
                model: "m".into(),
                events: vec![Event::Cleared],
            }));
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let all = r#"{"epoch": "5c0f000000000000", "from": 0, "next": 43, "reset": true, "model": "m",
        "pages": {"device": 812, "host": 0, "disk": 1}, "events": [
        {"type": "stored", "tenant": "", "scope": "9f3c000000000000", "path": [["0a1b000000000000", 117], ["77de000000000000", 203]]},
        {"type": "stored", "tenant": "63479ad69a090b258277ec8fba6f9941", "scope": "9f3c000000000000", "path": [["0a1b000000000000", 117]]}]}"#;
    let more = r#"{"epoch": "5c0f000000000000", "from": 43, "next": 45, "model": "m", "events": [
        {"type": "removed", "scope": "9f3c000000000000", "path": ["0a1b000000000000", "77de000000000000"]},
        {"type": "cleared"}]}"#;
    vec![
        all.into(),
        [all, more].join("\0").into(),
        [more, all, more].join("\0").into(),
    ]
}
