//! What clients sent and what the upstream saw, by request; at the end the two are held together.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the upstream must find in a request.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// The body as the client wrote it; documents may stand in another order, and the salt is the gateway's.
    pub(crate) body: String,
    pub(crate) salt: String,
}

/// How a request ended, as its client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The upstream's answer came, whole.
    Answered,
    /// The filter refused it.
    Refused,
    /// Envoy answered for the upstream, or broke the connection off.
    Failed,
    /// The client left before it had sent all.
    Unsent,
    /// The client left before the answer.
    Left,
}

impl End {
    /// How often the upstream may have seen it.
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
    /// Of requests under way.
    expected: HashMap<u64, Expected>,
    /// Those of them whose clients have gone: they may come yet, but not for ever.
    late: VecDeque<u64>,
    seen: HashMap<u64, u32>,
    ends: HashMap<u64, End>,
    /// What was wrong with a body, in the upstream's eyes.
    faults: Vec<String>,
}

/// How many requests ended how.
pub(crate) struct Tally(BTreeMap<End, u64>);

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is about to be sent.
    pub(crate) fn expect(&self, id: u64, expected: Expected) {
        self.books().expected.insert(id, expected);
    }

    /// What the upstream is to compare a request with, now that it has come; `None`: nothing is kept of it any more.
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

    /// The client has seen the end of it. One that may still be on its way to the upstream stays expected.
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

    /// Requests of which the end is known.
    pub(crate) fn ended(&self) -> u64 {
        self.books().ends.len() as u64
    }

    /// Waits until so many have ended, or until the moment.
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

    /// Holds both sides together.
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

/// Far more than can be on their way at once.
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
