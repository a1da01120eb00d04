//! The table for standard output.

use super::figures::{Against, Figures, Of};
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
        let _ = writeln!(
            table,
            "\n{:<28}{:>16}{:>16}{:>16}\n{:<28}{:>16}{:>16}{:>16}\n{:<28}{:>16}{:>16}{:>16}",
            "a request",
            "p50",
            "p99",
            "most",
            "instructions (fuel)",
            grouped(of.fuel.p50),
            grouped(of.fuel.p99),
            grouped(of.fuel.most),
            "calls into the proxy",
            grouped(of.calls.p50),
            grouped(of.calls.p99),
            grouped(of.calls.most),
        );
        let _ = writeln!(
            table,
            "\nmemory of a VM, at most: {} bytes ({} VMs)",
            grouped(of.played.totals.memory_peak_bytes),
            self.workers.max(1),
        );
        let _ = writeln!(
            table,
            "\n{:<32}{:>12}{:>16}{:>16}",
            "callback", "calls", "fuel, mean", "fuel, most"
        );
        for (name, used) in &of.played.totals.callbacks {
            let _ = writeln!(
                table,
                "{name:<32}{:>12}{:>16}{:>16}",
                grouped(used.count),
                grouped(used.fuel / used.count.max(1)),
                grouped(used.most_fuel),
            );
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
        let _ = writeln!(
            table,
            "\nagainst {}{}: {} of {} requests differ",
            old.module,
            if old.config.is_empty() {
                String::new()
            } else {
                format!(", {}", old.config)
            },
            grouped(against.differences.len() as u64),
            grouped(new.played.rows.len() as u64),
        );
        let _ = writeln!(table, "{:<16}{:>16}{:>16}", "", "old", "new");
        for (name, [old, new]) in self.compared(against, "fuel") {
            let _ = writeln!(
                table,
                "{name:<16}{:>16}{:>16}{:>10}",
                grouped(old),
                grouped(new),
                change(old, new)
            );
        }
        for difference in against.differences.iter().take(LISTED) {
            let [old, new] = difference.fuel;
            let _ = writeln!(
                table,
                "  {}: {} ({} to {} instructions)",
                self.at(difference.place),
                difference.what.join(", "),
                grouped(old),
                grouped(new),
            );
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
    if new > old {
        format!("+{change}")
    } else {
        change
    }
}

/// Most faults and most differences that are listed.
const LISTED: usize = 20;
