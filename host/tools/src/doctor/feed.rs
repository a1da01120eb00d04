//! Reads which documents the engine's cache contains from the KV feed of `foreword serve` or `foreword kv-bridge`.

use super::client::{Client, Reply, refusal};
use super::zmq::PATIENCE;
use foreword_ordering::feed::{Batch, Event};
use serde_json::Value;

/// A position in the KV feed: the feed's epoch (a name that changes when the feed restarts), and the number of the next
/// event in it.
pub(super) struct Position {
    epoch: String,
    next: u64,
}

/// A summary of the KV feed's events since a position.
pub(super) struct EventsSince {
    /// Fingerprints of the documents in the paths (lists of documents) that the events report as stored, or the reason
    /// why they cannot be read.
    pub(super) documents: Result<Vec<u64>, String>,
    /// Number of events that report a path (a list of documents) as stored in the engine's cache.
    pub(super) stored: usize,
    /// True if an event reports a removal, or the feed restarted.
    pub(super) is_removal: bool,
}

/// Returns the current position of the KV feed (an engine's cache events over HTTP) at `url`: the next event to come.
///
/// # Errors
/// Returns the unexpected response as a message if it is not a feed's, or the reason why there is no response.
pub(super) fn position(client: &Client, url: &str) -> Result<Position, String> {
    let answer = client.get(url);
    let batch = answer.as_ref().map_or(Value::Null, Reply::json);
    let epoch = batch["epoch"].as_str().map(str::to_owned);
    match (epoch, batch["next"].as_u64()) {
        (Some(epoch), Some(next)) => Ok(Position { epoch, next }),
        _ => Err(refusal(&format!("GET {url}"), &answer)),
    }
}

/// Returns a summary of the events after `since` in the KV feed (an engine's cache events over HTTP) at `url`. Waits
/// for the first one, [`PATIENCE`] at most.
///
/// # Errors
/// Returns the unexpected response as a message if it is not a feed's, or the reason why there is no response.
pub(super) fn news(client: &Client, url: &str, since: &Position) -> Result<EventsSince, String> {
    let (epoch, next, wait) = (&since.epoch, since.next, PATIENCE.as_millis());
    let answer = client.get(&format!("{url}?epoch={epoch}&since={next}&wait_ms={wait}"));
    let reply = answer.as_ref().map_err(Clone::clone)?;
    // The types of events are readable even if the feed is sealed.
    let batch = reply.json();
    let Some(events) = batch["events"].as_array() else {
        return Err(refusal(&format!("GET {url}"), &answer));
    };
    let stored = events.iter().filter(|event| event["type"] == "stored");
    let stored = stored.count();
    let is_removal = batch["reset"] == true || stored < events.len();
    let read = Batch::read(&reply.body, None).map_err(|error| error.to_string());
    let documents = |event: &Event| match event {
        Event::Stored { path, .. } => path.iter().map(|(document, _)| document.0).collect(),
        Event::Removed { .. } | Event::Cleared => Vec::new(),
    };
    Ok(EventsSince {
        documents: read.map(|batch| batch.events.iter().flat_map(documents).collect()),
        stored,
        is_removal,
    })
}
