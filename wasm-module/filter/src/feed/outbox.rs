//! What a proxy's requests did, kept until the worker that leads an engine's feed tells gateways of other proxies.
//!
//! Every worker of a proxy learns every update of every other, so whichever leads has all of them. A queue is open
//! while this worker leads and somebody listens; for the rest of the time a request adds nothing.

use foreword_ordering::feed::{MAX_PUSH_BYTES, MAX_PUSH_UPDATES};
use foreword_ordering::{EngineId, OrderingRecord, PeerUpdate};

/// Updates by the engine that they are about, for engines whose queue is open.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Vec<Queue>);

#[derive(Debug)]
struct Queue {
    engine: EngineId,
    updates: Vec<Vec<u8>>,
    bytes: usize,
    /// Number of updates since the last taking that found no room.
    dropped: u64,
}

/// What a queue held.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) updates: Vec<Vec<u8>>,
    /// Number of updates that found no room.
    pub(crate) dropped: u64,
}

impl Outbox {
    /// Opens or closes an engine's queue; what a closed one held is forgotten.
    pub(crate) fn set_open(&mut self, engine: EngineId, is_open: bool) {
        if !is_open {
            self.0.retain(|queue| queue.engine != engine);
        } else if !self.0.iter().any(|queue| queue.engine == engine) {
            self.0.push(Queue {
                engine,
                updates: Vec::new(),
                bytes: 0,
                dropped: 0,
            });
        }
    }

    /// Adds an update, without the texts of requests.
    pub(crate) fn add(&mut self, update: &PeerUpdate) {
        if let Some(queue) = self.queue(update.engine()) {
            queue.add(update.encode_without_texts());
        }
    }

    /// Adds a request's record, without its texts.
    pub(crate) fn add_record(&mut self, record: &OrderingRecord) {
        if let Some(queue) = self.queue(record.engine()) {
            queue.add(record.without_texts().encode());
        }
    }

    /// Takes what an engine's queue holds.
    pub(crate) fn take(&mut self, engine: EngineId) -> Outgoing {
        let Some(queue) = self.queue(engine) else {
            return Outgoing::default();
        };
        queue.bytes = 0;
        Outgoing {
            updates: std::mem::take(&mut queue.updates),
            dropped: std::mem::take(&mut queue.dropped),
        }
    }

    fn queue(&mut self, engine: EngineId) -> Option<&mut Queue> {
        self.0.iter_mut().find(|queue| queue.engine == engine)
    }
}

impl Queue {
    fn add(&mut self, update: Vec<u8>) {
        let bytes = self.bytes.saturating_add(update.len());
        if self.updates.len() < MAX_PUSH_UPDATES && bytes <= MAX_UPDATE_BYTES {
            self.bytes = bytes;
            self.updates.push(update);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }
}

/// Most bytes of a push's updates: what is left of a push for their lengths, the push's own fields and its seal.
const MAX_UPDATE_BYTES: usize = MAX_PUSH_BYTES - 2_048;

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::feed::Event;
    use foreword_ordering::{Config, Orderer, Residency, Tenant};

    fn update(engine: u16) -> PeerUpdate {
        PeerUpdate::Residency(Residency {
            engine: EngineId(engine),
            model: "m".into(),
            events: vec![Event::Cleared],
        })
    }

    #[test]
    fn what_is_about_an_open_engine_is_kept_until_it_is_taken() {
        let mut outbox = Outbox::default();
        outbox.add(&update(1));
        outbox.set_open(EngineId(1), true);
        outbox.set_open(EngineId(2), true);
        outbox.set_open(EngineId(2), true);
        assert_eq!(outbox.take(EngineId(1)), Outgoing::default());
        for engine in [1, 2, 3, 1] {
            outbox.add(&update(engine));
        }
        assert_eq!(outbox.take(EngineId(1)).updates.len(), 2);
        assert_eq!(outbox.take(EngineId(1)), Outgoing::default());
        assert_eq!(outbox.take(EngineId(3)), Outgoing::default());
        outbox.set_open(EngineId(2), false);
        outbox.set_open(EngineId(2), true);
        assert_eq!(outbox.take(EngineId(2)), Outgoing::default());
    }

    #[test]
    fn a_push_has_room_for_what_is_kept_and_the_rest_is_counted() {
        let mut outbox = Outbox::default();
        outbox.set_open(EngineId(0), true);
        for _ in 0..MAX_PUSH_UPDATES + 3 {
            outbox.add(&update(0));
        }
        let taken = outbox.take(EngineId(0));
        assert_eq!((taken.updates.len(), taken.dropped), (MAX_PUSH_UPDATES, 3));

        // Long ones: the bytes are what there is no room for.
        let documents: String = (0..900).map(|at| format!("<doc>{at}</doc>")).collect();
        let body = serde_json::json!({"messages": [{"role": "user", "content": documents}]});
        let config = Config::from_json(br#"{"documents": {"max": 4096}}"#).unwrap();
        let mut orderer = Orderer::new(config);
        let rewrite = orderer.rewrite(Tenant::default(), body.to_string().as_bytes());
        let record = rewrite.unwrap().record;
        for _ in 0..20 {
            outbox.add_record(&record);
        }
        let taken = outbox.take(EngineId(0));
        let bytes: usize = taken.updates.iter().map(Vec::len).sum();
        assert!(bytes <= MAX_UPDATE_BYTES && taken.dropped > 0, "{bytes}");
        assert_eq!(taken.updates.len() + taken.dropped as usize, 20);
    }
}
