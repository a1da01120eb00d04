//! Stored responses, for requests that continue them (`previous_response_id`) or read them again.
//!
//! ```text
//!   owner (key, salt) ──▶ id ──▶ response, and the items before it     visible to its owner only
//! ```
//!
//! Number, bytes and lifetime are limited over all owners. Beyond a limit, the oldest response of the owner with the
//! most responses, or the most bytes, is dropped, so one owner's flood does not evict another's. All state is in memory and is lost with the
//! process. The current time is an argument.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// Limits on stored responses, and their lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of stored responses, over all owners.
    pub responses: usize,
    /// Maximum number of bytes of stored responses as JSON, over all owners.
    pub bytes: usize,
    /// Time for which a response is stored, counted from its end.
    pub time: Duration,
}

/// The owner of a response. Only requests with the same key and salt can read or continue it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Number of the request's API key; `None` if no keys are configured.
    pub key: Option<usize>,
    /// The request's `cache_salt`; empty if it had none.
    pub salt: String,
}

/// The responses that a server stores.
#[derive(Debug)]
pub struct Transcripts {
    bounds: Bounds,
    /// The stored responses. Every change is made under this lock.
    kept: Mutex<Kept>,
}

/// A stored response, as JSON text, since parsed values take many times its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript {
    /// The response as its client received it.
    pub response: String,
    /// The array of the input items of the whole chat so far, including those of the responses that this one continued.
    pub input: String,
}

#[derive(Debug, Default)]
struct Kept {
    owners: HashMap<Owner, Shelf>,
    bytes: usize,
    responses: usize,
}

/// The stored responses of one owner, oldest first.
#[derive(Debug, Default)]
struct Shelf {
    entries: VecDeque<Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    id: String,
    ended: Instant,
    transcript: Transcript,
}

impl Transcript {
    /// Returns the length of the texts in bytes.
    pub fn bytes(&self) -> usize {
        self.response.len() + self.input.len()
    }
}

impl Entry {
    /// Bytes that the entry counts for in [`Bounds::bytes`]: its texts and a constant.
    fn bytes(&self) -> usize {
        self.id.len() + self.transcript.bytes() + 128
    }
}

impl Transcripts {
    /// Returns an empty store with the limits `bounds`.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            kept: Mutex::default(),
        }
    }

    /// Stores a response of `owner` that ended at `now`, unless it alone exceeds [`Bounds::bytes`]. Drops older
    /// responses if necessary.
    pub fn keep(&self, owner: &Owner, id: &str, transcript: Transcript, now: Instant) {
        let entry = Entry {
            id: id.to_owned(),
            ended: now,
            transcript,
        };
        let bytes = entry.bytes();
        if bytes > self.bounds.bytes || self.bounds.responses == 0 {
            return;
        }
        let kept = &mut *self.kept.lock();
        kept.expire(now, self.bounds.time);
        while kept.responses >= self.bounds.responses {
            kept.drop_one(|shelf| shelf.entries.len());
        }
        while kept.bytes + bytes > self.bounds.bytes {
            kept.drop_one(|shelf| shelf.bytes);
        }
        let shelf = kept.owners.entry(owner.clone()).or_default();
        shelf.entries.push_back(entry);
        shelf.bytes += bytes;
        kept.bytes += bytes;
        kept.responses += 1;
    }

    /// Returns the stored response with this id; `None` if it is not stored, has expired or is another owner's.
    pub fn get(&self, owner: &Owner, id: &str, now: Instant) -> Option<Transcript> {
        let kept = &mut *self.kept.lock();
        kept.expire(now, self.bounds.time);
        let mut entries = kept.owners.get(owner)?.entries.iter();
        Some(entries.find(|entry| entry.id == id)?.transcript.clone())
    }

    /// Drops the responses whose lifetime is over at `now`.
    pub fn expire(&self, now: Instant) {
        self.kept.lock().expire(now, self.bounds.time);
    }

    /// Removes a stored response. Returns false if `owner` has none with this id.
    pub fn forget(&self, owner: &Owner, id: &str, now: Instant) -> bool {
        let kept = &mut *self.kept.lock();
        kept.expire(now, self.bounds.time);
        let Some(shelf) = kept.owners.get_mut(owner) else {
            return false;
        };
        let Some(index) = shelf.entries.iter().position(|entry| entry.id == id) else {
            return false;
        };
        let entry = shelf.entries.remove(index);
        let bytes = entry.map_or(0, |entry| entry.bytes());
        shelf.bytes -= bytes;
        if shelf.entries.is_empty() {
            kept.owners.remove(owner);
        }
        kept.bytes -= bytes;
        kept.responses -= 1;
        true
    }

    /// Returns the number of stored responses of all clients, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        let kept = self.kept.lock();
        (kept.responses, kept.bytes)
    }
}

impl Kept {
    fn expire(&mut self, now: Instant, time: Duration) {
        let (mut bytes, mut responses) = (0, 0);
        self.owners.retain(|_, shelf| {
            while let Some(entry) = shelf
                .entries
                .pop_front_if(|entry| now.saturating_duration_since(entry.ended) >= time)
            {
                shelf.bytes -= entry.bytes();
                bytes += entry.bytes();
                responses += 1;
            }
            !shelf.entries.is_empty()
        });
        self.bytes -= bytes;
        self.responses -= responses;
    }

    /// Drops the oldest response of the owner with the most by `measure`. There must be responses.
    fn drop_one(&mut self, measure: impl Fn(&Shelf) -> usize) {
        let most = self.owners.iter().max_by_key(|(_, shelf)| measure(shelf));
        let Some(owner) = most.map(|(owner, _)| owner.clone()) else {
            return;
        };
        let Some(shelf) = self.owners.get_mut(&owner) else {
            return;
        };
        if let Some(entry) = shelf.entries.pop_front() {
            shelf.bytes -= entry.bytes();
            self.bytes -= entry.bytes();
            self.responses -= 1;
        }
        if shelf.entries.is_empty() {
            self.owners.remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;

    const BOUNDS: Bounds = Bounds {
        responses: 4,
        bytes: 2000,
        time: Duration::from_secs(60),
    };

    fn owner(salt: &str) -> Owner {
        Owner {
            key: None,
            salt: salt.to_owned(),
        }
    }

    fn transcript(text: &str) -> Transcript {
        Transcript {
            response: "{}".to_owned(),
            input: text.to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_its_owners_alone_until_its_time_is_over() {
        let kept = Transcripts::new(BOUNDS);
        let now = Instant::now();
        kept.keep(&owner("a"), "r1", transcript("x"), now);
        assert_eq!(kept.get(&owner("a"), "r1", now), Some(transcript("x")));
        assert_eq!(kept.get(&owner("b"), "r1", now), None);
        let other_key = Owner {
            key: Some(1),
            ..owner("a")
        };
        assert_eq!(kept.get(&other_key, "r1", now), None);
        assert!(!kept.forget(&owner("b"), "r1", now));
        let later = now + Duration::from_secs(59);
        assert!(kept.get(&owner("a"), "r1", later).is_some());
        let too_late = now + Duration::from_secs(60);
        assert_eq!(kept.get(&owner("a"), "r1", too_late), None);
        assert_eq!(kept.held(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_takes_its_own_oldest_and_nobody_elses() {
        let kept = Transcripts::new(BOUNDS);
        let now = Instant::now();
        // It has more bytes than the flood's responses together.
        kept.keep(&owner("quiet"), "q", transcript(&"x".repeat(600)), now);
        for index in 0..50 {
            let id = format!("f{index}");
            kept.keep(&owner("flood"), &id, transcript("xxxxxxxx"), now);
        }
        assert!(kept.get(&owner("quiet"), "q", now).is_some());
        assert!(kept.get(&owner("flood"), "f49", now).is_some());
        assert!(kept.get(&owner("flood"), "f0", now).is_none());
        kept.keep(&owner("flood"), "huge", transcript(&"x".repeat(3000)), now);
        assert!(kept.get(&owner("flood"), "huge", now).is_none());
        assert!(kept.get(&owner("flood"), "f49", now).is_some());
        assert!(kept.forget(&owner("flood"), "f49", now));
        assert!(kept.get(&owner("flood"), "f49", now).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_happens_the_bounds_hold_and_the_books_agree() {
        let kept = Transcripts::new(BOUNDS);
        let mut random = Random::new(7);
        let mut now = Instant::now();
        for step in 0..2000 {
            now += Duration::from_secs(random.below(5));
            let owner = owner(&random.below(5).to_string());
            match random.below(3) {
                0 => {
                    kept.forget(&owner, &random.below(2000).to_string(), now);
                }
                _ => {
                    let text = "x".repeat(random.below(900) as usize);
                    kept.keep(&owner, &step.to_string(), transcript(&text), now);
                }
            }
            let state = kept.kept.lock();
            let entries = || state.owners.values().flat_map(|shelf| &shelf.entries);
            let bytes: usize = entries().map(Entry::bytes).sum();
            assert_eq!((state.responses, state.bytes), (entries().count(), bytes));
            assert!(state.responses <= BOUNDS.responses && state.bytes <= BOUNDS.bytes);
            assert!(state.owners.values().all(|shelf| !shelf.entries.is_empty()));
        }
    }
}
