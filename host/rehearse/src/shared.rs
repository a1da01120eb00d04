//! The data (with compare-and-swap), queues and metrics that VMs share. As in Envoy, they outlive a VM that traps.

use crate::abi::status;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of bytes of all shared data, queues and metrics together. Envoy has no such limit.
const MAX_BYTES: usize = 1 << 30;

/// The data, queues and metrics that the VMs of a proxy share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Values by key, each with its number for compare-and-swap.
    data: BTreeMap<Vec<u8>, (Vec<u8>, u32)>,
    /// The number of the last value that was set.
    number: u32,
    queues: Vec<Queue>,
    metrics: Vec<Metric>,
    /// Number of bytes that count against [`MAX_BYTES`].
    bytes: usize,
}

#[derive(Debug)]
struct Queue {
    name: Vec<u8>,
    /// The VM that registered the queue last.
    vm: usize,
    entries: VecDeque<Vec<u8>>,
    /// True if the VM must still be called about new entries.
    is_ready: bool,
}

/// A counter, gauge or histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) kind: MetricKind,
    /// A counter's sum, a gauge's value, or a histogram's number of samples.
    pub(crate) value: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl Shared {
    pub(crate) fn get(&self, key: &[u8]) -> Option<(&[u8], u32)> {
        let (value, number) = self.data.get(key)?;
        Some((value, *number))
    }

    /// Sets a value. Returns `CAS_MISMATCH`, without effect, if `number` is neither 0 nor the current value's.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8], number: u32) -> i32 {
        let old = self.data.get(key);
        if old.is_some_and(|(_, now)| number != 0 && number != *now) {
            return status::CAS_MISMATCH;
        }
        let held = old.map_or(0, |(old, _)| key.len() + old.len());
        let bytes = self.bytes - held + key.len() + value.len();
        if bytes > MAX_BYTES {
            return status::INTERNAL_FAILURE;
        }
        self.bytes = bytes;
        // 0 would mean an unconditional change.
        self.number = self.number.checked_add(1).unwrap_or(1);
        self.data
            .insert(key.to_vec(), (value.to_vec(), self.number));
        status::OK
    }

    /// Registers a queue and returns its id; `None` if the memory limit is reached. Callbacks go to the VM that
    /// registered last.
    pub(crate) fn register_queue(&mut self, vm: usize, name: &[u8]) -> Option<u32> {
        if let Some(at) = self.resolve_queue(name) {
            self.queues.get_mut(at as usize)?.vm = vm;
            return Some(at);
        }
        let id = u32::try_from(self.queues.len()).ok()?;
        if self.bytes + name.len() + QUEUE_BYTES > MAX_BYTES {
            return None;
        }
        self.bytes += name.len() + QUEUE_BYTES;
        self.queues.push(Queue {
            name: name.to_vec(),
            vm,
            entries: VecDeque::new(),
            is_ready: false,
        });
        Some(id)
    }

    pub(crate) fn resolve_queue(&self, name: &[u8]) -> Option<u32> {
        let at = self.queues.iter().position(|queue| queue.name == name)?;
        u32::try_from(at).ok()
    }

    pub(crate) fn enqueue(&mut self, id: u32, entry: &[u8]) -> i32 {
        let Some(queue) = self.queues.get_mut(id as usize) else {
            return status::NOT_FOUND;
        };
        if self.bytes + entry.len() + QUEUE_BYTES > MAX_BYTES {
            return status::INTERNAL_FAILURE;
        }
        self.bytes += entry.len() + QUEUE_BYTES;
        queue.entries.push_back(entry.to_vec());
        queue.is_ready = true;
        status::OK
    }

    pub(crate) fn dequeue(&mut self, id: u32) -> Result<Vec<u8>, i32> {
        let queue = self.queues.get_mut(id as usize).ok_or(status::NOT_FOUND)?;
        let entry = queue.entries.pop_front().ok_or(status::EMPTY)?;
        self.bytes -= entry.len() + QUEUE_BYTES;
        Ok(entry)
    }

    /// Returns a queue with new entries for which its VM was not called yet, as the VM's index and the queue's id, and
    /// marks the call as done; `None` if there is none.
    pub(crate) fn next_ready(&mut self) -> Option<(usize, u32)> {
        let mut queues = self.queues.iter_mut().enumerate();
        let (id, queue) = queues.find(|(_, queue)| queue.is_ready)?;
        queue.is_ready = false;
        Some((queue.vm, u32::try_from(id).ok()?))
    }

    /// Returns the id of the metric `name`, which is defined if it is new; `None` if the memory limit is reached.
    pub(crate) fn define(&mut self, name: String, kind: MetricKind) -> Option<u32> {
        let known = (self.metrics.iter()).position(|metric| metric.name == name);
        if let Some(at) = known {
            return u32::try_from(at).ok();
        }
        if self.bytes + name.len() + METRIC_BYTES > MAX_BYTES {
            return None;
        }
        self.bytes += name.len() + METRIC_BYTES;
        self.metrics.push(Metric {
            name,
            kind,
            value: 0,
        });
        u32::try_from(self.metrics.len() - 1).ok()
    }

    pub(crate) fn metric(&mut self, id: u32) -> Option<&mut Metric> {
        self.metrics.get_mut(id as usize)
    }

    pub(crate) fn metrics(&self) -> &[Metric] {
        &self.metrics
    }
}

/// Bytes that a queue, and each of its entries, count for in addition to their texts.
const QUEUE_BYTES: usize = 64;
/// Bytes that a metric counts for in addition to its name.
const METRIC_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_holds_only_where_nobody_changed_it_since() {
        let mut shared = Shared::default();
        assert_eq!(shared.get(b"k"), None);
        assert_eq!(shared.set(b"k", b"1", 7), status::OK);
        let (_, first) = shared.get(b"k").unwrap();
        assert_eq!(shared.set(b"k", b"2", first), status::OK);
        assert_eq!(shared.set(b"k", b"3", first), status::CAS_MISMATCH);
        assert_eq!(shared.get(b"k").unwrap().0, b"2");
        assert_eq!(shared.set(b"k", b"3", 0), status::OK);
        assert_eq!(shared.get(b"k").unwrap().0, b"3");
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_replaced_frees_its_room() {
        let mut shared = Shared::default();
        let value = vec![0; MAX_BYTES / 4];
        for _ in 0..9 {
            assert_eq!(shared.set(b"a", &value, 0), status::OK);
        }
        let full = [b"b", b"c", b"d"].map(|key| shared.set(key, &value, 0));
        assert_eq!(full, [status::OK, status::OK, status::INTERNAL_FAILURE]);
        assert_eq!(shared.set(b"a", b"", 0), status::OK);
        assert_eq!(shared.set(b"d", &value, 0), status::OK);
    }

    #[test]
    fn a_queue_hands_out_in_turn_and_tells_its_vm_once() {
        let mut shared = Shared::default();
        assert_eq!(shared.enqueue(0, b"lost"), status::NOT_FOUND);
        let id = shared.register_queue(1, b"q").unwrap();
        assert_eq!(shared.resolve_queue(b"q"), Some(id));
        assert_eq!(shared.next_ready(), None);
        shared.enqueue(id, b"a");
        shared.enqueue(id, b"b");
        assert_eq!(shared.next_ready(), Some((1, id)));
        assert_eq!(shared.next_ready(), None);
        assert_eq!(shared.dequeue(id), Ok(b"a".to_vec()));
        assert_eq!(shared.dequeue(id), Ok(b"b".to_vec()));
        assert_eq!(shared.dequeue(id), Err(status::EMPTY));
    }

    #[test]
    fn a_metric_of_one_name_is_one() {
        let mut shared = Shared::default();
        let define = |shared: &mut Shared, name: &str| {
            shared.define(name.to_owned(), MetricKind::Counter).unwrap()
        };
        let [a, b, again] = ["a", "b", "a"].map(|name| define(&mut shared, name));
        assert!(a == again && a != b);
        shared.metric(a).unwrap().value += 2;
        assert_eq!(shared.metrics()[0].value, 2);
    }
}
