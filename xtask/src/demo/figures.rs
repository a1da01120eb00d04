//! The figures that the replay measured, and their forms as JSON and as a table.

use std::env::consts;
use std::fmt::Write as _;
use std::fs;

use serde_json::{Value, json};

use super::answers::Comparison;
use super::arm::Arm;
use super::replay::{Said, Sample};
use super::summary::Summary;
use super::time::Times;
use crate::workspace::Workspace;

/// The circumstances of a measurement.
pub(super) struct Setting {
    pub(super) commit: String,
    pub(super) machine: String,
    pub(super) profile: String,
    pub(super) top_k: u8,
    pub(super) kv_tokens: u32,
}

/// The requests of both arms, in the order in which they were sent.
pub(super) struct Figures {
    pub(super) setting: Setting,
    pub(super) retrieval: Vec<Sample>,
    pub(super) ordered: Vec<Sample>,
    pub(super) answers: Comparison,
    /// The first answers of both arms, question by question.
    pub(super) said: [Vec<Said>; 2],
    /// The second part's requests, to a larger model.
    pub(super) time: Times,
}

impl Figures {
    pub(super) fn new(workspace: &Workspace, top_k: u8, kv_tokens: u32, profile: &str) -> Self {
        let setting = Setting {
            commit: workspace.commit(),
            machine: machine(),
            profile: profile.to_owned(),
            top_k,
            kv_tokens,
        };
        Self {
            setting,
            retrieval: Vec::new(),
            ordered: Vec::new(),
            answers: Comparison::default(),
            said: Default::default(),
            time: Times::default(),
        }
    }

    pub(super) fn set(&mut self, arm: Arm, samples: Vec<Sample>, said: Vec<Said>) {
        let [retrieval, ordered] = &mut self.said;
        match arm {
            Arm::Retrieval => (self.retrieval, *retrieval) = (samples, said),
            Arm::Ordered => (self.ordered, *ordered) = (samples, said),
        }
    }

    pub(super) fn samples(&self, arm: Arm) -> &[Sample] {
        match arm {
            Arm::Retrieval => &self.retrieval,
            Arm::Ordered => &self.ordered,
        }
    }

    pub(super) fn summary(&self, arm: Arm) -> Summary {
        Summary::of(self.samples(arm))
    }

    /// Returns the tokens reused in the ordered arm over those in retrieval order.
    pub(super) fn gain(&self) -> f64 {
        let (ordered, retrieval) = (self.summary(Arm::Ordered), self.summary(Arm::Retrieval));
        ordered.cached_tokens as f64 / retrieval.cached_tokens.max(1) as f64
    }

    /// Formats the figures as one line. The promised keys contain dots and are at the top level, for `jq
    /// '.["ordered.cached_tokens"]'`. The same figures and more are nested, for `jq .ordered.cached_tokens`.
    /// `prompt_tokens` is that of the retrieval arm, whose prompts contain the documents and no order hint.
    pub(super) fn to_json(&self) -> String {
        let (retrieval, ordered) = (self.summary(Arm::Retrieval), self.summary(Arm::Ordered));
        let [time_retrieval, time_ordered] = self.time_summaries();
        let Setting {
            commit,
            machine,
            profile,
            top_k,
            kv_tokens,
        } = &self.setting;
        json!({
            "requests": retrieval.requests,
            "prompt_tokens": retrieval.prompt_tokens,
            "retrieval.cached_tokens": retrieval.cached_tokens,
            "ordered.cached_tokens": ordered.cached_tokens,
            "retrieval.ttft_p50_ms": milliseconds(retrieval.ttft_p50_ms),
            "ordered.ttft_p50_ms": milliseconds(ordered.ttft_p50_ms),
            "retrieval.exact_match": rounded(retrieval.exact_match(), 10_000.0),
            "ordered.exact_match": rounded(ordered.exact_match(), 10_000.0),
            "time.retrieval.ttft_mean_ms": milliseconds(time_retrieval.ttft_mean_ms),
            "time.retrieval.ttft_p50_ms": milliseconds(time_retrieval.ttft_p50_ms),
            "time.retrieval.ttft_p95_ms": milliseconds(time_retrieval.ttft_p95_ms),
            "time.ordered.ttft_mean_ms": milliseconds(time_ordered.ttft_mean_ms),
            "time.ordered.ttft_p50_ms": milliseconds(time_ordered.ttft_p50_ms),
            "time.ordered.ttft_p95_ms": milliseconds(time_ordered.ttft_p95_ms),
            "retrieval": nested(&retrieval),
            "ordered": nested(&ordered),
            "time": {
                "retrieval": timed(&time_retrieval),
                "ordered": timed(&time_ordered),
                "sooner": rounded(self.time.sooner(), 1000.0),
            },
            "gain": rounded(self.gain(), 1000.0),
            "answers_checked": self.answers.checked,
            "answers_equal": self.answers.equal,
            "setting": {
                "commit": commit,
                "machine": machine,
                "profile": profile,
                "top_k": top_k,
                "kv_tokens": kv_tokens,
            },
        })
        .to_string()
    }

    /// Formats both arms as a table, for a terminal.
    pub(super) fn to_table(&self) -> String {
        let mut table = format!(
            "\n{:10}{:>9}{:>15}{:>15}{:>9}{:>11}{:>11}{:>9}\n",
            "order",
            "requests",
            "prompt tokens",
            "cached tokens",
            "reused",
            "TTFT p50",
            "TTFT p95",
            "right"
        );
        for arm in [Arm::Retrieval, Arm::Ordered] {
            let summary = self.summary(arm);
            let _ = writeln!(
                table,
                "{:10}{:>9}{:>15}{:>15}{:>8.1}%{:>8.1} ms{:>8.1} ms{:>8.1}%",
                arm.key(),
                summary.requests,
                summary.prompt_tokens,
                summary.cached_tokens,
                100.0 * summary.share(),
                summary.ttft_p50_ms,
                summary.ttft_p95_ms,
                100.0 * summary.exact_match()
            );
        }
        let _ = writeln!(
            table,
            "\n{:.2} times the reuse; {} of {} sampled answers are the same bytes warm and cold",
            self.gain(),
            self.answers.equal,
            self.answers.checked
        );
        if !self.time.ordered.is_empty() {
            self.write_time(&mut table);
        }
        table
    }

    /// Returns both orders' sums of the second part: retrieval order, then ordered.
    pub(super) fn time_summaries(&self) -> [Summary; 2] {
        [Arm::Retrieval, Arm::Ordered].map(|arm| self.time.summary(arm))
    }

    /// Adds the second part's table.
    fn write_time(&self, table: &mut String) {
        let summaries = self.time_summaries();
        let _ = writeln!(
            table,
            "\n{:10}{:>9}{:>15}{:>15}{:>9}{:>12}{:>12}{:>12}   (0.1B, random weights)",
            "time",
            "requests",
            "prompt tokens",
            "cached tokens",
            "reused",
            "TTFT mean",
            "p50",
            "p95"
        );
        for (arm, summary) in [Arm::Retrieval, Arm::Ordered].iter().zip(&summaries) {
            let _ = writeln!(
                table,
                "{:10}{:>9}{:>15}{:>15}{:>8.1}%{:>9.1} ms{:>9.1} ms{:>9.1} ms",
                arm.key(),
                summary.requests,
                summary.prompt_tokens,
                summary.cached_tokens,
                100.0 * summary.share(),
                summary.ttft_mean_ms,
                summary.ttft_p50_ms,
                summary.ttft_p95_ms
            );
        }
        let [retrieval, ordered] = &summaries;
        let _ = writeln!(
            table,
            "\nthe first token comes {:.0} % sooner on the average, and sooner for {:.0} % of the requests",
            100.0 * (1.0 - ordered.ttft_mean_ms / retrieval.ttft_mean_ms.max(f64::MIN_POSITIVE)),
            100.0 * self.time.sooner()
        );
    }
}

/// Returns the second part's figures of one order; its answers are neither right nor wrong.
fn timed(summary: &Summary) -> Value {
    json!({
        "requests": summary.requests,
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "share": rounded(summary.share(), 10_000.0),
        "ttft_mean_ms": milliseconds(summary.ttft_mean_ms),
        "ttft_p50_ms": milliseconds(summary.ttft_p50_ms),
        "ttft_p95_ms": milliseconds(summary.ttft_p95_ms),
    })
}

fn nested(summary: &Summary) -> Value {
    json!({
        "requests": summary.requests,
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "share": rounded(summary.share(), 10_000.0),
        "ttft_p50_ms": milliseconds(summary.ttft_p50_ms),
        "ttft_p95_ms": milliseconds(summary.ttft_p95_ms),
        "total_p95_ms": milliseconds(summary.total_p95_ms),
        "exact_match": rounded(summary.exact_match(), 10_000.0),
    })
}

fn milliseconds(value: f64) -> f64 {
    rounded(value, 1000.0)
}

fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// Returns the processor's name and number of threads.
fn machine() -> String {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let information = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = information
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split_once(':'));
    let name = name.map_or(consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {threads} threads, {}", consts::OS)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Duration;

    /// Returns a plausible replay: retrieval reuses little, ordering about half.
    pub(in crate::demo) fn example(requests: u64) -> Figures {
        let samples = |reused_percent: u64| -> Vec<Sample> {
            (0..requests)
                .map(|index| {
                    let prompt_tokens = 700 + (index * 37) % 200;
                    let cached_tokens = prompt_tokens * ((index * 53) % (2 * reused_percent)) / 100;
                    let computed = prompt_tokens - cached_tokens;
                    Sample {
                        prompt_tokens,
                        cached_tokens,
                        ttft: Duration::from_micros(4000 + 30 * computed),
                        total: Duration::from_micros(9000 + 30 * computed),
                        is_right: index % 10 != 7,
                    }
                })
                .collect()
        };
        Figures {
            setting: Setting {
                commit: "0123456789".into(),
                machine: "Some <Processor>, 2 threads".into(),
                profile: "dev".into(),
                top_k: 5,
                kv_tokens: 8192,
            },
            retrieval: samples(20),
            ordered: samples(50),
            time: Times {
                retrieval: samples(20),
                ordered: samples(50),
            },
            answers: Comparison {
                checked: 10,
                equal: 10,
            },
            said: ["KT-47", "<none>"].map(|answer| {
                vec![Said {
                    question: "What is the call sign of the Kelbra ferry?".into(),
                    expected: "KT-47".into(),
                    answer: answer.into(),
                }]
            }),
        }
    }

    #[test]
    fn json_holds_the_promised_keys_dotted_and_nested() {
        let figures = example(50);
        let json: Value = serde_json::from_str(&figures.to_json()).unwrap();
        for key in crate::demo::PROMISED_KEYS {
            assert!(json[key].is_number(), "{key}");
        }
        assert_eq!(
            json["ordered.cached_tokens"],
            json["ordered"]["cached_tokens"]
        );
        assert_eq!(json["requests"], 50);
        assert!(json["gain"].as_f64().unwrap() > 1.5);
    }

    #[test]
    fn the_gain_over_no_reuse_at_all_is_finite() {
        let mut figures = example(4);
        figures.set(Arm::Retrieval, Vec::new(), Vec::new());
        assert!(figures.gain().is_finite());
        assert!(figures.to_table().contains("ordered"));
    }
}
