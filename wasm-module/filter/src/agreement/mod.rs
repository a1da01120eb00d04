//! Agreement of one Envoy's workers on the contents of engines' caches: each publishes its updates in a ring buffer,
//! and applies the others'.
//!
//! ```text
//!   worker 1 ── VM ── Orderer ─ publishes ▶ ┌ ring in shared data ┐ ◀ publishes ─ Orderer ── VM ── worker 2
//!                        ▲                  │ [41] [42] [43] …    │                  ▲
//!                        └───── reads ───── └─────────────────────┘ ──── reads ──────┘
//! ```
//!
//! A Wasm VM runs on one worker thread and shares no memory with the others. But Envoy's shared data is a key-value
//! store for the whole process, and publishing one entry per request costs little. Before a request is ordered, its
//! worker reads the ring's state, in about a microsecond, and applies the new entries. Afterwards it publishes its own.
//! So a request knows every entry that was published before it; only requests ordered at the same instant do not know
//! of each other. An idle worker catches up at its next tick (timer callback).
//!
//! A new VM, after a reload, after a trap or for a new worker, reads the whole ring: the last updates of all workers.
//!
//! Failures cost only knowledge of the engines' caches, and are counted: entries overwritten before this worker read
//! them, an entry whose writer ended between taking a position and writing, and bytes that are not an entry.
//!
//! There is no singleton service, because Istio's and Envoy Gateway's resources cannot add one, and it would not
//! restart after a trap.

mod ring;

use std::collections::VecDeque;

use foreword_ordering::PeerUpdate;

use self::ring::{Head, Ring, Slot};
use crate::host::{Host, HostError};

/// One worker's access to a ring buffer in shared data through which workers exchange entries: the position up to which
/// it has read, and the positions of the entries that it wrote.
#[derive(Debug)]
pub(crate) struct Agreement {
    ring: Ring,
    /// The next position of the ring buffer to read. All entries before it are applied or lost.
    next: u64,
    /// Positions of the entries that this worker wrote, from `next` on, ascending. They are skipped when reading.
    own: VecDeque<u64>,
    /// The ring buffer's state when it was last read; `None` once this worker has published. A request reads the state
    /// once, applies new entries and then publishes.
    head: Option<Head>,
}

/// The result of reading the ring buffer's new entries.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LearnResult {
    /// Number of entries, each an update by another worker, that were applied.
    pub(crate) entries: u64,
    /// Number of entries that were overwritten before they were read, never written, or refused by the reader.
    pub(crate) lost: u64,
}

impl Agreement {
    /// Joins the ring buffer `name` with room for `entries` entries in shared data, and creates it if necessary.
    /// Reading begins at its oldest entry. Returns an error if the proxy refuses access to shared data.
    pub(crate) fn open(host: &impl Host, name: &str, entries: u32) -> Result<Self, HostError> {
        let ring = Ring::open(host, name, entries)?;
        Ok(Self {
            next: oldest(&ring, ring.head(host)?.next),
            ring,
            own: VecDeque::new(),
            head: None,
        })
    }

    /// Restarts reading from the oldest entry in the ring buffer, including entries that this worker wrote.
    pub(crate) fn forget(&mut self) {
        self.next = oldest(&self.ring, self.next);
        self.own.clear();
    }

    /// Publishes an [encoded](PeerUpdate::encode) update about cached prefixes to the other workers. Returns false if
    /// it is longer than [`MAX_ENTRY_BYTES`], or if other workers were faster at every attempt.
    pub(crate) fn publish(&mut self, host: &impl Host, update: &[u8]) -> Result<bool, HostError> {
        self.publish_within(host, update, MAX_ENTRY_BYTES)
    }

    /// Like [`Agreement::publish`], but publishes any bytes as an entry, up to `most` bytes.
    pub(crate) fn publish_within(
        &mut self,
        host: &impl Host,
        entry: &[u8],
        most: usize,
    ) -> Result<bool, HostError> {
        if entry.len() > most {
            return Ok(false);
        }
        let Some(position) = self.ring.push(host, self.head.take(), entry)? else {
            return Ok(false);
        };
        self.own.push_back(position);
        Ok(true)
    }

    /// Reads at most `limit` new positions of the ring buffer and passes each update of another worker to `learn`,
    /// oldest first. Returns the numbers of applied and of lost entries.
    pub(crate) fn catch_up(
        &mut self,
        host: &impl Host,
        limit: u64,
        mut learn: impl FnMut(&PeerUpdate),
    ) -> Result<LearnResult, HostError> {
        self.read_new(host, limit, |entry| match PeerUpdate::decode(entry) {
            Ok(update) => {
                learn(&update);
                true
            }
            Err(_) => false,
        })
    }

    /// Like [`Agreement::catch_up`], but passes each entry's bytes to `take`. An entry for which `take` returns false
    /// counts as lost.
    pub(crate) fn read_new(
        &mut self,
        host: &impl Host,
        limit: u64,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<LearnResult, HostError> {
        let mut learnt = LearnResult::default();
        let seen = self.ring.head(host)?;
        self.head = Some(seen);
        let head = seen.next;
        let oldest = oldest(&self.ring, head);
        learnt.lost = oldest.saturating_sub(self.next);
        self.next = self.next.max(oldest);
        for _ in 0..limit {
            if self.next >= head {
                break;
            }
            while self.own.front().is_some_and(|own| *own < self.next) {
                self.own.pop_front();
            }
            let is_own = self.own.front() == Some(&self.next);
            let slot = if is_own {
                Slot::Holds(Vec::new())
            } else {
                self.ring.read(host, self.next)?
            };
            match slot {
                _ if is_own => {}
                Slot::Unwritten if head.saturating_sub(self.next) <= PATIENCE => break,
                Slot::Unwritten | Slot::Lost => learnt.lost = learnt.lost.saturating_add(1),
                Slot::Holds(entry) if take(&entry) => {
                    learnt.entries = learnt.entries.saturating_add(1);
                }
                Slot::Holds(_) => learnt.lost = learnt.lost.saturating_add(1),
            }
            self.next = self.next.saturating_add(1);
        }
        Ok(learnt)
    }
}

/// Returns the number of entries that were ever written to the ring buffer `name` with room for `entries` entries (at
/// least 1), which is created if there is none.
pub(crate) fn written(host: &impl Host, name: &str, entries: u32) -> Result<u64, HostError> {
    Ok(Ring::open(host, name, entries)?.head(host)?.next)
}

/// Removes the entries of the ring buffer `name` with room for `entries` entries (at least 1). Workers that still use it
/// can go on.
pub(crate) fn empty(host: &impl Host, name: &str, entries: u32) -> Result<(), HostError> {
    Ring::open(host, name, entries)?.empty(host)
}

/// Returns the oldest position whose entry is not overwritten. `head` is the number of positions assigned so far.
fn oldest(ring: &Ring, head: u64) -> u64 {
    head.saturating_sub(ring.entries())
}

/// The maximum length of a published update, in bytes: enough for a request of about 1,500 documents. A longer one is
/// not published.
const MAX_ENTRY_BYTES: usize = 16 << 10;

/// Number of positions assigned after an unwritten one from which the unwritten one counts as lost. Its writer had only
/// one more call to make.
const PATIENCE: u64 = 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use foreword_ordering::{Config, Orderer, Tenant};

    use super::*;
    use crate::tests::quiet::quietly;
    use crate::tests::scripted::ScriptedHost;

    /// The record of a request with that one document.
    fn record(document: u64) -> PeerUpdate {
        let body = format!(
            r#"{{"messages": [{{"role": "user", "content": "<doc id=\"d\">{document}</doc> Why?"}}]}}"#
        );
        let mut orderer = Orderer::new(Config::default());
        let rewrite = orderer.rewrite(Tenant::default(), body.as_bytes());
        PeerUpdate::OrderingRecord(rewrite.unwrap().record)
    }

    /// A worker and the updates about cached prefixes that it received.
    struct Worker {
        host: ScriptedHost,
        agreement: Agreement,
        known: Vec<PeerUpdate>,
        lost: u64,
    }

    impl Worker {
        fn beside(host: &ScriptedHost, entries: u32) -> Self {
            let host = ScriptedHost::beside(host);
            Self {
                agreement: Agreement::open(&host, "r", entries).unwrap(),
                host,
                known: Vec::new(),
                lost: 0,
            }
        }

        fn publish(&mut self, document: u64) {
            let entry = record(document).encode();
            let update = self.agreement.publish(&self.host, &entry);
            assert_eq!(update, Ok(true));
        }

        fn catch_up(&mut self) -> LearnResult {
            let known = &mut self.known;
            let learn = |update: &PeerUpdate| known.push(update.clone());
            let learnt = self.agreement.catch_up(&self.host, u64::MAX, learn);
            let learnt = learnt.unwrap();
            self.lost += learnt.lost;
            learnt
        }
    }

    fn workers<const N: usize>(entries: u32) -> [Worker; N] {
        let host = ScriptedHost::default();
        std::array::from_fn(|_| Worker::beside(&host, entries))
    }

    fn learnt(entries: u64, lost: u64) -> LearnResult {
        LearnResult { entries, lost }
    }

    #[test]
    fn workers_learn_what_others_told_once_and_their_own_never() {
        let [mut one, mut two] = workers(8);
        one.publish(1);
        two.publish(2);
        one.publish(3);
        assert_eq!(one.catch_up(), learnt(1, 0));
        assert_eq!(two.catch_up(), learnt(2, 0));
        assert_eq!(two.known, [record(1), record(3)]);
        assert_eq!(one.catch_up(), learnt(0, 0));
        let mut new = Worker::beside(&one.host, 8);
        assert_eq!(new.catch_up(), learnt(3, 0));
        assert_eq!(new.known, [record(1), record(2), record(3)]);
    }

    #[test]
    fn who_learns_little_at_a_time_goes_on_where_it_was() {
        let [mut one, mut two] = workers(8);
        for document in 0..5 {
            one.publish(document);
        }
        for expected in [2, 2, 1, 0] {
            let known = &mut two.known;
            let learn = |update: &PeerUpdate| known.push(update.clone());
            let got = two.agreement.catch_up(&two.host, 2, learn).unwrap();
            assert_eq!(got, learnt(expected, 0));
        }
        assert_eq!(two.known, (0..5).map(record).collect::<Vec<_>>());
    }

    #[test]
    fn a_position_whose_entry_is_being_written_is_waited_for_and_then_given_up() {
        let [one, mut two] = workers(256);
        let late = one
            .agreement
            .ring
            .reserve(&one.host, None)
            .unwrap()
            .unwrap();
        two.publish(1);
        let mut three = Worker::beside(&one.host, 256);
        assert_eq!(three.catch_up(), learnt(0, 0));
        let entry = record(0).encode();
        one.agreement.ring.write(&one.host, late, &entry).unwrap();
        assert_eq!(three.catch_up(), learnt(2, 0));
        assert_eq!(three.known, [record(0), record(1)]);

        // This position is never written.
        one.agreement.ring.reserve(&one.host, None).unwrap();
        for document in 0..PATIENCE - 1 {
            two.publish(document);
        }
        assert_eq!(three.catch_up(), learnt(0, 0));
        two.publish(99);
        assert_eq!(three.catch_up(), learnt(PATIENCE, 1));
    }

    #[test]
    fn who_was_overtaken_goes_on_with_what_is_left() {
        let [mut one, mut two] = workers(4);
        one.publish(0);
        assert_eq!(two.catch_up(), learnt(1, 0));
        for document in 1..=6 {
            one.publish(document);
        }
        assert_eq!(two.catch_up(), learnt(4, 2));
        assert_eq!(two.known, [0, 3, 4, 5, 6].map(record));
        // Its own entry, overwritten since.
        two.publish(7);
        for document in 8..=12 {
            one.publish(document);
        }
        assert_eq!(two.catch_up(), learnt(4, 2));
    }

    #[test]
    fn a_writer_that_was_overtaken_overwrites_a_newer_entry_and_that_is_noticed() {
        let [one, mut two] = workers(2);
        let late = one
            .agreement
            .ring
            .reserve(&one.host, None)
            .unwrap()
            .unwrap();
        two.publish(1);
        two.publish(2);
        let entry = record(0).encode();
        one.agreement.ring.write(&one.host, late, &entry).unwrap();
        let mut three = Worker::beside(&one.host, 2);
        // Positions 1 and 2 are left; the slot of 2 holds position 0.
        assert_eq!(three.catch_up(), learnt(1, 0));
        for document in 3..70 {
            two.publish(document);
        }
        three.catch_up();
        assert_eq!(three.known.last(), Some(&record(69)));
    }

    #[test]
    fn bytes_that_are_no_entry_are_passed_over() {
        let [mut one, mut two] = workers(8);
        for document in 0..4 {
            one.publish(document);
        }
        let damage = |position: u64, bytes: &[u8]| {
            let key = format!("foreword/1/r/8/{position}");
            two.host.shared().get_mut(&key).unwrap().0 = bytes.to_vec();
        };
        damage(0, b"");
        damage(1, &[1_u64.to_le_bytes().as_slice(), b"noise"].concat());
        damage(2, &u64::MAX.to_le_bytes());
        assert_eq!(two.catch_up(), learnt(1, 3));
        assert_eq!(two.known, [record(3)]);
    }

    #[test]
    fn a_head_that_is_not_ours_is_an_error_and_no_trap() {
        let [mut one] = workers(8);
        for head in [&b""[..], b"123456789"] {
            let key = "foreword/1/r/8/head";
            one.host.shared().get_mut(key).unwrap().0 = head.to_vec();
            let told = one.agreement.publish(&one.host, &record(1).encode());
            assert!(told.is_err());
            let caught = one.agreement.catch_up(&one.host, 1, |_| {});
            assert!(caught.is_err());
        }
        one.host.shared().clear();
        let told = one.agreement.publish(&one.host, &record(1).encode());
        assert!(told.is_err());
    }

    #[test]
    fn what_is_too_long_is_not_told() {
        let [mut one] = workers(8);
        let documents = (0..2_000).map(|document| format!("<doc>{document}</doc>"));
        let content = documents.collect::<String>();
        let body = serde_json::json!({"messages": [{"role": "user", "content": content}]});
        let config = Config::from_json(br#"{"documents": {"max": 4096}}"#).unwrap();
        let mut orderer = Orderer::new(config);
        let rewrite = orderer.rewrite(Tenant::default(), body.to_string().as_bytes());
        let entry = rewrite.unwrap().record.encode();
        let update = one.agreement.publish(&one.host, &entry);
        assert_eq!(update, Ok(false));
        assert_eq!(one.agreement.ring.head(&one.host).unwrap().next, 0);
    }

    /// A worker in a loom model, whose threads have small stacks: entries are bytes.
    struct ModelWorker {
        host: ScriptedHost,
        agreement: Agreement,
        known: Vec<Vec<u8>>,
    }

    impl ModelWorker {
        fn beside(host: &ScriptedHost) -> Self {
            let host = ScriptedHost::beside(host);
            Self {
                agreement: Agreement::open(&host, "r", 8).unwrap(),
                host,
                known: Vec::new(),
            }
        }

        fn read_new(&mut self) {
            let known = &mut self.known;
            let learnt = self.agreement.read_new(&self.host, u64::MAX, |entry| {
                known.push(entry.to_vec());
                true
            });
            assert_eq!(learnt.unwrap().lost, 0, "an entry was lost");
        }
    }

    /// Two workers publish one entry each and then read, while a third reads, in every order of their calls: each
    /// receives the others' entries, once.
    fn in_every_order(host: fn() -> ScriptedHost) {
        const TOLD: [&[u8]; 2] = [b"one", b"two"];
        let mut model = loom::model::Builder::new();
        // More would take minutes, and every known mistake shows with three.
        model.preemption_bound = Some(3);
        model.check(move || {
            let host = host();
            let workers = [(); 2].map(|()| ModelWorker::beside(&host));
            let mut third = ModelWorker::beside(&host);
            let tellers = workers.into_iter().zip(TOLD).map(|(mut worker, entry)| {
                loom::thread::spawn(move || {
                    let told = worker.agreement.publish_within(&worker.host, entry, 64);
                    assert_eq!(told, Ok(true));
                    worker.read_new();
                    worker
                })
            });
            let tellers: Vec<_> = tellers.collect();
            third.read_new();
            let workers = tellers.into_iter().map(|teller| teller.join().unwrap());
            let workers: Vec<_> = workers.collect();
            for (mut worker, others) in workers.into_iter().zip([TOLD[1], TOLD[0]]) {
                worker.read_new();
                assert_eq!(worker.known, [others], "an entry was lost");
            }
            third.read_new();
            third.known.sort();
            assert_eq!(third.known, TOLD, "an entry was lost");
        });
    }

    #[test]
    fn in_every_order_of_calls_each_worker_learns_what_others_told() {
        in_every_order(ScriptedHost::interleaved);
    }

    #[test]
    #[should_panic(expected = "an entry was lost")]
    fn the_model_finds_a_position_that_was_given_out_twice() {
        quietly(|| in_every_order(|| ScriptedHost::interleaved().forget_conditions()));
    }

    /// Writers take a position and write it later, readers read at random times: each receives the others' entries, in
    /// order and once, except those overwritten before it read them.
    #[test]
    fn any_interleaving_tells_everything_in_order() {
        // Half a minute on one core.
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for first in 0..threads {
                scope.spawn(move || (first..200).step_by(threads).for_each(interleave));
            }
        });
    }

    fn interleave(seed: usize) {
        const ENTRIES: u32 = 16;
        let mut random = foreword_ordering::random::Random::new(seed as u64);
        let mut workers: [Worker; 3] = workers(ENTRIES);
        // Positions that were taken but not yet written, by worker.
        let mut open: [Option<u64>; 3] = [None; 3];
        let mut all: BTreeMap<u64, (usize, PeerUpdate)> = BTreeMap::new();
        for step in 0..300 {
            let at = usize::try_from(random.below(3)).unwrap();
            let worker = &mut workers[at];
            match (random.below(3), open[at]) {
                (0, None) => {
                    let position = worker.agreement.ring.reserve(&worker.host, None);
                    open[at] = position.unwrap();
                }
                (0 | 1, Some(position)) => {
                    let record = record(step);
                    let entry = record.encode();
                    worker
                        .agreement
                        .ring
                        .write(&worker.host, position, &entry)
                        .unwrap();
                    worker.agreement.own.push_back(position);
                    all.insert(position, (at, record));
                    open[at] = None;
                }
                (1, None) => {
                    let position = worker.agreement.ring.head(&worker.host).unwrap().next;
                    worker.publish(step);
                    all.insert(position, (at, record(step)));
                }
                _ => {
                    worker.catch_up();
                }
            }
        }
        for (at, position) in open.into_iter().enumerate() {
            if let Some(position) = position {
                let (worker, record) = (&workers[at], record(1_000));
                let entry = record.encode();
                worker
                    .agreement
                    .ring
                    .write(&worker.host, position, &entry)
                    .unwrap();
                all.insert(position, (at, record));
                workers[at].agreement.own.push_back(position);
            }
        }
        for (at, worker) in workers.iter_mut().enumerate() {
            worker.catch_up();
            let update = || all.values().filter(|(teller, _)| *teller != at);
            let mut others = update().map(|(_, record)| record);
            for known in &worker.known {
                assert!(
                    others.any(|update| update == known),
                    "seed {seed}: out of order, or twice"
                );
            }
            let head = worker.agreement.ring.head(&worker.host).unwrap().next;
            let unread = head - worker.agreement.next;
            let known = worker.known.len() as u64;
            assert!(
                update().count() as u64 <= known + worker.lost + unread,
                "seed {seed}"
            );
        }
    }
}
