//! Buffers counter additions and histogram samples in a Wasm VM until its next periodic tick (timer callback).
//!
//! A call from a VM into the proxy costs about a microsecond, and a request adds to about ten counters. Written one by
//! one, they would be a fifth of a request's host calls. So they are summed here and written ten times a second.
//!
//! Counters are written in reverse order of their definition. So a reader that sees a change in an early-defined total
//! also sees everything that was counted with it.

use crate::host::MetricId;

/// Counter additions and histogram samples of one Wasm VM, buffered until its next tick (periodic timer callback).
#[derive(Debug, Default)]
pub(crate) struct MetricBuffer {
    /// The buffered sums, all non-zero, sorted by the counter's id.
    counts: Vec<(MetricId, u64)>,
    samples: Vec<(MetricId, u64)>,
}

impl MetricBuffer {
    pub(crate) const fn new() -> Self {
        Self {
            counts: Vec::new(),
            samples: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, counter: MetricId, amount: u64) {
        let known = |(known, _): &(MetricId, u64)| *known;
        match self.counts.binary_search_by_key(&counter, known) {
            Ok(at) => {
                if let Some((_, count)) = self.counts.get_mut(at) {
                    *count = count.saturating_add(amount);
                }
            }
            Err(at) => self.counts.insert(at, (counter, amount)),
        }
    }

    /// Buffers a sample of a histogram. Returns `false`, buffering nothing, if the buffer already has [`MAX_SAMPLES`]
    /// samples.
    pub(crate) fn record(&mut self, histogram: MetricId, value: u64) -> bool {
        let has_room = self.samples.len() < MAX_SAMPLES;
        if has_room {
            self.samples.push((histogram, value));
        }
        has_room
    }

    /// Passes all buffered samples to `record`, then the sums of the counters to `add` in descending order of their
    /// ids, and clears the buffer.
    pub(crate) fn tell(
        &mut self,
        mut record: impl FnMut(MetricId, u64),
        mut add: impl FnMut(MetricId, u64),
    ) {
        for (histogram, value) in self.samples.drain(..) {
            record(histogram, value);
        }
        for (counter, amount) in self.counts.drain(..).rev() {
            add(counter, amount);
        }
    }
}

/// The maximum number of histogram samples buffered in one VM: those of about 300 requests. Writing them at a periodic
/// timer callback takes a third of a millisecond.
const MAX_SAMPLES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// All samples and counts written.
    fn told(metric_buffer: &mut MetricBuffer) -> [Vec<(u32, u64)>; 2] {
        let (mut samples, mut counts) = (Vec::new(), Vec::new());
        metric_buffer.tell(
            |MetricId(id), value| samples.push((id, value)),
            |MetricId(id), amount| counts.push((id, amount)),
        );
        [samples, counts]
    }

    #[test]
    fn counts_are_added_up_and_told_once_the_first_defined_last() {
        let mut metric_buffer = MetricBuffer::new();
        for (id, amount) in [(4, 1), (12, 7), (0, 1), (4, 2), (0, u64::MAX)] {
            metric_buffer.add(MetricId(id), amount);
        }
        let [_, counts] = told(&mut metric_buffer);
        assert_eq!(counts, [(12, 7), (4, 3), (0, u64::MAX)]);
        assert_eq!(told(&mut metric_buffer), [vec![], vec![]]);
    }

    #[test]
    fn samples_are_told_one_by_one_and_bounded() {
        let mut metric_buffer = MetricBuffer::new();
        for value in 0..MAX_SAMPLES as u64 {
            assert!(metric_buffer.record(MetricId(3), value));
        }
        assert!(!metric_buffer.record(MetricId(3), 9));
        let [samples, _] = told(&mut metric_buffer);
        assert_eq!(samples.len(), MAX_SAMPLES);
        assert_eq!(samples[1], (3, 1));
        assert!(metric_buffer.record(MetricId(3), 9));
    }
}
