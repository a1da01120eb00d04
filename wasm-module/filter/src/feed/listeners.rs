//! Whether gateways of other proxies listen to what is told of an engine.
//!
//! The worker that leads the engine's feed hears it from the feed's server, and notes it in shared data, where the other
//! workers of its proxy look at their ticks.

use super::lease::TERM_MS;
use crate::host::{Host, HostError};
use crate::swap;

/// A worker's view of who listens.
#[derive(Debug)]
pub(super) struct Listeners {
    key: String,
}

impl Listeners {
    /// Creates the key too: see [`crate::agreement`] on who may create keys.
    pub(super) fn open(host: &impl Host, name: &str) -> Result<Self, HostError> {
        let key = format!("foreword/listeners/{LAYOUT}/{name}");
        swap::create(host, &key, &0_u64.to_le_bytes())?;
        Ok(Self { key })
    }

    /// Notes that somebody listens, for [`NOTED_MS`] unless it is noted again.
    pub(super) fn note(&self, host: &impl Host, now_ms: u64) {
        if self.left_ms(host, now_ms) <= NOTED_MS / 2 {
            let until = now_ms.saturating_add(NOTED_MS).to_le_bytes();
            // The leader alone writes it. If it cannot, nobody is told for a while.
            let _ = host.set_shared_data(&self.key, &until, None);
        }
    }

    /// Returns whether somebody listens, as was noted last.
    pub(super) fn are_there(&self, host: &impl Host, now_ms: u64) -> bool {
        self.left_ms(host, now_ms) > 0
    }

    /// Returns the time for which the note still holds. A clock that was set back does not make it last.
    fn left_ms(&self, host: &impl Host, now_ms: u64) -> u64 {
        let noted = host.shared_data(&self.key).ok().flatten();
        let until = noted.and_then(|(bytes, _)| <[u8; 8]>::try_from(bytes).ok());
        let left = until.map_or(0, u64::from_le_bytes).saturating_sub(now_ms);
        if left > NOTED_MS { 0 } else { left }
    }
}

/// Time for which a note holds: longer than it takes until another worker leads, and has asked.
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
        // It is not written anew each time.
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
