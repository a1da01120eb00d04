//! Converts the engine's events on documents to the format in which gateways read them.

use foreword_engine::cache::CacheEvent;
use foreword_engine::engine::feed::{EventsSince, Position};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::feed::{Batch, Epoch, Event, Pages, TenantKey};
use foreword_ordering::tree::Scope;
use std::collections::HashMap;
use std::sync::Arc;

/// Returns the events on documents in `news` as a batch of the feed; if `tenant` is given, only that tenant's.
pub fn batch(news: &EventsSince, model: &str, tenant: Option<TenantKey>) -> Batch {
    batch_within(usize::MAX, news, model, tenant)
}

/// Returns a batch as [`batch`] does, but of bounded size, since gateways refuse bodies of more than 4 MiB: events
/// beyond about 1 MiB of JSON are left for the next batch, and a snapshot (a batch with all that is cached) omits what
/// exceeds about 3 MiB. Readers of such a snapshot know less than is cached.
pub fn bounded_batch(news: &EventsSince, model: &str, tenant: Option<TenantKey>) -> Batch {
    let most = match news.reset {
        false => MAX_BATCH_BYTES,
        true => MAX_SNAPSHOT_BYTES,
    };
    batch_within(most, news, model, tenant)
}

/// Maximum length in bytes of the events of a batch of the feed, in JSON; a single event may be longer.
const MAX_BATCH_BYTES: usize = 1 << 20;
/// Maximum length in bytes of the events of a full snapshot in JSON.
const MAX_SNAPSHOT_BYTES: usize = 3 << 20;
/// Maximum length in bytes, in the JSON of a sealed feed, of an event without its list of documents, and
/// (`DOCUMENT_BYTES`) of one document in that list.
const EVENT_BYTES: usize = 160;
const DOCUMENT_BYTES: usize = 48;

fn batch_within(most: usize, news: &EventsSince, model: &str, tenant: Option<TenantKey>) -> Batch {
    let mut keys: HashMap<Arc<str>, TenantKey> = HashMap::new();
    let mut key = |salt: &Arc<str>| match keys.get(salt) {
        Some(key) => *key,
        None => *keys
            .entry(Arc::clone(salt))
            .or_insert_with(|| TenantKey::of(salt)),
    };
    let mut events: Vec<Event> = Vec::new();
    let mut bytes = 0;
    let mut next = news.next;
    for (position, event) in (news.from..).zip(&news.events) {
        let event = match event {
            CacheEvent::DocumentsStored { salt, scope, path } => Event::Stored {
                tenant: key(salt),
                scope: Scope(*scope),
                path: (path.iter())
                    .map(|(document, tokens)| (Fingerprint(*document), *tokens))
                    .collect(),
            },
            CacheEvent::DocumentsRemoved { salt, scope, path } => Event::Removed {
                tenant: key(salt),
                scope: Scope(*scope),
                path: path
                    .iter()
                    .map(|(document, _)| Fingerprint(*document))
                    .collect(),
            },
            CacheEvent::Cleared => Event::Cleared,
            CacheEvent::Stored { .. } | CacheEvent::Removed { .. } | CacheEvent::Gap { .. } => {
                continue;
            }
        };
        let is_asked_for =
            tenant.is_none_or(|tenant| event.tenant().is_none_or(|whose| whose == tenant));
        if !is_asked_for {
            continue;
        }
        let replaced = events.pop_if(|last| includes(&event, last));
        let all = bytes + size(&event) - replaced.as_ref().map_or(0, size);
        if all > most && bytes > 0 {
            events.extend(replaced);
            if !news.reset {
                next = position;
            }
            break;
        }
        bytes = all;
        events.push(event);
    }
    Batch {
        epoch: Epoch(news.epoch),
        from: news.from,
        next,
        reset: news.reset,
        model: model.to_owned(),
        pages: Pages {
            device: news.held.device,
            host: news.held.host,
            disk: news.held.disk,
        },
        events,
    }
}

/// Returns the maximum number of bytes that an event can take in JSON.
fn size(event: &Event) -> usize {
    let documents = match event {
        Event::Stored { path, .. } => path.len(),
        Event::Removed { path, .. } => path.len(),
        Event::Cleared => 0,
    };
    EVENT_BYTES + documents * DOCUMENT_BYTES
}

/// Returns whether `event` makes `last`, the event directly before it, redundant: documents of a prompt are stored one
/// by one from the first on, and removed one by one from the last on, so a later event can have all of the one before.
fn includes(event: &Event, last: &Event) -> bool {
    let whose = |event: &Event| match event {
        Event::Stored { tenant, scope, .. } | Event::Removed { tenant, scope, .. } => {
            Some((*tenant, *scope))
        }
        Event::Cleared => None,
    };
    let goes_on = match (last, event) {
        (Event::Stored { path, .. }, Event::Stored { path: longer, .. }) => {
            longer.starts_with(path)
        }
        (Event::Removed { path, .. }, Event::Removed { path: shorter, .. }) => {
            path.starts_with(shorter)
        }
        _ => false,
    };
    goes_on && whose(last) == whose(event)
}

/// Converts a reader's position, as in a query, to a position in the engine's feed.
pub fn position(epoch: Epoch, since: u64) -> Position {
    Position {
        epoch: epoch.0,
        next: since,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_engine::engine::feed::Feed;
    use foreword_ordering::feed::FeedKey;

    fn stored(salt: &str, path: &[u64]) -> CacheEvent {
        CacheEvent::DocumentsStored {
            salt: salt.into(),
            scope: 1,
            path: path.iter().map(|&document| (document, 10)).collect(),
        }
    }

    fn removed(salt: &str, path: &[u64]) -> CacheEvent {
        CacheEvent::DocumentsRemoved {
            salt: salt.into(),
            scope: 1,
            path: path.iter().map(|&document| (document, 10)).collect(),
        }
    }

    fn paths(batch: &Batch) -> Vec<usize> {
        let length = |event: &Event| match event {
            Event::Stored { path, .. } => path.len(),
            Event::Removed { path, .. } => path.len(),
            Event::Cleared => 0,
        };
        batch.events.iter().map(length).collect()
    }

    #[test]
    fn a_path_that_grows_is_told_once() {
        let feed = Feed::new();
        let start = feed.documents_since(None, 0);
        feed.publish(vec![
            stored("", &[1]),
            stored("", &[1, 2]),
            stored("", &[1, 2, 3]),
            stored("", &[1, 4]),
            stored("salt", &[1, 4, 5]),
        ]);
        let since = position(Epoch(start.epoch), start.next);
        let news = feed.documents_since(Some(since), 9);
        let all = batch(&news, "m", None);
        assert_eq!(paths(&all), [3, 2, 3]);
        assert_eq!((all.from, all.next), (0, 5));
        // Another tenant's events are counted, but not included.
        let one = batch(&news, "m", Some(TenantKey::of("salt")));
        assert_eq!((paths(&one), one.next), (vec![3], 5));
        assert!(
            !serde_json::to_string(&all.wire(None))
                .unwrap()
                .contains("salt")
        );
    }

    #[test]
    fn a_path_that_shrinks_is_told_once() {
        let feed = Feed::new();
        let events = [("", 4), ("salt", 3)].map(|(salt, count)| {
            let path = [1, 2, 3, 4];
            (1..=count).map(move |count| stored(salt, &path[..count]))
        });
        feed.publish(events.into_iter().flatten().collect());
        let start = feed.documents_since(None, 0);
        feed.publish(vec![
            removed("", &[1, 2, 3, 4]),
            removed("", &[1, 2, 3]),
            removed("salt", &[1, 2, 3]),
            removed("", &[1, 2]),
            removed("", &[1]),
        ]);
        let since = position(Epoch(start.epoch), start.next);
        let all = batch(&feed.documents_since(Some(since), 9), "m", None);
        assert_eq!(paths(&all), [3, 3, 1]);
        assert_eq!(all.next, start.next + 5);
    }

    #[test]
    fn batches_and_snapshots_are_bounded_in_bytes() {
        const MIB: usize = 1 << 20;
        let feed = Feed::new();
        let start = feed.documents_since(None, 0);
        let path = |number: u64| (number * 100..number * 100 + 50).collect::<Vec<_>>();
        let salts = ["", "salt"];
        let stored = (0..4_000).map(|number| stored(salts[number % 2], &path(number as u64)));
        feed.publish(stored.collect());
        let key = FeedKey::new(&[7; 32]);
        let bytes = |batch: &Batch| serde_json::to_vec(&batch.wire(Some(&key))).unwrap().len();

        let news = feed.documents_since(None, 0);
        let snapshot = bounded_batch(&news, "m", None);
        assert!(snapshot.reset && snapshot.next == 4_000);
        assert!((2 * MIB..4 * MIB).contains(&bytes(&snapshot)));
        assert_eq!(batch(&news, "m", None).events.len(), 4_000);

        let mut since = position(Epoch(start.epoch), start.next);
        let (mut batches, mut events) = (0, 0);
        while since.next < 4_000 {
            let news = feed.documents_since(Some(since), 4_096);
            let batch = bounded_batch(&news, "m", Some(TenantKey::of("salt")));
            assert!(batch.from == since.next && batch.next > batch.from);
            assert!(bytes(&batch) < 2 * MIB);
            since = position(batch.epoch, batch.next);
            (batches, events) = (batches + 1, events + batch.events.len());
        }
        assert_eq!((batches, events), (5, 2_000));
    }
}
