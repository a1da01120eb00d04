//! The queues of updates about one worker's requests until they are pushed to gateways of other proxies, one queue for
//! each engine.
//!
//! A queue is open while such a gateway listens; otherwise requests add nothing to it.

use foreword_ordering::feed::{MAX_PUSH_BYTES, MAX_PUSH_UPDATES};
use foreword_ordering::{EngineId, OrderingRecord, PeerUpdate};

/// Queues of updates about cached prefixes for gateways of other proxies, indexed by engine; `None` if an engine's
/// queue is closed because no gateway listens.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Vec<Option<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    waiting: Outgoing,
    bytes: usize,
}

/// The content of the next push from an engine's queue to gateways of other proxies.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outgoing {
    /// The updates about cached prefixes, each encoded for other proxies, in the order in which they were added.
    pub(crate) updates: Vec<Vec<u8>>,
    /// True if the load changed: the tokens that the engine has yet to compute for this proxy's requests.
    pub(crate) has_load: bool,
    /// Number of updates about cached prefixes that were dropped because the queue was full.
    pub(crate) dropped: u64,
}

impl Outgoing {
    pub(crate) fn is_empty(&self) -> bool {
        self.updates.is_empty() && !self.has_load && self.dropped == 0
    }
}

impl Outbox {
    /// Opens or closes the queue of updates about an engine's cache. Closing drops its content.
    pub(crate) fn set_open(&mut self, engine: EngineId, is_open: bool) {
        let place = usize::from(engine.0);
        if is_open && self.0.len() <= place {
            self.0.resize_with(place.saturating_add(1), || None);
        }
        if let Some(queue) = self.0.get_mut(place) {
            let kept = queue.take().filter(|_| is_open);
            *queue = is_open.then(|| kept.unwrap_or_default());
        }
    }

    /// Adds an update about cached prefixes, without the texts of requests, to its engine's queue. Returns whether the
    /// queue is open; if it is full, the update is dropped and counted.
    pub(crate) fn add(&mut self, update: &PeerUpdate) -> bool {
        let queue = self.queue(update.engine());
        let added = queue.map(|queue| queue.add(update.encode_remote()));
        added.is_some()
    }

    /// Adds a request's record, without its texts, to the queue of the engine that receives the request. Returns
    /// whether the queue is open; if it is full, the record is dropped and counted.
    pub(crate) fn add_record(&mut self, record: &OrderingRecord) -> bool {
        let queue = self.queue(record.engine());
        let added = queue.map(|queue| queue.add(record.encode_remote()));
        added.is_some()
    }

    /// Records in an engine's queue that the engine's load changed (the tokens that it has yet to compute). Returns
    /// whether the queue is open.
    pub(crate) fn add_load(&mut self, engine: EngineId) -> bool {
        let queue = self.queue(engine);
        queue.map(|queue| queue.waiting.has_load = true).is_some()
    }

    /// Returns whether an engine's queue is open and has something to push to gateways of other proxies.
    pub(crate) fn has(&self, engine: EngineId) -> bool {
        let queue = self.0.get(usize::from(engine.0));
        let queue = queue.and_then(Option::as_ref);
        queue.is_some_and(|queue| !queue.waiting.is_empty())
    }

    /// Removes and returns the content of an engine's queue; empty if the queue is closed.
    pub(crate) fn take(&mut self, engine: EngineId) -> Outgoing {
        let queue = self.queue(engine);
        queue.map(std::mem::take).unwrap_or_default().waiting
    }

    fn queue(&mut self, engine: EngineId) -> Option<&mut Queue> {
        self.0.get_mut(usize::from(engine.0))?.as_mut()
    }
}

impl Queue {
    fn add(&mut self, update: Vec<u8>) {
        let waiting = &mut self.waiting;
        let bytes = self.bytes.saturating_add(update.len());
        if waiting.updates.len() < MAX_PUSH_UPDATES && bytes <= MAX_UPDATE_BYTES {
            self.bytes = bytes;
            waiting.updates.push(update);
        } else {
            waiting.dropped = waiting.dropped.saturating_add(1);
        }
    }
}

/// The maximum number of bytes of the updates in one push to gateways of other proxies, so that their lengths, the
/// push's other fields and its seal fit too.
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
        assert!(!outbox.add(&update(1)) && !outbox.add_load(EngineId(1)));
        outbox.set_open(EngineId(1), true);
        outbox.set_open(EngineId(2), true);
        outbox.set_open(EngineId(2), true);
        assert_eq!(outbox.take(EngineId(1)), Outgoing::default());
        for (engine, is_open) in [(1, true), (2, true), (3, false), (1, true)] {
            assert_eq!(outbox.add(&update(engine)), is_open);
        }
        // An open queue stays open.
        outbox.set_open(EngineId(1), true);
        assert!(outbox.has(EngineId(1)) && !outbox.has(EngineId(0)) && !outbox.has(EngineId(3)));
        let taken = outbox.take(EngineId(1));
        assert_eq!((taken.updates.len(), taken.has_load), (2, false));
        assert!(outbox.add_load(EngineId(1)) && outbox.has(EngineId(1)));
        assert!(outbox.take(EngineId(1)).has_load);
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

        // Long updates: bytes are the limit.
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
