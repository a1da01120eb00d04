//! The figures that the table, the JSON and the report show.

use super::play::{Played, Row};
use super::{Options, Plan, Version};
use crate::fault::Fault;
use foreword_report::log::{self, Place};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The results of a rehearsal: those of each version, and their differences.
pub(super) struct Figures {
    files: Vec<PathBuf>,
    pub(super) log: String,
    pub(super) workers: usize,
    pub(super) new: Of,
    pub(super) against: Option<Against>,
}

/// The results of playing the log through one version.
pub(super) struct Of {
    pub(super) module: String,
    pub(super) config: String,
    pub(super) played: Played,
    pub(super) fuel: Quantiles,
    pub(super) calls: Quantiles,
}

/// The results of playing the log through the other version, and the requests for which the two differ.
pub(super) struct Against {
    pub(super) old: Of,
    pub(super) differences: Vec<Difference>,
}

/// A request for which the two versions differ.
pub(super) struct Difference {
    pub(super) place: Place,
    pub(super) what: Vec<&'static str>,
    /// Instructions for the request in the old version and in the new one.
    pub(super) fuel: [u64; 2],
}

/// Median, 99th percentile and maximum of a count, over all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Quantiles {
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) most: u64,
}

impl Quantiles {
    /// Returns percentiles by nearest rank; `values` need not be sorted.
    fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let at = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100);
            values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
        };
        Self {
            p50: at(50),
            p99: at(99),
            most: at(100),
        }
    }
}

/// A fault, with the file and line of its request for the output.
pub(super) struct Named<'a> {
    pub(super) at: String,
    pub(super) place: Option<Place>,
    pub(super) fault: &'a Fault,
}

impl Figures {
    pub(super) fn new(options: &Options, plan: &Plan, new: Played, old: Option<Played>) -> Self {
        let new = Of::new(&plan.module, new);
        let old = plan.against.as_ref().zip(old);
        let against = old.map(|(version, old)| {
            let pairs = old.rows.iter().zip(&new.played.rows);
            let differences = pairs.filter_map(|(old, new)| {
                let what = old.differences(new);
                (!what.is_empty()).then_some(Difference {
                    place: new.place,
                    what,
                    fuel: [old.fuel, new.fuel],
                })
            });
            Against {
                differences: differences.collect(),
                old: Of::new(version, old),
            }
        });
        Self {
            files: options.files.clone(),
            log: log::names(&options.files),
            workers: plan.setup.workers,
            new,
            against,
        }
    }

    /// Returns a line's place as text, with the file's name if there are several files.
    pub(super) fn at(&self, place: Place) -> String {
        match self.files.get(place.file) {
            Some(file) if self.files.len() > 1 => format!("{}:{}", file.display(), place.number),
            _ => format!("line {}", place.number),
        }
    }

    /// Returns the first [`LISTED`] faults of a version; those outside of requests come last.
    pub(super) fn faults<'a>(&'a self, of: &'a Of) -> Vec<Named<'a>> {
        let rows = of.played.rows.iter();
        let in_requests = rows.filter_map(|row| {
            Some(Named {
                at: self.at(row.place),
                place: Some(row.place),
                fault: row.fault.as_deref()?,
            })
        });
        let beside = of
            .played
            .faults_outside_requests
            .iter()
            .map(|(place, fault)| Named {
                at: match place {
                    Some(place) => format!("about {}", self.at(*place)),
                    None => "at the end".to_owned(),
                },
                place: *place,
                fault,
            });
        in_requests.chain(beside).take(LISTED).collect()
    }

    /// Returns the figures of the old and the new version, by name; `fuel` is the word for instructions.
    pub(super) fn compared(&self, against: &Against, fuel: &str) -> [(String, [u64; 2]); 6] {
        let both = |of: fn(&Of) -> u64| [of(&against.old), of(&self.new)];
        [
            ("changed".to_owned(), both(|of| of.changed() as u64)),
            ("traps".to_owned(), both(|of| of.played.faults() as u64)),
            (format!("{fuel}, p50"), both(|of| of.fuel.p50)),
            (format!("{fuel}, p99"), both(|of| of.fuel.p99)),
            ("calls, p50".to_owned(), both(|of| of.calls.p50)),
            (
                "memory, bytes".to_owned(),
                both(|of| of.played.totals.memory_peak_bytes),
            ),
        ]
    }

    pub(super) fn to_json(&self) -> Value {
        let mut value = self.of_json(&self.new);
        value["log"] = self.log.as_str().into();
        value["workers"] = self.workers.into();
        if let Some(against) = &self.against {
            value["different"] = against.differences.len().into();
            let differences = against.differences.iter().map(|difference| {
                let mut entry = json!({
                    "line": difference.place.number,
                    "what": difference.what,
                    "fuel": {"old": difference.fuel[0], "new": difference.fuel[1]},
                });
                self.add_file(&mut entry, Some(difference.place));
                entry
            });
            value["differences"] = differences.collect();
            value["against"] = self.of_json(&against.old);
        }
        value
    }

    fn of_json(&self, of: &Of) -> Value {
        let played = &of.played;
        let faults = self.faults(of).into_iter().map(|named| {
            let mut entry = json!({
                "line": named.place.map(|place| place.number),
                "callback": named.fault.callback,
                "kind": named.fault.kind.name(),
                "message": named.fault.to_string(),
            });
            self.add_file(&mut entry, named.place);
            entry
        });
        let faults: Vec<Value> = faults.collect();
        let callbacks = played.totals.callbacks.iter().map(|(name, used)| {
            let used = json!({"count": used.count, "fuel": used.fuel, "most_fuel": used.most_fuel});
            ((*name).to_owned(), used)
        });
        let callbacks: serde_json::Map<_, _> = callbacks.collect();
        json!({
            "module": of.module,
            "config": of.config,
            "requests": played.rows.len(),
            "skipped": played.skipped(),
            "changed": of.changed(),
            "answered": of.answered(),
            "outcomes": played.outcomes,
            "traps": played.faults(),
            "faults": faults,
            "restarts": played.totals.restarts,
            "fuel": {"p50": of.fuel.p50, "p99": of.fuel.p99, "most": of.fuel.most},
            "memory_peak_bytes": played.totals.memory_peak_bytes,
            "calls": {
                "p50": of.calls.p50, "p99": of.calls.p99, "most": of.calls.most,
                "by_name": played.totals.calls,
            },
            "callbacks": callbacks,
            "log_lines": played.totals.log_lines,
            "metrics": played.totals.metrics,
        })
    }

    fn add_file(&self, entry: &mut Value, place: Option<Place>) {
        let file = place.and_then(|place| self.files.get(place.file));
        if let (Some(file), true) = (file, self.files.len() > 1) {
            entry["file"] = file.display().to_string().into();
        }
    }
}

impl Of {
    fn new(version: &Version, played: Played) -> Self {
        let each = |pick: fn(&Row) -> u64| Quantiles::of(played.rows.iter().map(pick).collect());
        let config = version.config.as_ref();
        Self {
            module: version.module.display().to_string(),
            config: config.map_or_else(String::new, |file| file.display().to_string()),
            fuel: each(|row| row.fuel),
            calls: each(|row| row.calls),
            played,
        }
    }

    /// Returns the number of requests that were forwarded with a changed body.
    pub(super) fn changed(&self) -> usize {
        self.played.rows.iter().filter(|row| row.is_changed).count()
    }

    /// Returns the number of requests that the module answered itself.
    pub(super) fn answered(&self) -> usize {
        let rows = self.played.rows.iter();
        rows.filter(|row| row.answered.is_some()).count()
    }
}

/// Maximum number of faults that are listed; further ones are only counted.
const LISTED: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occur() {
        let quantiles = |p50, p99, most| Quantiles { p50, p99, most };
        assert_eq!(Quantiles::of(vec![]), quantiles(0, 0, 0));
        assert_eq!(Quantiles::of(vec![7]), quantiles(7, 7, 7));
        assert_eq!(Quantiles::of(vec![3, 1, 2]), quantiles(2, 3, 3));
        assert_eq!(
            Quantiles::of((1..=200).rev().collect()),
            quantiles(100, 198, 200)
        );
    }
}
