//! The results of a `foreword measure` run, as tables and as JSON.

use super::arm::Arm;
use super::figures::{Estimate, Part, Row, counted, rows, times};
use super::prompt::SYSTEM;
use super::replay::{self, Kind, Outcome, Workload};
use super::steps::Steps;
use foreword_engine::backend::cuda::Ceilings;
use foreword_engine::engine::Stepper;
use foreword_ordering::policy::Place;
use foreword_report::words::{grouped, percent, section};
use foreword_simulation::workload::Ranks;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::fmt::Write;

/// The model and the workload to measure, by the command line.
pub(super) struct Setting {
    pub(super) model: String,
    pub(super) kind: Kind,
    pub(super) queries: u32,
    pub(super) seeds: u32,
    pub(super) overlap: f64,
    pub(super) ranks: Ranks,
    pub(super) place: Place,
    pub(super) k: u32,
    pub(super) documents: u32,
}

impl Setting {
    /// Returns the trace with those parameters that have a meaning for it, in words.
    pub(super) fn trace(&self) -> String {
        let Self {
            overlap, documents, ..
        } = self;
        let (kind, ranks) = (self.kind.name(), self.ranks.name());
        match self.kind {
            Kind::Bursty => format!(
                "{kind} trace from {documents} documents with overlap {overlap} and {ranks} ranks"
            ),
            Kind::Geospatial => format!("{kind} trace with {ranks} ranks"),
            Kind::Uniform => format!("{kind} trace from {documents} documents"),
            Kind::Disjoint => format!("{kind} trace"),
        }
    }
}

/// The results of one run. Parts that were not selected are `None` or empty.
pub(super) struct Results {
    pub(super) setting: Setting,
    /// Description of the device.
    pub(super) device: String,
    pub(super) ceilings: Option<Ceilings>,
    pub(super) steps: Option<Steps>,
    pub(super) orders: Option<Experiment>,
    pub(super) sweeps: Vec<Experiment>,
    pub(super) throughput: Vec<Experiment>,
    pub(super) pipelining: Option<Value>,
}

/// The results of one workload under several arms.
pub(super) struct Experiment {
    /// Name of the parameter that is varied.
    pub(super) name: &'static str,
    /// Value of that parameter; for `trace`, an index of [`Kind::ALL`].
    pub(super) value: f64,
    pub(super) workload: Workload,
    pub(super) outcomes: Vec<Outcome>,
}

impl Experiment {
    /// Runs the workload under `arms`.
    pub(super) fn run(
        name: &'static str,
        value: f64,
        engine: &mut Stepper,
        workload: Workload,
        arms: &[Arm],
        bar: &ProgressBar,
    ) -> anyhow::Result<Self> {
        bar.set_message(format!("{name} {}", label(name, value)));
        let salt = format!("{name} {value}");
        let outcomes = replay::run(engine, &salt, &workload, arms, || bar.inc(1))?;
        Ok(Self {
            name,
            value,
            workload,
            outcomes,
        })
    }

    /// Runs the workload under the arms of sweeps.
    pub(super) fn sweep(
        name: &'static str,
        value: f64,
        engine: &mut Stepper,
        workload: Workload,
        bar: &ProgressBar,
    ) -> anyhow::Result<Self> {
        Self::run(name, value, engine, workload, &Arm::FEW, bar)
    }

    /// Returns a row for each arm.
    pub(super) fn rows(&self, part: Part) -> Vec<Row> {
        // Every prompt begins with the system text, and with up to 15 tokens of the first document on the same page.
        rows(&self.outcomes, part, SYSTEM as u32 + 15)
    }

    /// Returns the value of the parameter as text.
    pub(super) fn label(&self) -> String {
        label(self.name, self.value)
    }

    /// Returns requests per second, and tokens of prompts and answers per second.
    pub(super) fn rates(&self, outcome: &Outcome) -> (f64, f64) {
        let samples = outcome.seeds.iter().flatten();
        let (mut requests, mut tokens) = (0.0, 0.0);
        for sample in samples {
            requests += 1.0;
            tokens += f64::from(sample.prompt_tokens + self.workload.answer);
        }
        let seconds = outcome.seconds.max(f64::MIN_POSITIVE);
        (requests / seconds, tokens / seconds)
    }

    fn to_json(&self) -> Value {
        let mut json = json!({
            "name": self.name,
            "value": self.label(),
            "trace": self.workload.kind.name(),
            "overlap": self.workload.overlap,
            "ranks": self.workload.ranks.name(),
            "place": self.workload.place.name(),
            "k": self.workload.k,
            "documents": self.workload.corpus(),
            "at_once": self.workload.at_once,
            "answer_tokens": self.workload.answer,
            "kv_tokens": self.workload.kv_tokens,
            "queries": self.workload.queries,
            "seeds": self.workload.seeds,
        });
        for part in Part::ALL {
            let rows = self.rows(part);
            json[part.name()] = rows.iter().map(Row::to_json).collect();
        }
        json
    }
}

fn label(name: &str, value: f64) -> String {
    match name {
        "trace" => Kind::ALL
            .get(value as usize)
            .map_or("", |kind| kind.name())
            .to_owned(),
        "orders" => String::new(),
        "pool" => grouped(value as u64),
        _ => format!("{value}"),
    }
}

impl Results {
    /// Returns results without figures.
    pub(super) fn new(setting: Setting) -> Self {
        Self {
            setting,
            device: String::new(),
            ceilings: None,
            steps: None,
            orders: None,
            sweeps: Vec::new(),
            throughput: Vec::new(),
            pipelining: None,
        }
    }

    /// Returns all results as the object that `--json` prints.
    pub(super) fn to_json(&self) -> Value {
        let throughput = self.throughput.iter().flat_map(|experiment| {
            experiment.outcomes.iter().map(|outcome| {
                let (requests, tokens) = experiment.rates(outcome);
                json!({
                    "arm": outcome.arm.name(),
                    "at_once": experiment.workload.at_once,
                    "answer_tokens": experiment.workload.answer,
                    "requests_per_s": requests,
                    "tokens_per_s": tokens,
                })
            })
        });
        let steps = self.steps.as_ref();
        json!({
            "model": self.setting.model,
            "device": self.device,
            "ceilings": self.ceilings.as_ref()
                .map(|c| json!({"matrix_tflops": c.matrix_flops / 1e12, "copy_tb_s": c.copy_bytes / 1e12})),
            "prefill": steps.map(|steps| &steps.prefill),
            "decode": steps.map(|steps| &steps.decode),
            "host_tier": steps.map(|steps| &steps.host_tier),
            "orders": self.orders.as_ref().map(Experiment::to_json),
            "sweeps": self.sweeps.iter().map(Experiment::to_json).collect::<Vec<_>>(),
            "throughput": throughput.collect::<Vec<_>>(),
            "pipelining": self.pipelining,
        })
    }

    /// Returns the results as tables for a terminal.
    pub(super) fn to_table(&self) -> String {
        let mut table = format!("{} on {}\n", self.setting.model, self.device);
        if let Some(steps) = &self.steps {
            write_steps(&mut table, steps);
        }
        if let Some(orders) = &self.orders {
            self.write_orders(&mut table, orders);
        }
        write_sweeps(&mut table, &self.sweeps);
        let throughput = self.throughput.iter().flat_map(|experiment| {
            experiment.outcomes.iter().map(|outcome| {
                let (requests, tokens) = experiment.rates(outcome);
                let (arm, at_once) = (outcome.arm.name(), experiment.workload.at_once);
                format!("{arm:<18}{at_once:>9}{requests:>14.2}{tokens:>12.0}")
            })
        });
        let heading = "throughput          at once    requests/s    tokens/s";
        table += &section(heading, throughput);
        for run in self.pipelining.iter().filter_map(Value::as_array).flatten() {
            let number = |key: &str| run[key].as_f64().unwrap_or_default();
            let _ = writeln!(
                table,
                "pipelining, {} system tokens, retrieval of {:.0} ms: serial {:.1} ms, pipelined {:.1} ms, {} less",
                run["system_tokens"],
                1e3 * number("retrieval_s"),
                1e3 * number("serial_s"),
                1e3 * number("pipelined_s"),
                percent(number("below_serial"))
            );
        }
        table
    }

    fn write_orders(&self, table: &mut String, orders: &Experiment) {
        let Setting {
            queries,
            seeds,
            place,
            k,
            ..
        } = &self.setting;
        let _ = writeln!(
            table,
            "\n{queries} queries, {seeds} seeds, {k} documents of 200 tokens, {}, place {}, {} KV tokens an arm",
            self.setting.trace(),
            place.name(),
            grouped(orders.workload.kv_tokens)
        );
        for part in Part::ALL {
            let _ = write!(table, "\n{:<15}", part.name());
            write_cells(table, HEADS);
            for row in orders.rows(part) {
                let [name, others @ ..] = cells(&row);
                let _ = write!(table, "{name:<15}");
                write_cells(table, others);
            }
        }
    }
}

/// Number of a row's cells.
pub(super) const CELLS: usize = 13;
/// Heads of the columns after the arm's name, in the order of [`cells`].
const HEADS: [&str; CELLS - 1] = [
    "mean, ms",
    "p50, ms",
    "p95",
    "mean below",
    "p50 below",
    "faster",
    "fast",
    "saved",
    "benefit",
    "hint",
    "order, µs",
    "build, µs",
];
/// Widths of the columns of [`HEADS`], in characters.
const WIDTHS: [usize; CELLS - 1] = [16, 16, 9, 16, 16, 8, 7, 9, 11, 7, 10, 10];

/// Writes cells, each at the right of its column, and ends the line.
fn write_cells(table: &mut String, cells: [impl std::fmt::Display; CELLS - 1]) {
    for (cell, width) in cells.into_iter().zip(WIDTHS) {
        let _ = write!(table, "{cell:>width$}");
    }
    table.push('\n');
}

/// Returns a row's cells: name, mean, median, 95th percentile, mean and median below retrieval order, shares faster and
/// fast, tokens saved, requests that benefited, tokens of the hint, and times of ordering and building.
pub(super) fn cells(row: &Row) -> [String; CELLS] {
    let none = || "".to_owned();
    [
        row.arm.name(),
        estimate(row.mean, 1e3, ""),
        estimate(row.p50, 1e3, ""),
        format!("{:.1}", 1e3 * row.p95.mean),
        row.mean_below
            .map_or_else(none, |below| estimate(below, 100.0, " %")),
        row.p50_below
            .map_or_else(none, |below| estimate(below, 100.0, " %")),
        row.faster.map_or_else(none, whole_percent),
        row.fast.map_or_else(none, whole_percent),
        percent(row.saved_tokens),
        format!("{}/{}", row.benefiting, row.requests),
        row.hint_tokens
            .map_or_else(none, |tokens| format!("{tokens:.1}")),
        format!("{:.0}", 1e6 * row.ordering),
        format!("{:.0}", 1e6 * row.building),
    ]
}

fn whole_percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Formats an estimate with its interval, such as `12.3 ± 0.4 %`.
fn estimate(value: Estimate, scale: f64, unit: &str) -> String {
    match value.within {
        Some(within) => format!("{:.1} ± {:.1}{unit}", scale * value.mean, scale * within),
        None => format!("{:.1}{unit}", scale * value.mean),
    }
}

fn write_steps(table: &mut String, steps: &Steps) {
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap_or_default();
    let prefill = &steps.prefill;
    let _ = writeln!(
        table,
        "\nprefill of {} tokens: {:.1} ms, {:.0} tokens/s",
        prefill["tokens"],
        1e3 * number(prefill, "seconds"),
        number(prefill, "tokens_per_s")
    );
    for cached in prefill["cached"].as_array().into_iter().flatten() {
        let _ = writeln!(
            table,
            "  with {} of these cached: {} of that",
            cached["cached_tokens"],
            percent(number(cached, "of_cold"))
        );
    }
    for decode in &steps.decode {
        let _ = match &decode["skipped"] {
            Value::String(why) => writeln!(table, "decode, {} at once: {why}", decode["batch"]),
            _ => writeln!(
                table,
                "decode, {} at once: {:.2} ms a token, {:.0} tokens/s",
                decode["batch"],
                1e3 * number(decode, "seconds"),
                number(decode, "tokens_per_s")
            ),
        };
    }
    if steps.host_tier["skipped"].is_null() {
        let _ = writeln!(
            table,
            "loading {} tokens from the host's memory: {} of computing them",
            steps.host_tier["tokens"],
            percent(number(&steps.host_tier, "loads_of_computing"))
        );
    }
}

fn write_sweeps(table: &mut String, sweeps: &[Experiment]) {
    if sweeps.is_empty() {
        return;
    }
    let _ = write!(table, "\n{:<20}", "sweep: p50, ms");
    for arm in Arm::FEW {
        let _ = write!(table, "{:>16}", arm.name());
    }
    for arm in Arm::AGAINST_RETRIEVAL {
        let _ = write!(
            table,
            "{:>30}{:>17}{:>9}",
            format!("{}: p50 below", arm.name()),
            "mean below",
            "saved"
        );
    }
    table.push('\n');
    for experiment in sweeps {
        let rows = experiment.rows(Part::All);
        let _ = write!(
            table,
            "{:<20}",
            format!("{} {}", experiment.name, experiment.label())
        );
        for row in &rows {
            let _ = write!(table, "{:>16}", estimate(row.p50, 1e3, ""));
        }
        for arm in Arm::AGAINST_RETRIEVAL {
            let Some(row) = rows.iter().find(|row| row.arm == arm) else {
                continue;
            };
            let below = |below: Option<Estimate>| {
                below.map_or_else(String::new, |below| estimate(below, 100.0, " %"))
            };
            let _ = write!(
                table,
                "{:>30}{:>17}{:>9}",
                below(row.p50_below),
                below(row.mean_below),
                percent(row.saved_tokens)
            );
        }
        table.push('\n');
    }
}

/// Returns an arm's times to the first token, in milliseconds, ascending; empty if the arm was not measured.
pub(super) fn distribution(experiment: &Experiment, arm: Arm) -> Vec<f64> {
    let mut outcomes = experiment.outcomes.iter();
    let outcome = outcomes.find(|outcome| outcome.arm == arm);
    let samples = outcome
        .into_iter()
        .flat_map(|outcome| counted(outcome, Part::All));
    let seconds = times(samples).into_iter();
    seconds.map(|seconds| 1e3 * seconds).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::figures;
    use super::*;

    /// Results with two arms and one point of a sweep.
    pub(in crate::cli::measure) fn example() -> Results {
        let experiment = |name, value| Experiment {
            name,
            value,
            workload: Workload {
                kind: Kind::Bursty,
                overlap: 0.6,
                ranks: Ranks::Shuffled,
                place: Place::Auto,
                k: 5,
                documents: 500,
                at_once: 1,
                answer: 50,
                queries: 10,
                seeds: 2,
                kv_tokens: 16_384,
            },
            outcomes: figures::tests::example(),
        };
        Results {
            device: "a <device>".into(),
            orders: Some(experiment("orders", 0.0)),
            sweeps: vec![
                experiment("overlap", 0.4),
                experiment("trace", 1.0),
                experiment("pool", 4_096.0),
            ],
            throughput: vec![experiment("throughput", 8.0)],
            ..Results::new(Setting {
                model: "0.1b".into(),
                kind: Kind::Bursty,
                queries: 10,
                seeds: 2,
                overlap: 0.6,
                ranks: Ranks::Shuffled,
                place: Place::Auto,
                k: 5,
                documents: 500,
            })
        }
    }

    #[test]
    fn the_table_names_every_arm_and_every_sweep() {
        let table = example().to_table();
        for words in [
            "foresight+hint",
            "overlap 0.4",
            "trace geospatial",
            "pool 4,096",
            "steady",
            "throughput",
            "±",
        ] {
            assert!(table.contains(words), "{words}: {table}");
        }
    }

    #[test]
    fn json_has_each_arm_in_each_part() {
        let json = example().to_json();
        for part in ["all", "steady"] {
            let rows = json["orders"][part].as_array().unwrap();
            assert_eq!(rows.len(), 3);
            assert_eq!(rows[2]["arm"], "foresight+hint");
            assert!(rows[2]["mean_below_retrieval"]["mean"].as_f64().unwrap() > 0.49);
        }
        assert_eq!(json["sweeps"][2]["value"], "4,096");
        // Ten requests of two seeds, with 1,000 and 50 tokens each, in half a second.
        assert_eq!(json["throughput"][2]["requests_per_s"], 40.0);
        assert_eq!(json["throughput"][2]["tokens_per_s"], 42_000.0);
        assert!(json["prefill"].is_null());
    }
}
