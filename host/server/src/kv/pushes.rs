//! The last pushes of updates between gateways, stored in memory within limits.

use foreword_ordering::feed::{Epoch, GatewayId, Pushes, SealedPush};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The last pushes of updates of all gateways, and the gateways that listen for them.
pub(super) struct Records {
    /// The stored pushes of updates and the listening gateways. Valid after each line that changes it, so a panic under
    /// the lock does no harm.
    state: Mutex<Recent>,
    /// A number that changes with every new push of updates, and when a gateway starts to listen.
    pub(super) progress: watch::Sender<u64>,
}

struct Recent {
    epoch: u64,
    /// Position of the oldest stored push of updates: the number of pushes that were dropped before it.
    first: u64,
    pushes: VecDeque<SealedPush>,
    bytes: usize,
    /// The time at which each gateway last requested the updates that others pushed.
    listeners: BTreeMap<GatewayId, Instant>,
    /// For each API key, the number of bytes of updates that it may still push, and the time at which that number was
    /// computed.
    budgets: Vec<(f64, Instant)>,
}

impl Records {
    /// Returns an empty store of pushes of updates, with rate limits for `keys` API keys.
    pub(super) fn new(keys: usize) -> Self {
        let budget = (RATE_BYTES * BURST_SECONDS, Instant::now());
        Self {
            state: Mutex::new(Recent {
                epoch: RandomState::new().build_hasher().finish(),
                first: 0,
                pushes: VecDeque::new(),
                bytes: 0,
                listeners: BTreeMap::new(),
                budgets: vec![budget; keys],
            }),
            progress: watch::Sender::new(0),
        }
    }

    /// Takes `bytes` from the rate budget of the API key with the number `holder`. Returns false if too little is left.
    pub(super) fn admit(&self, holder: usize, bytes: usize) -> bool {
        let mut state = self.state.lock();
        let Some((left, counted)) = state.budgets.get_mut(holder) else {
            return false;
        };
        let now = Instant::now();
        let earned = (now - *counted).as_secs_f64() * RATE_BYTES;
        *counted = now;
        *left = (*left + earned).min(RATE_BYTES * BURST_SECONDS);
        let bytes = bytes.max(LEAST_BYTES) as f64;
        let is_admitted = *left >= bytes;
        if is_admitted {
            *left -= bytes;
        }
        is_admitted
    }

    /// Stores a gateway's push, and drops the oldest pushes beyond the limits. Returns the number of other gateways
    /// that listen.
    pub(super) fn take(&self, push: SealedPush) -> u32 {
        let others = {
            let mut state = self.state.lock();
            let others = state.others(push.gateway);
            state.bytes += weight(&push);
            state.pushes.push_back(push);
            while state.bytes > KEPT_BYTES || state.pushes.len() > KEPT_PUSHES {
                let Some(oldest) = state.pushes.pop_front() else {
                    break;
                };
                state.bytes -= weight(&oldest);
                state.first += 1;
            }
            others
        };
        self.progress.send_modify(|changes| *changes += 1);
        others
    }

    /// Returns the stored pushes of other gateways from position `since` on, with the position after them. Returns no
    /// pushes if `since` is `None` or of another epoch. Records that `gateway` listens.
    pub(super) fn since(&self, gateway: GatewayId, since: Option<(Epoch, u64)>) -> Pushes {
        let (pushes, is_new) = {
            let mut state = self.state.lock();
            let is_new = state.listen(gateway);
            (state.since(gateway, since), is_new)
        };
        if is_new {
            self.progress.send_modify(|changes| *changes += 1);
        }
        pushes
    }
}

impl Recent {
    /// Records that a gateway listens. Returns true if it did not before. At the limit, replaces the gateway that
    /// listened least recently.
    fn listen(&mut self, gateway: GatewayId) -> bool {
        let now = Instant::now();
        self.listeners
            .retain(|_, seen| now.duration_since(*seen) < LISTENING);
        let is_new = self.listeners.insert(gateway, now).is_none();
        if self.listeners.len() > MAX_LISTENERS {
            let oldest = self.listeners.iter().min_by_key(|(_, seen)| **seen);
            if let Some(oldest) = oldest.map(|(gateway, _)| *gateway) {
                self.listeners.remove(&oldest);
            }
        }
        is_new
    }

    fn others(&self, gateway: GatewayId) -> u32 {
        let now = Instant::now();
        let listening = self
            .listeners
            .iter()
            .filter(|(other, seen)| **other != gateway && now.duration_since(**seen) < LISTENING);
        u32::try_from(listening.count()).unwrap_or(u32::MAX)
    }

    fn since(&self, gateway: GatewayId, since: Option<(Epoch, u64)>) -> Pushes {
        let next = self.first + self.pushes.len() as u64;
        let from = since
            .filter(|(epoch, from)| epoch.0 == self.epoch && *from <= next)
            .map_or(next, |(_, from)| from.max(self.first));
        // Fits: there are fewer pushes.
        let known = (from - self.first) as usize;
        let pushes = self.pushes.range(known..);
        Pushes {
            epoch: Epoch(self.epoch),
            next,
            others: self.others(gateway),
            pushes: pushes
                .filter(|push| push.gateway != gateway)
                .cloned()
                .collect(),
        }
    }
}

/// Returns the bytes that a push counts for in [`KEPT_BYTES`]: its payload and a constant.
fn weight(push: &SealedPush) -> usize {
    push.payload_bytes() + 128
}

/// Bytes of updates that gateways with one API key may push in a second, on average: about ten thousand requests.
pub(super) const RATE_BYTES: f64 = (8 << 20) as f64;
/// Number of seconds' worth of [`RATE_BYTES`] that gateways with one API key may push at once.
const BURST_SECONDS: f64 = 2.0;
/// Minimum number of bytes that a push of updates counts for in [`RATE_BYTES`], so that empty pushes are limited too.
const LEAST_BYTES: usize = 512;
/// Maximum number of bytes of all stored pushes of updates: about two thousand requests.
const KEPT_BYTES: usize = 1 << 20;
/// Maximum number of stored pushes of updates of all gateways.
const KEPT_PUSHES: usize = 4_096;
/// Maximum number of gateways that are recorded as listening for others' updates.
const MAX_LISTENERS: usize = 1_024;
/// Time for which a gateway counts as listening after it requested others' updates: a long poll and a pause.
const LISTENING: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::feed::Push;

    fn push(gateway: u64, bytes: usize) -> SealedPush {
        let push = Push {
            gateway: GatewayId(gateway),
            number: 0,
            audience: 0,
            outstanding: 0,
            updates: vec![vec![0; bytes]],
        };
        push.sealed(None)
    }

    fn heard(pushes: &Pushes) -> Vec<u64> {
        let pushes = pushes.pushes.iter();
        pushes.map(|push| push.gateway.0).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn each_hears_what_others_told_since_and_never_itself() {
        let records = Records::new(1);
        let [one, two, three] = [1, 2, 3].map(GatewayId);
        records.take(push(2, 1));
        let start = records.since(one, None);
        assert_eq!((heard(&start), start.others), (vec![], 0));
        assert_eq!(records.since(two, None).others, 1);
        for gateway in [2, 1, 3] {
            records.take(push(gateway, 1));
        }
        let place = Some((start.epoch, start.next));
        let more = records.since(one, place);
        assert_eq!((heard(&more), more.others), (vec![2, 3], 1));
        assert_eq!(heard(&records.since(two, place)), [1, 3]);
        let place = Some((more.epoch, more.next));
        assert_eq!(heard(&records.since(one, place)), [] as [u64; 0]);
        // Positions of another epoch, or ahead of this one: start with new pushes.
        let (epoch, next) = (Epoch(more.epoch.0 ^ 1), more.next);
        for place in [(epoch, 0), (more.epoch, next + 1)] {
            let anew = records.since(three, Some(place));
            assert_eq!((heard(&anew), anew.next), (vec![], next));
        }
        tokio::time::advance(LISTENING).await;
        assert_eq!(records.since(one, None).others, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_bounded_and_who_was_overtaken_goes_on_with_the_oldest() {
        let records = Records::new(1);
        let start = records.since(GatewayId(1), None);
        let place = Some((start.epoch, start.next));
        for _ in 0..100 {
            records.take(push(2, 30_000));
        }
        let most = KEPT_BYTES / 60_000;
        let kept = records.since(GatewayId(1), place);
        assert!((most - 1..=most).contains(&kept.pushes.len()));
        assert_eq!(kept.next, 100);
        for _ in 0..2 * KEPT_PUSHES {
            records.take(push(2, 0));
        }
        let kept = records.since(GatewayId(1), place);
        assert!(kept.pushes.len() <= KEPT_PUSHES);
        let bytes: usize = kept.pushes.iter().map(weight).sum();
        assert_eq!(records.state.lock().bytes, bytes);
        assert!(bytes <= KEPT_BYTES);
        for gateway in 0..2 * MAX_LISTENERS as u64 {
            records.since(GatewayId(gateway), None);
        }
        assert_eq!(records.state.lock().listeners.len(), MAX_LISTENERS);
    }

    #[tokio::test(start_paused = true)]
    async fn each_key_has_a_budget_of_bytes_that_time_fills_again() {
        let records = Records::new(2);
        let burst = (RATE_BYTES * BURST_SECONDS) as usize;
        assert!(records.admit(0, burst));
        assert!(!records.admit(0, 1));
        assert!(records.admit(1, burst), "another key's is its own");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(records.admit(0, RATE_BYTES as usize));
        assert!(!records.admit(0, 0), "an empty one counts too");
        assert!(!records.admit(2, 1), "nobody's");
    }
}
