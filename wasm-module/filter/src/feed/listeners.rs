//! Tracks whether gateways of other proxies listen to updates about what an engine has cached.
//!
//! The worker that leads (reads the engine's event feed for all workers) learns this from the feed's server and records
//! it in shared data, where the other workers of its proxy look at their ticks (timer callbacks).

use super::lease::TERM_MS;
use crate::host::{Host, HostError};
use crate::swap;

/// A worker's access to the record, in shared data, of whether gateways of other proxies listen to updates about what
/// an engine has cached.
#[derive(Debug)]
pub(super) struct Listeners {
    key: String,
}

impl Listeners {
    /// Opens the record of whether gateways of other proxies listen to updates about the engine that `name` identifies,
    /// and creates its key in shared data: see [`crate::swap`] on when that is safe.
    pub(super) fn open(host: &impl Host, name: &str) -> Result<Self, HostError> {
        let key = format!("foreword/listeners/{LAYOUT}/{name}");
        swap::create(host, &key, &0_u64.to_le_bytes())?;
        Ok(Self { key })
    }

    /// Records that a gateway of another proxy listens. The record expires after [`NOTED_MS`] unless it is written
    /// again.
    pub(super) fn note(&self, host: &impl Host, now_ms: u64) {
        if self.left_ms(host, now_ms) <= NOTED_MS / 2 {
            let until = now_ms.saturating_add(NOTED_MS).to_le_bytes();
            // Only the leader writes it. If it cannot, workers push nothing for a while.
            let _ = host.set_shared_data(&self.key, &until, None);
        }
    }

    /// Returns whether a gateway of another proxy listens, according to the record.
    pub(super) fn are_there(&self, host: &impl Host, now_ms: u64) -> bool {
        self.left_ms(host, now_ms) > 0
    }

    /// Returns the milliseconds until the record expires; 0 if it has expired, or if its end is too far ahead, which
    /// means that the clock was set back.
    fn left_ms(&self, host: &impl Host, now_ms: u64) -> u64 {
        let noted = host.shared_data(&self.key).ok().flatten();
        let until = noted.and_then(|(bytes, _)| <[u8; 8]>::try_from(bytes).ok());
        let left = until.map_or(0, u64::from_le_bytes).saturating_sub(now_ms);
        if left > NOTED_MS { 0 } else { left }
    }
}

/// Lifetime in milliseconds of the record that a gateway listens: longer than it takes another worker to take over the
/// feed and call the server.
const NOTED_MS: u64 = 2 * TERM_MS;

const LAYOUT: &str = "1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::scripted::ScriptedHost;

    #[test]
    fn a_note_reaches_all_workers_and_is_over_after_a_while() {
        let host = ScriptedHost::default();
        let [one, two] = [(); 2].map(|()| Listeners::open(&host, "x").unwrap());
        let other = Listeners::open(&host, "y").unwrap();
        assert!(!two.are_there(&host, 0));
        one.note(&host, 10_000);
        assert!(two.are_there(&host, 10_000) && !other.are_there(&host, 10_000));
        // It is not rewritten each time.
        let written = host.shared().values().map(|(_, number)| *number).max();
        one.note(&host, 10_100);
        assert_eq!(
            host.shared().values().map(|(_, number)| *number).max(),
            written
        );
        let later = 10_000 + NOTED_MS / 2;
        one.note(&host, later);
        let end = later + NOTED_MS;
        assert!(two.are_there(&host, end - 1) && !two.are_there(&host, end));
        assert!(!two.are_there(&host, 1_000), "the clock was set back");
    }

    #[test]
    fn without_shared_data_nobody_listens() {
        let host = ScriptedHost::default();
        let listeners = Listeners::open(&host, "x").unwrap();
        host.shared().clear();
        assert!(!listeners.are_there(&host, 0));
        host.refuse("set_shared_data");
        listeners.note(&host, 0);
        assert!(!listeners.are_there(&host, 0));
        assert!(Listeners::open(&host, "z").is_err());
    }
}
