//! Memory of Envoy and its VMs, over time.

use std::fmt;
use std::time::Duration;

use foreword_tests::Gateway;

/// Measures one life of Envoy.
#[derive(Debug, Default)]
pub(crate) struct Memory(Vec<Look>);

#[derive(Debug, Clone, Copy)]
struct Look {
    at: Duration,
    resident_bytes: u64,
    /// Memory of the largest VM, as the filter measures it; absent where there is no VM, or none has reported.
    vm_mebibytes: Option<f64>,
}

impl Memory {
    pub(crate) fn look(&mut self, gateway: &Gateway, at: Duration) {
        self.0.push(Look {
            at,
            resident_bytes: gateway.resident_bytes().unwrap(),
            vm_mebibytes: largest_vm(gateway),
        });
    }

    /// Returns the mean resident memory in the third and in the last quarter of the time.
    pub(crate) fn last_quarters(&self) -> [u64; 2] {
        let (first, last) = (self.0.first().unwrap().at, self.0.last().unwrap().at);
        let mean = |from: u32, to: u32| {
            let moment = |quarter| first + (last - first) * quarter / 4;
            let looks = self
                .0
                .iter()
                .filter(|look| (moment(from)..=moment(to)).contains(&look.at));
            let bytes: Vec<u64> = looks.map(|look| look.resident_bytes).collect();
            bytes.iter().sum::<u64>() / (bytes.len() as u64).max(1)
        };
        [mean(2, 3), mean(3, 4)]
    }
}

/// Returns the histogram's last value, over all workers and since Envoy began.
fn largest_vm(gateway: &Gateway) -> Option<f64> {
    let stats = gateway
        .admin_get("/stats?filter=foreword_vm_mebibytes")
        .unwrap();
    let (_, largest) = stats.trim().rsplit_once("P100(")?;
    let (_, largest) = largest.trim_end_matches(')').split_once(',')?;
    largest.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Shows about twenty measurements, in columns.
impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seconds  resident MB  largest VM MiB")?;
        for look in self.0.iter().step_by((self.0.len() / 20).max(1)) {
            let vm = look
                .vm_mebibytes
                .map_or("-".to_owned(), |size| size.to_string());
            let resident = look.resident_bytes / 1_000_000;
            writeln!(f, "{:7}  {resident:11}  {vm:>14}", look.at.as_secs())?;
        }
        Ok(())
    }
}
