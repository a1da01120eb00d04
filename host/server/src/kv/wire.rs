//! Converts the engine's document events to the wire format.

use foreword_engine::cache::CacheEvent;
use foreword_engine::engine::feed::{News, Position};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::feed::{Batch, Epoch, Event, Pages, TenantKey};
use foreword_ordering::tree::Scope;
use std::collections::HashMap;
use std::sync::Arc;

/// Returns the document events of `news` as a batch of the feed; with `tenant`, only that tenant's.
pub fn batch(news: &News, model: &str, tenant: Option<TenantKey>) -> Batch {
    let mut keys: HashMap<Arc<str>, TenantKey> = HashMap::new();
    let mut key = |salt: &Arc<str>| match keys.get(salt) {
        Some(key) => *key,
        None => *keys
            .entry(Arc::clone(salt))
            .or_insert_with(|| TenantKey::of(salt)),
    };
    let mut events = Vec::new();
    for event in &news.events {
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
        if is_asked_for {
            push(&mut events, event);
        }
    }
    Batch {
        epoch: Epoch(news.epoch),
        from: news.from,
        next: news.next,
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

/// Adds an event, replacing the last if its path only extends that one's: documents are stored one by one.
fn push(events: &mut Vec<Event>, event: Event) {
    if let (
        Some(Event::Stored {
            tenant,
            scope,
            path,
        }),
        Event::Stored {
            tenant: other_tenant,
            scope: other_scope,
            path: longer,
        },
    ) = (events.last_mut(), &event)
        && (&*tenant, &*scope) == (other_tenant, other_scope)
        && longer.starts_with(path)
    {
        path.clone_from(longer);
    } else {
        events.push(event);
    }
}

/// Converts a reader's position to one in the engine's feed.
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

    fn stored(salt: &str, path: &[u64]) -> CacheEvent {
        CacheEvent::DocumentsStored {
            salt: salt.into(),
            scope: 1,
            path: path.iter().map(|&document| (document, 10)).collect(),
        }
    }

    fn paths(batch: &Batch) -> Vec<usize> {
        let length = |event: &Event| match event {
            Event::Stored { path, .. } => path.len(),
            Event::Removed { .. } | Event::Cleared => 0,
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
        assert!(!serde_json::to_string(&all).unwrap().contains("salt"));
    }
}
