//! A lease in shared data, which one worker at a time holds. The holder does a task for all workers.
//!
//! Shared data holds the lease's holder and its end. The holder renews it at its ticks. If the holder ends (its VM was
//! replaced, its worker ended) the lease expires, and the next worker that checks takes it. Compare-and-swap decides
//! between two that check at once.

use crate::host::{Host, HostError};
use crate::swap;

/// The registration of a worker for a lease (see the module), with which it can take and renew it.
#[derive(Debug)]
pub(super) struct Lease {
    key: String,
    /// This worker's number, unique among all workers that claim the lease.
    holder: u64,
}

impl Lease {
    /// Registers the worker's claim to the lease `name`. Creates the lease's keys in shared data: see [`crate::swap`]
    /// on when that is safe. Returns an error if the proxy refuses access, or other workers are faster at every
    /// attempt.
    pub(super) fn claim(host: &impl Host, name: &str) -> Result<Self, HostError> {
        let key = format!("foreword/lease/{LAYOUT}/{name}");
        let counter = format!("{key}/holders");
        for key in [&key, &counter] {
            swap::create(host, key, &Term::default().bytes())?;
        }
        let next = |last: &Term| Term {
            holder: last.holder.wrapping_add(1),
            until_ms: 0,
        };
        let last = swap::change(host, &counter, None, read, |last| next(last).bytes())?;
        let last = last.ok_or(HostError {
            call: "set_shared_data",
            status: CONTENDED,
        })?;
        let Term { holder, .. } = next(&last);
        Ok(Self { key, holder })
    }

    /// Takes or renews the lease for [`TERM_MS`] if it is free or this worker's. Returns whether this worker holds it
    /// now.
    pub(super) fn hold(&self, host: &impl Host, now_ms: u64) -> Result<bool, HostError> {
        let (term, number) = read(host, &self.key)?;
        let is_ours = term.holder == self.holder;
        // After the clock was set back, an ended worker's lease would last, so a lease that ends in more than two terms
        // counts as over. One term is not enough: a worker that read its clock just before another one took the lease
        // sees an end more than a term ahead, and would take it too.
        let is_over = term.until_ms <= now_ms
            || term.until_ms > now_ms.saturating_add(TERM_MS.saturating_mul(2));
        if !is_ours && !is_over {
            return Ok(false);
        }
        let left = term.until_ms.saturating_sub(now_ms);
        if is_ours && !is_over && left > TERM_MS / 2 {
            return Ok(true);
        }
        let next = Term {
            holder: self.holder,
            until_ms: now_ms.saturating_add(TERM_MS),
        };
        host.set_shared_data(&self.key, &next.bytes(), Some(number))
    }
}

/// The worker that holds a lease, and when the lease ends. Before the first holder, both are 0.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Term {
    holder: u64,
    until_ms: u64,
}

impl Term {
    fn bytes(self) -> Vec<u8> {
        swap::bytes([self.holder, self.until_ms])
    }
}

fn read<H: Host>(host: &H, key: &str) -> Result<(Term, u32), HostError> {
    let ([holder, until_ms], number) = swap::numbers(host, key, NOT_A_LEASE)?;
    Ok((Term { holder, until_ms }, number))
}

/// Duration in milliseconds for which a lease is taken or renewed.
pub(super) const TERM_MS: u64 = 3_000;

const LAYOUT: &str = "1";
const NOT_A_LEASE: u32 = 201;
const CONTENDED: u32 = 202;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::quiet::quietly;
    use crate::tests::scripted::ScriptedHost;

    #[test]
    fn one_holds_it_until_it_is_not_renewed() {
        let host = ScriptedHost::default();
        let [one, two] = [0, 1].map(|_| Lease::claim(&host, "x").unwrap());
        assert_eq!(one.hold(&host, 1_000), Ok(true));
        assert_eq!(two.hold(&host, 1_000), Ok(false));
        // Renewed in time.
        assert_eq!(one.hold(&host, 3_000), Ok(true));
        assert_eq!(two.hold(&host, 4_500), Ok(false));
        // Not renewed.
        assert_eq!(two.hold(&host, 6_000), Ok(true));
        assert_eq!(one.hold(&host, 6_001), Ok(false));
        let other = Lease::claim(&host, "y").unwrap();
        assert_eq!(other.hold(&host, 6_001), Ok(true));
    }

    #[test]
    fn of_two_that_take_it_at_once_one_gets_it() {
        let host = ScriptedHost::default();
        let one = Lease::claim(&host, "x").unwrap();
        // Another worker changes it after it was read.
        host.interfere("foreword/lease/1/x");
        assert_eq!(one.hold(&host, 1_000), Ok(false));
    }

    /// Two workers with different clocks check a lease that has just ended or is about to, in every order of their
    /// calls: at most one holds it, and once both have checked again, one does.
    fn in_every_order(host: fn() -> ScriptedHost) {
        loom::model(move || {
            let host = host();
            let [mine, other] = [0, 1].map(|_| Lease::claim(&host, "x").unwrap());
            assert_eq!(mine.hold(&host, 1_000), Ok(true));
            let end = 1_000 + TERM_MS;
            let beside = ScriptedHost::beside(&host);
            let second = loom::thread::spawn(move || other.hold(&beside, end).unwrap());
            let first = mine.hold(&host, end - 1).unwrap();
            let second = second.join().unwrap();
            assert!(!(first && second), "two hold it");
            assert!(first || second, "nobody holds it");
        });
    }

    #[test]
    fn in_every_order_of_calls_one_holds_it() {
        in_every_order(ScriptedHost::interleaved);
    }

    #[test]
    #[should_panic(expected = "two hold it")]
    fn the_model_finds_a_lease_that_is_taken_unseen() {
        quietly(|| in_every_order(|| ScriptedHost::interleaved().forget_conditions()));
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_make_it_last() {
        let host = ScriptedHost::default();
        let [one, two] = [0, 1].map(|_| Lease::claim(&host, "x").unwrap());
        assert_eq!(one.hold(&host, 100_000_000), Ok(true));
        assert_eq!(two.hold(&host, 1_000), Ok(true));
    }

    #[test]
    fn bytes_that_are_no_lease_are_an_error() {
        let host = ScriptedHost::default();
        let lease = Lease::claim(&host, "x").unwrap();
        for bytes in [&b""[..], b"0123456789", b"01234567890123456"] {
            host.shared().get_mut("foreword/lease/1/x").unwrap().0 = bytes.to_vec();
            assert!(lease.hold(&host, 0).is_err());
        }
    }
}
