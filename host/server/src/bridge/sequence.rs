//! The position of a subscriber in an engine's numbered batches of events, and what the next batch means.
//!
//! ```text
//!   after batch 7:   8 is next · 0 to 7 are known · 9 is a gap · 0 to 7 with a later time than 7: a restart
//! ```
//!
//! Numbers begin at 0 whenever an engine starts. A batch's exact time tells a restarted engine's batch 7 from the old;
//! the hash of its bytes does if it cannot be read.

/// The last batch of an engine's events that a subscriber received.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sequence {
    last: Option<BatchStamp>,
    /// Hash of the bytes of the last batch of cache events if the batch could not be read, since its time is then
    /// unknown; otherwise `None`.
    skipped: Option<u64>,
}

/// Number and time of a batch of events, which together identify it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchStamp {
    /// Number of the batch of cache events, which the engine gave it.
    pub(super) number: u64,
    /// Time of the batch of cache events, in seconds since 1970.
    pub(super) seconds: f64,
}

/// The relation of a batch of events to the batches received before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchKind {
    /// The batch of cache events follows the last one received.
    Next,
    /// The batch of cache events was received before.
    Known,
    /// Batches of cache events between the last one received and this one are missing.
    Gap,
    /// The engine restarted and numbers its batches from 0 again: what is known of its cache is no longer true.
    Restart,
}

impl Sequence {
    /// Returns how a batch of cache events relates to those received before. If none was received yet, number 0 is
    /// [`Next`](BatchKind::Next), and any other is a gap.
    pub(super) fn classify(&self, batch: BatchStamp) -> BatchKind {
        let next = self.last.map_or(0, |last| last.number.saturating_add(1));
        if batch.number > next {
            return BatchKind::Gap;
        }
        match self.last {
            Some(last) if batch.number <= last.number && batch.seconds > last.seconds => {
                BatchKind::Restart
            }
            Some(last) if batch.number <= last.number => BatchKind::Known,
            _ => BatchKind::Next,
        }
    }

    /// Records the batch of cache events as received.
    pub(super) fn advance(&mut self, batch: BatchStamp) {
        *self = Self {
            last: Some(batch),
            skipped: None,
        };
    }

    /// Records the batch of cache events with this number as received although it could not be read; `hash` is the hash
    /// of its bytes.
    pub(super) fn skip(&mut self, number: u64, hash: u64) {
        let seconds = self.last.map_or(0.0, |last| last.seconds);
        *self = Self {
            last: Some(BatchStamp { number, seconds }),
            skipped: Some(hash),
        };
    }

    /// Forgets which batch of cache events was received last, as if none had been.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns whether no batch of cache events was received since the last reset, or at all.
    pub(super) fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Returns the number of the batch of cache events from which to request a replay: the last batch received, to
    /// check that the engine has not restarted; 0 if there is none.
    pub(super) fn from(&self) -> u64 {
        self.last.map_or(0, |last| last.number)
    }

    /// Returns whether a batch of cache events, the first one replayed from [`Sequence::from`], is the batch received
    /// last: number and time are equal.
    pub(super) fn confirms(&self, batch: BatchStamp) -> bool {
        self.skipped.is_none()
            && self.last.is_some_and(|last| {
                last.number == batch.number && last.seconds.to_bits() == batch.seconds.to_bits()
            })
    }

    /// Returns whether an unreadable batch of cache events is the one received last, which was unreadable too: number
    /// and hash of its bytes are equal.
    pub(super) fn confirms_skipped(&self, number: u64, hash: u64) -> bool {
        self.skipped == Some(hash) && self.last.is_some_and(|last| last.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(number: u64, seconds: f64) -> BatchStamp {
        BatchStamp { number, seconds }
    }

    #[test]
    fn batches_are_told_apart_by_number_and_time() {
        let mut sequence = Sequence::default();
        assert_eq!(sequence.classify(mark(0, 1.0)), BatchKind::Next);
        assert_eq!(sequence.classify(mark(5, 1.0)), BatchKind::Gap);
        sequence.advance(mark(5, 10.0));
        for (batch, heard) in [
            (mark(6, 11.0), BatchKind::Next),
            (mark(6, 9.0), BatchKind::Next),
            (mark(5, 10.0), BatchKind::Known),
            (mark(2, 7.0), BatchKind::Known),
            (mark(7, 11.0), BatchKind::Gap),
            (mark(5, 10.5), BatchKind::Restart),
            (mark(0, 12.0), BatchKind::Restart),
        ] {
            assert_eq!(sequence.classify(batch), heard, "{batch:?}");
        }
        sequence.reset();
        assert_eq!(sequence.classify(mark(0, 12.0)), BatchKind::Next);
    }

    #[test]
    fn a_life_goes_on_where_the_same_batch_has_the_same_number() {
        let mut sequence = Sequence::default();
        assert!(sequence.is_empty() && !sequence.confirms(mark(0, 1.0)));
        sequence.advance(mark(3, 1.5));
        assert_eq!(sequence.from(), 3);
        assert!(sequence.confirms(mark(3, 1.5)));
        assert!(!sequence.confirms(mark(3, 1.6)) && !sequence.confirms(mark(4, 1.5)));
    }

    #[test]
    fn a_batch_that_was_passed_over_is_followed_by_the_next_and_known_by_its_bytes() {
        let mut sequence = Sequence::default();
        sequence.advance(mark(3, 1.5));
        assert!(!sequence.confirms_skipped(3, 77));
        sequence.skip(4, 77);
        assert!(sequence.confirms_skipped(4, 77));
        assert!(!sequence.confirms_skipped(4, 78) && !sequence.confirms_skipped(3, 77));
        assert_eq!(sequence.classify(mark(5, 1.7)), BatchKind::Next);
        assert_eq!(sequence.classify(mark(3, 1.5)), BatchKind::Known);
        assert!(!sequence.confirms(mark(4, 1.6)) && !sequence.confirms(mark(4, 1.5)));
        sequence.advance(mark(5, 1.7));
        assert!(sequence.confirms(mark(5, 1.7)) && !sequence.confirms_skipped(5, 77));
    }

    #[test]
    fn the_last_number_there_is_has_no_next() {
        let mut sequence = Sequence::default();
        sequence.advance(mark(u64::MAX, 1.0));
        assert_eq!(sequence.classify(mark(u64::MAX, 1.0)), BatchKind::Known);
    }
}
