//! The results of an evaluation, as JSON and as a table. They contain counts, but no texts of questions, documents or
//! answers.

use super::arm::Arm;
use super::bootstrap::{Interval, MIN_CASES, RESAMPLES, Verdict};
use super::compare::{AnswerLikelihood, Difference, Estimate, Figure};
use super::profile::{self, PlaceEffect, RankProfile};
use foreword_report::words::{grouped, rounded, section};
use serde_json::{Value, json};
use std::fmt::Write;

/// The results of an evaluation, as they are shown in the table, the JSON object and the report.
#[derive(Debug)]
pub(super) struct Figures {
    /// Name of the file with the questions.
    pub(super) data: String,
    pub(super) model: String,
    pub(super) endpoint: String,
    /// Name of the run, drawn at random when it began; a resumed run keeps it.
    pub(super) run: String,
    pub(super) seed: u64,
    pub(super) concurrency: usize,
    /// Number of cases asked: questions, and chats of several turns.
    pub(super) cases: usize,
    /// Number of cases (questions and chats) for which a request was refused or failed under at least one arm (way to
    /// ask).
    pub(super) left_out: usize,
    /// Number of the file's questions that have no answer and so were not asked.
    pub(super) without_answers: usize,
    /// True if a different `cache_salt` for each arm (way to ask) kept the arms' prompts apart in the engine's cache.
    pub(super) salted: bool,
    /// The arm (way to ask) with which the others are compared in addition to retrieval order; `None` if the option
    /// `--baseline` was not given.
    pub(super) baseline: Option<Arm>,
    /// Figures of each arm (way to ask), in the order in which tables list the arms.
    pub(super) arms: Vec<Figure>,
    /// The model's rank profile (the effect of a document's place on the right answer, by the document's rank); `None`
    /// if it was not measured.
    pub(super) profile: Option<RankProfile>,
}

impl Figures {
    /// Iterates over the figures of the arms (ways to ask) that put the answer's document first, in the middle or last.
    pub(super) fn positions(&self) -> impl Iterator<Item = &Figure> {
        self.arms.iter().filter(|figure| figure.arm.is_position())
    }

    /// Iterates over the figures of the arms (ways to ask) that do not put the answer's document in a given place.
    pub(super) fn orders(&self) -> impl Iterator<Item = &Figure> {
        self.arms.iter().filter(|figure| !figure.arm.is_position())
    }

    /// Returns whether the model was asked for answers under at least one arm (way to ask). If false, the evaluation
    /// only measured the log-probability of the right answers.
    pub(super) fn is_asked(&self) -> bool {
        self.arms.iter().any(|figure| figure.asked > 0)
    }

    pub(super) fn retrieval(&self) -> Option<&Figure> {
        self.arms.iter().find(|figure| figure.arm == Arm::Retrieval)
    }

    /// Returns the results as a JSON object.
    pub(super) fn to_json(&self) -> String {
        let arms: Vec<_> = self.arms.iter().map(arm).collect();
        json!({
            "data": self.data,
            "model": self.model,
            "endpoint": self.endpoint,
            "run": self.run,
            "seed": self.seed,
            "concurrency": self.concurrency,
            "questions": self.cases,
            "left_out": self.left_out,
            "without_answers": self.without_answers,
            "cache_salt": self.salted,
            "confidence": 0.95,
            "resamples": RESAMPLES,
            "baseline": self.baseline.map(Arm::name),
            "arms": arms,
            "rank_profile": self.profile,
        })
        .to_string()
    }

    /// Returns the results as tables of text for a terminal.
    pub(super) fn to_table(&self) -> String {
        let names = self.arms.iter().map(|figure| figure.arm.name().len() + 2);
        let width = names.max().unwrap_or_default().max(16);
        let mut table = format!(
            "{} questions of {}, asked of {}; {} left out\n",
            grouped(self.cases as u64),
            self.data,
            self.model,
            grouped(self.left_out as u64)
        );
        if self.is_asked() {
            self.add_answers(&mut table);
        }
        self.add_likelihood(&mut table);
        self.add_judged(&mut table);
        table += &self.differences("less retrieval", width, |figure| figure.difference.as_ref());
        if let Some(baseline) = self.baseline {
            let heading = format!("less {}", baseline.name());
            let width = width.max(heading.len() + 2);
            table += &self.differences(&heading, width, |figure| figure.from_baseline.as_ref());
        }
        if let Some(profile) = &self.profile {
            add_profile(&mut table, profile);
        }
        table
    }

    /// Appends to `table` the scores, the reuse of the cache and the times of the model's answers, a line for each arm
    /// (way to ask).
    fn add_answers(&self, table: &mut String) {
        *table += "\narm                    questions  exact match  contains       F1   reused  \
            TTFT median         p95   prompt tokens  prefill tok/s\n";
        for figure in &self.arms {
            let [questions, exact_match, contains, f1, reused, median, p95] = cells(figure);
            let arm = figure.arm.name();
            let prompt_tokens = figure.prompt_tokens.map_or("—".into(), grouped);
            let prefill = figure.prefill.map(|rate| grouped(rate as u64));
            let prefill = prefill.unwrap_or("—".into());
            let _ = writeln!(
                table,
                "{arm:<22}{questions:>10}{exact_match:>13}{contains:>10}{f1:>9}{reused:>9}{median:>13}{p95:>12}{prompt_tokens:>16}{prefill:>15}"
            );
        }
    }

    /// Appends to `table` the mean log-probability of right answers under each arm (way to ask) for which it was
    /// measured.
    fn add_likelihood(&self, table: &mut String) {
        let heading = "right answer           questions nats a token    less retrieval [95 %]                                   \
            nats    less retrieval [95 %]";
        let lines = self.arms.iter().filter_map(|figure| {
            let logprob = figure.answer_logprob.as_ref()?;
            let nats = figure.answer_nats.as_ref()?;
            let (less, verdict) = likelihood_less(logprob.less_retrieval);
            Some(format!(
                "{:<22}{:>10}{:>13.3}    {:<26}{:<22}{:>12.3}    {}",
                figure.arm.name(),
                grouped(logprob.cases as u64),
                logprob.mean,
                less,
                verdict,
                nats.mean,
                likelihood_less(nats.less_retrieval).0,
            ))
        });
        *table += &section(heading, lines);
        let Some(baseline) = self.baseline else {
            return;
        };
        let heading = format!("less {}", baseline.name());
        let width = 22.max(heading.len() + 2);
        let lines = self.arms.iter().filter_map(|figure| {
            let less = figure.answer_logprob.as_ref()?.less_baseline?;
            let (less, verdict) = likelihood_less(Some(less));
            let arm = figure.arm.name();
            Some(format!("{arm:<width$}{less:<26}{verdict}"))
        });
        *table += &section(&format!("{heading:<width$}nats a token [95 %]"), lines);
    }

    /// Appends to `table` the shares of answers that the judge (a model) finds right, if there is a judge, and the
    /// number of multiple-choice answers that were read from the answer's text.
    fn add_judged(&self, table: &mut String) {
        let lines = self.arms.iter().filter_map(|figure| {
            let judged = figure.judged.as_ref()?;
            let difference = figure.difference.as_ref();
            let difference = difference.and_then(|difference| difference.judged.as_ref());
            let difference = difference.map(|(estimate, verdict)| {
                format!("{:<22}{}", with_interval(estimate), verdict.words())
            });
            let difference = difference.unwrap_or_default();
            let (arm, share) = (figure.arm.name(), share(judged.value));
            Some(format!("{arm:<22}{share:>12}    {difference}"))
        });
        let heading = "judged right                          less retrieval [95 %]";
        *table += &section(heading, lines);
        let by_text: u64 = self.arms.iter().map(|figure| figure.by_text).sum();
        if by_text > 0 {
            let _ = writeln!(
                table,
                "\n{} choices were read from the answer's text: the endpoint told no log-probability of a letter",
                grouped(by_text)
            );
        }
    }

    /// Returns a table with `heading` and a row for each arm (way to ask) for which `of` returns a difference; empty if
    /// there is none. `width` is the width of the first column, in characters.
    fn differences(
        &self,
        heading: &str,
        width: usize,
        of: fn(&Figure) -> Option<&Difference>,
    ) -> String {
        let lines = self.arms.iter().filter_map(|figure| {
            let difference = of(figure)?;
            let (exact_match, verdict) = &difference.exact_match;
            let (contains, contains_verdict) = &difference.contains;
            Some(format!(
                "{:<width$}{:<22}{:<22}{:<22}{:<22}{:<22}{} ms",
                figure.arm.name(),
                with_interval(exact_match),
                verdict.words(),
                with_interval(contains),
                contains_verdict.words(),
                with_interval(&difference.f1.0),
                with_interval(&difference.ttft),
            ))
        });
        section(&format!("{heading:<width$}{DIFFERENCES}"), lines)
    }
}

/// The heading of a table of differences, without its first column.
const DIFFERENCES: &str = "exact match [95 %]                          contains [95 %]                             \
                          F1 [95 %]             TTFT median [95 %]";

/// Appends to `table` the rank profile (the effect of places by documents' ranks), the costs of the compared placements
/// of the best documents, and the setting to configure.
fn add_profile(table: &mut String, profile: &RankProfile) {
    let (questions, documents) = (profile.questions, profile.documents);
    let _ = writeln!(
        table,
        "\nwhere the model reads: nats a token that a place is worth to a document, by its rank; {} questions of up to {documents} documents",
        grouped(questions as u64)
    );
    let columns = profile.columns().map(|column| format!("{column:<26}"));
    let line = format!("{:<16}{}", "rank", columns.collect::<String>());
    let _ = writeln!(table, "{}", line.trim_end());
    for (rank, row) in profile.rows() {
        let cells = row.iter().map(|cell| format!("{:<26}", cell.words()));
        let line = format!("{rank:<16}{}", cells.collect::<String>());
        let _ = writeln!(table, "{}", line.trim_end());
    }
    let _ = writeln!(
        table,
        "\n{:<44}nats a token lost against retrieval order [95 %]",
        "ordering.rank"
    );
    for placed in &profile.placements {
        let (setting, loss) = (profile::setting(placed.placement), placed.loss.words());
        let _ = writeln!(table, "{setting:<44}{loss}");
    }
    let line = match profile.chosen {
        Some(rule) => format!(
            "the freest placement that is not shown to cost more than the best one: \"rank\": {}",
            profile::setting(rule)
        ),
        None => format!("too few questions to choose a placement: at least {MIN_CASES} are needed"),
    };
    let _ = writeln!(table, "\n{line}");
}

fn difference(difference: &Difference) -> Value {
    json!({
        "exact_match": compared(&difference.exact_match),
        "contains": compared(&difference.contains),
        "f1": compared(&difference.f1),
        "judged": difference.judged.as_ref().map(compared),
        "reused": difference.reused.as_ref().map(interval),
        "ttft_ms": interval(&difference.ttft),
    })
}

fn compared((estimate, verdict): &(Estimate, Verdict)) -> Value {
    let mut value = interval(estimate);
    value["verdict"] = verdict.words().into();
    value
}

fn likelihood(likelihood: &AnswerLikelihood) -> Value {
    let less = likelihood.less_retrieval;
    let part = |of: fn(&Estimate) -> f64| less.map(|(estimate, _)| rounded(of(&estimate), 1e4));
    json!({
        "mean": rounded(likelihood.mean, 1e4),
        "less_retrieval": part(|estimate| estimate.value),
        "low": part(|estimate| estimate.interval.low),
        "high": part(|estimate| estimate.interval.high),
        "verdict": less.map(|(_, verdict)| verdict.words()),
        "less_baseline": likelihood.less_baseline.as_ref().map(compared),
        "questions": likelihood.cases,
    })
}

fn arm(figure: &Figure) -> Value {
    // Without answers, these figures are unknown.
    let asked = (figure.asked > 0).then_some(figure);
    json!({
        "name": figure.arm.name(),
        "questions": figure.cases,
        "scored": figure.scored,
        "exact_match": asked.map(|figure| interval(&figure.exact_match)),
        "contains": asked.map(|figure| interval(&figure.contains)),
        "f1": asked.map(|figure| interval(&figure.f1)),
        "answer_logprob": figure.answer_logprob.as_ref().map(likelihood),
        "answer_nats": figure.answer_nats.as_ref().map(likelihood),
        "judged": figure.judged.as_ref().map(interval),
        "chosen_by_text": figure.by_text,
        "prefill_tokens_per_s": figure.prefill.map(|rate| rounded(rate, 1e1)),
        "prompt_tokens": asked.and_then(|figure| figure.prompt_tokens),
        "cached_tokens": asked.and_then(|figure| figure.cached_tokens),
        "reused": figure.reused.map(|share| rounded(share, 1e4)),
        "ttft_ms": asked.map(|figure| {
            json!({
                "mean": rounded(figure.ttft_mean, 1e3),
                "median": rounded(figure.ttft_median, 1e3),
                "p95": rounded(figure.ttft_p95, 1e3),
            })
        }),
        "documents": figure.documents,
        "moved": figure.moved,
        "deduplicated": figure.deduplicated,
        "hinted": figure.hinted,
        "cut": figure.cut,
        "difference": figure.difference.as_ref().map(difference),
        "difference_from_baseline": figure.from_baseline.as_ref().map(difference),
    })
}

fn interval(estimate: &Estimate) -> Value {
    json!({
        "value": rounded(estimate.value, 1e4),
        "low": rounded(estimate.interval.low, 1e4),
        "high": rounded(estimate.interval.high, 1e4),
    })
}

/// Returns the table cells of an arm (way to ask): questions, exact match, answers that contain a right one, F1, share
/// of prompt tokens reused, and the median and 95th percentile of the time to first token.
pub(super) fn cells(figure: &Figure) -> [String; 7] {
    [
        grouped(figure.cases as u64),
        share(figure.exact_match.value),
        share(figure.contains.value),
        share(figure.f1.value),
        figure.reused.map_or("—".into(), share),
        milliseconds(figure.ttft_median),
        milliseconds(figure.ttft_p95),
    ]
}

/// Formats a share that is given in percent: `12.5 %`.
pub(super) fn share(percent: f64) -> String {
    format!("{percent:.1} %")
}

pub(super) fn milliseconds(value: f64) -> String {
    format!("{value:.1} ms")
}

/// Formats a difference in percentage points or milliseconds with its interval: `-0.3 [-1.1, +0.5]`.
pub(super) fn with_interval(estimate: &Estimate) -> String {
    let Interval { low, high } = estimate.interval;
    let [value, low, high] = [estimate.value, low, high].map(signed);
    format!("{value} [{low}, {high}]")
}

/// Returns as text the difference of an arm's (way to ask) mean log-probability of right answers from another arm's, in
/// nats, with its interval, and the verdict on it, such as `better`; two empty texts for `None`.
pub(super) fn likelihood_less(less: Option<(Estimate, Verdict)>) -> (String, &'static str) {
    less.map_or_else(Default::default, |(less, verdict)| {
        (less.in_nats(), verdict.words())
    })
}

impl Estimate {
    /// Formats a difference in nats with its interval: `-0.031 [-0.110, +0.047]`.
    pub(super) fn in_nats(&self) -> String {
        in_nats(self.value, self.interval.low, self.interval.high)
    }
}

/// Formats a difference in nats with its interval: `-0.031 [-0.110, +0.047]`.
fn in_nats(value: f64, low: f64, high: f64) -> String {
    format!("{value:+.3} [{low:+.3}, {high:+.3}]")
}

impl PlaceEffect {
    pub(super) fn words(&self) -> String {
        in_nats(self.value, self.low, self.high)
    }
}

/// Formats a value with its sign and one decimal; the sign is omitted if the value rounds to zero.
pub(super) fn signed(value: f64) -> String {
    let text = format!("{value:+.1}");
    match text.as_str() {
        "+0.0" | "-0.0" => "0.0".into(),
        _ => text,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::compare::compare;
    use super::super::compare::tests::{answered, cases};
    use super::super::likelihood::Likelihood;
    use super::super::profile;
    use super::*;

    /// Figures of invented answers: each arm has fewer right answers than the one before.
    pub(in crate::evaluate) fn example(arms: &[Arm], count: usize) -> Figures {
        example_with(arms, None, count)
    }

    pub(in crate::evaluate) fn example_with(
        arms: &[Arm],
        baseline: Option<Arm>,
        count: usize,
    ) -> Figures {
        let cases = cases(count);
        let mut records = Vec::new();
        for (at, &arm) in arms.iter().enumerate() {
            let mut answers = answered(arm, count, count.saturating_sub(count * at / 16));
            for (question, answer) in answers.iter_mut().enumerate() {
                let ttft = 20_000 + 1_000 * (question as u64 * 7 % 50);
                answer.ttft_us = ttft.saturating_sub(900 * at as u64);
                answer.usage.cached_tokens = Some(10 + 7 * at as u64);
                answer.likelihood = Some(Likelihood {
                    nats: -2.0 - 0.5 * at as f64 - (question % 3) as f64,
                    tokens: 2,
                });
            }
            records.extend(answers);
        }
        Figures {
            data: "some <data>.json".into(),
            model: "m".into(),
            endpoint: "http://localhost:8000/v1/chat/completions".into(),
            run: "00".into(),
            seed: 0,
            concurrency: 1,
            cases: count,
            left_out: 0,
            without_answers: 0,
            salted: true,
            baseline,
            arms: compare(&cases, arms, baseline, &records, 0),
            profile: None,
        }
    }

    #[test]
    fn the_table_has_every_arm_and_its_difference() {
        let figures = example(&[Arm::Retrieval, Arm::Ordered, Arm::First], 36);
        let table = figures.to_table();
        assert!(table.starts_with("36 questions of some <data>.json, asked of m; 0 left out\n"));
        assert!(table.contains(
            "\nretrieval                     36      100.0 %   100.0 %  100.0 %   10.0 %      45.0 ms     68.0 ms           3,600"
        ), "{table}");
        assert!(table.contains("prefill tok/s"));
        assert!(
            table.contains("\nordered         -5.6 [-13.9, 0.0]"),
            "{table}"
        );
        // Each figure stands under its heading.
        let (heading, rows) = table
            .split_once("\nless retrieval ")
            .unwrap()
            .1
            .split_once('\n')
            .unwrap();
        let row = rows.lines().next().unwrap();
        for (name, place) in [
            ("exact match", 16),
            ("contains", 60),
            ("F1", 104),
            ("TTFT", 126),
        ] {
            assert_eq!(
                heading.find(name),
                Some(place - "less retrieval ".len()),
                "{table}"
            );
            assert!(
                row[..place].ends_with("  ") && row[place..].starts_with('-'),
                "{table}"
            );
        }
        assert_eq!(table.matches("\nfirst ").count(), 3);
        assert!(
            table.contains("\nordered                       36       -1.750    -0.250 [-0.250, -0.250]   worse                       -3.500    -0.500 [-0.500, -0.500]\n"),
            "{table}"
        );
        let alone = example(&[Arm::Ordered], 3).to_table();
        assert!(!alone.contains("\nless retrieval"));
    }

    #[test]
    fn the_json_has_what_the_table_has() {
        let figures = example(&[Arm::Retrieval, Arm::Ordered], 36);
        let json: Value = serde_json::from_str(&figures.to_json()).unwrap();
        let arms = json["arms"].as_array().unwrap();
        assert_eq!(arms[0]["exact_match"]["value"], 100.0);
        assert!(arms[0]["difference"].is_null());
        let difference = &arms[1]["difference"];
        assert_eq!(difference["exact_match"]["value"], -5.5556);
        assert_eq!(difference["exact_match"]["verdict"], "not enough questions");
        assert_eq!(difference["reused"]["value"], 7.0);
        assert_eq!(difference["ttft_ms"]["value"], -0.9);
        let expected = json!({"mean": -1.75, "less_retrieval": -0.25, "low": -0.25, "high": -0.25, "verdict": "worse", "less_baseline": null, "questions": 36});
        assert_eq!(arms[1]["answer_logprob"], expected);
        assert_eq!(arms[1]["answer_nats"]["mean"], -3.5);
        assert!(arms[0]["answer_logprob"]["low"].is_null());
        assert_eq!(json["resamples"], 10_000);
    }

    #[test]
    fn a_profile_ends_with_the_setting_to_write() {
        let mut figures = example(&[Arm::Retrieval], 3);
        figures.profile = Some(profile::tests::example(0.0, 0.3));
        let table = figures.to_table();
        assert!(
            table.contains("\nrank            first                     second "),
            "{table}"
        );
        assert!(
            table.ends_with("\"rank\": {\"place\": \"last\", \"documents\": 1}\n"),
            "{table}"
        );
        let json: Value = serde_json::from_str(&figures.to_json()).unwrap();
        assert_eq!(json["rank_profile"]["chosen"]["place"], "last");
    }

    #[test]
    fn arms_are_compared_with_the_baseline_too() {
        let [usual, end] =
            ["ordered+hint", "ordered+hint:end"].map(|arm| Arm::by_name(arm).unwrap());
        let figures = example_with(&[Arm::Retrieval, usual, end], Some(usual), 160);
        let table = figures.to_table();
        let compared: Vec<_> = table.split("\nless ordered+hint ").collect();
        assert_eq!(compared.len(), 3, "{table}");
        for (part, row) in [
            (
                compared[1],
                "ordered+hint:end      -0.250 [-0.250, -0.250]   worse",
            ),
            (compared[2], "ordered+hint:end   -6.2 ["),
        ] {
            let mut rows = part.lines().skip(1);
            assert!(rows.next().unwrap().starts_with("retrieval  "), "{table}");
            assert!(rows.next().unwrap().starts_with(row), "{table}");
        }
        let json: Value = serde_json::from_str(&figures.to_json()).unwrap();
        assert_eq!(json["baseline"], "ordered+hint");
        assert!(json["arms"][1]["difference_from_baseline"].is_null());
        assert!(json["arms"][1]["answer_logprob"]["less_baseline"].is_null());
        let difference = |of: &str| json["arms"][2][of]["exact_match"]["value"].clone();
        assert_eq!(difference("difference_from_baseline"), -6.25);
        assert_eq!(difference("difference"), -12.5);
        let likely = &json["arms"][2]["answer_logprob"];
        assert_eq!(likely["less_baseline"]["value"], -0.25);
        assert_eq!(likely["less_retrieval"], -0.5);
    }

    #[test]
    fn nothing_has_no_sign() {
        assert_eq!(
            [0.04, -0.04, 0.06, -1.0].map(signed),
            ["0.0", "0.0", "+0.1", "-1.0"]
        );
    }
}
