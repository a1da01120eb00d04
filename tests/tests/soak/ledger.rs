//! The requests that clients sent and those that the upstream saw, compared at the end.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the upstream must find in a request.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// The body as the client wrote it. Documents may be in another order, and the gateway sets the salt.
    pub(crate) body: String,
    pub(crate) salt: String,
}

/// How a request ended, as its client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The upstream's whole answer came.
    Answered,
    /// The filter refused the request.
    Refused,
    /// Envoy answered instead of the upstream, or closed the connection.
    Failed,
    /// The client left before it had sent everything.
    Unsent,
    /// The client left before the answer.
    Left,
}

impl End {
    /// Returns how often the upstream may have seen a request that ended so.
    fn seen(self) -> &'static [u32] {
        match self {
            Self::Answered => &[1],
            Self::Refused | Self::Unsent => &[0],
            Self::Failed | Self::Left => &[0, 1],
        }
    }
}

#[derive(Default)]
pub(crate) struct Ledger {
    books: Mutex<Books>,
    has_ended: Condvar,
}

#[derive(Default)]
struct Books {
    /// Expectations of requests in flight.
    expected: HashMap<u64, Expected>,
    /// Those among them whose clients have gone: they may still arrive, but not for ever.
    late: VecDeque<u64>,
    seen: HashMap<u64, u32>,
    ends: HashMap<u64, End>,
    /// Faults that the upstream found in bodies.
    faults: Vec<String>,
}

/// Number of requests by how they ended.
pub(crate) struct Tally(BTreeMap<End, u64>);

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request that is about to be sent.
    pub(crate) fn expect(&self, id: u64, expected: Expected) {
        self.books().expected.insert(id, expected);
    }

    /// Returns the expectation for a request that has arrived, or `None` if it is no longer kept.
    pub(crate) fn arrived(&self, id: u64) -> Option<Expected> {
        let mut books = self.books();
        *books.seen.entry(id).or_default() += 1;
        let expected = books.expected.get(&id).cloned();
        if expected.is_none() && !books.ends.contains_key(&id) {
            books
                .faults
                .push(format!("request {id:x} came and nobody had sent it"));
        }
        expected
    }

    pub(crate) fn fault(&self, fault: String) {
        self.books().faults.push(fault);
    }

    /// Records the end that the client saw. A request that may still be on its way to the upstream stays expected.
    pub(crate) fn end(&self, id: u64, end: End) {
        let mut books = self.books();
        books.ends.insert(id, end);
        if end == End::Answered {
            books.expected.remove(&id);
        } else {
            books.late.push_back(id);
        }
        if books.late.len() > MAX_LATE
            && let Some(id) = books.late.pop_front()
        {
            books.expected.remove(&id);
        }
        self.has_ended.notify_all();
    }

    /// Returns the number of requests whose end is known.
    pub(crate) fn ended(&self) -> u64 {
        self.books().ends.len() as u64
    }

    /// Waits until this many requests have ended, or until the given time.
    pub(crate) fn wait(&self, ended: u64, until: Instant) {
        let mut books = self.books();
        while (books.ends.len() as u64) < ended {
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return;
            }
            let waited = self.has_ended.wait_timeout(books, left);
            books = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Compares both sides, and returns the tally.
    pub(crate) fn settle(&self) -> Tally {
        let books = self.books();
        assert!(
            books.faults.is_empty(),
            "{} faults, first: {}",
            books.faults.len(),
            books.faults[0]
        );
        let mut tally = BTreeMap::new();
        for (id, end) in &books.ends {
            let seen = books.seen.get(id).copied().unwrap_or_default();
            assert!(
                end.seen().contains(&seen),
                "request {id:x} ended as {end:?} and was seen {seen} times"
            );
            *tally.entry(*end).or_default() += 1;
        }
        for id in books.seen.keys() {
            assert!(books.ends.contains_key(id), "nobody sent request {id:x}");
        }
        Tally(tally)
    }
}

/// Far more requests than can be in flight at once.
const MAX_LATE: usize = 1_000;

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self
            .0
            .iter()
            .map(|(end, count)| format!("{count} {end:?}").to_lowercase());
        f.write_str(&words.collect::<Vec<_>>().join(", "))
    }
}
