//! The table for standard output.

use super::figures::{Against, Figures, Of, Quantiles};
use foreword_report::words::{grouped, percent};
use std::fmt::Write as _;

impl Figures {
    pub(super) fn to_table(&self) -> String {
        let of = &self.new;
        let mut table = format!(
            "{} requests: {} changed, {} answered by the module, {} traps\n",
            grouped(of.played.rows.len() as u64),
            grouped(of.changed() as u64),
            grouped(of.answered() as u64),
            grouped(of.played.faults() as u64),
        );
        for (name, count) in &of.played.outcomes {
            let _ = writeln!(table, "  {:>10}  {name}", grouped(*count));
        }
        table += "\na request                                p50             p99            most\n";
        for (name, quantiles) in [
            ("instructions (fuel)", of.fuel),
            ("calls into the proxy", of.calls),
        ] {
            let Quantiles { p50, p99, most } = quantiles;
            let [p50, p99, most] = [p50, p99, most].map(grouped);
            let _ = writeln!(table, "{name:<28}{p50:>16}{p99:>16}{most:>16}");
        }
        let memory = grouped(of.played.totals.memory_peak_bytes);
        let workers = self.workers.max(1);
        let _ = writeln!(
            table,
            "\nmemory of a VM, at most: {memory} bytes ({workers} VMs)"
        );
        table += "\ncallback                               calls      fuel, mean      fuel, most\n";
        for (name, used) in &of.played.totals.callbacks {
            let mean = used.fuel / used.count.max(1);
            let [calls, mean, most] = [used.count, mean, used.most_fuel].map(grouped);
            let _ = writeln!(table, "{name:<32}{calls:>12}{mean:>16}{most:>16}");
        }
        self.list_faults(&mut table, of);
        if let Some(against) = &self.against {
            self.compare(&mut table, against);
        }
        table
    }

    fn list_faults(&self, table: &mut String, of: &Of) {
        let faults = self.faults(of);
        let all = of.played.faults();
        if all > 0 {
            let _ = writeln!(table, "\ntraps");
        }
        for named in faults.iter().take(LISTED) {
            let _ = writeln!(table, "  {}: {}", named.at, named.fault);
        }
        if all > LISTED {
            let _ = writeln!(table, "  … and {} more", all - LISTED);
        }
    }

    fn compare(&self, table: &mut String, against: &Against) {
        let (old, new) = (&against.old, &self.new);
        let config = match &*old.config {
            "" => String::new(),
            config => format!(", {config}"),
        };
        let _ = writeln!(
            table,
            "\nagainst {}{config}: {} of {} requests differ",
            old.module,
            grouped(against.differences.len() as u64),
            grouped(new.played.rows.len() as u64),
        );
        let _ = writeln!(table, "{:<16}{:>16}{:>16}", "", "old", "new");
        for (name, [old, new]) in self.compared(against, "fuel") {
            let (change, [old, new]) = (change(old, new), [old, new].map(grouped));
            let _ = writeln!(table, "{name:<16}{old:>16}{new:>16}{change:>10}");
        }
        for difference in against.differences.iter().take(LISTED) {
            let (at, what) = (self.at(difference.place), difference.what.join(", "));
            let [old, new] = difference.fuel.map(grouped);
            let _ = writeln!(table, "  {at}: {what} ({old} to {new} instructions)");
        }
        if against.differences.len() > LISTED {
            let more = against.differences.len() - LISTED;
            let _ = writeln!(table, "  … and {more} more");
        }
    }
}

/// Returns the change from `old` to `new` in words or in percent.
pub(super) fn change(old: u64, new: u64) -> String {
    if old == new {
        return "as before".to_owned();
    }
    if old == 0 {
        return "new".to_owned();
    }
    let change = percent(new as f64 / old as f64 - 1.0);
    let sign = if new > old { "+" } else { "" };
    format!("{sign}{change}")
}

/// Maximum number of faults, and of differences, that are listed.
const LISTED: usize = 20;
