//! `foreword ledger`: reports what Foreword saved, from the access log of a gateway.
//!
//! ```text
//!   access log ─▶ groups, by fields such as tenant and model ─▶ tokens and money saved
//!                  │ experiment: the share cached in its control arm, on the same traffic
//!                  └ otherwise: what the clients' own order would have found, which the filter also simulates
//! ```
//!
//! Without a control arm (requests of an experiment whose order is left as the client sent it), the result is an
//! estimate that covers the order of documents only. With one, savings by stabilised prompt heads, de-duplication and
//! cache markers are included.

use crate::replay::prices;
use anyhow::Result;
use clap::ValueHint;
use foreword_report::files;
use foreword_report::log::{self, OnBad};
use foreword_report::words::{grouped, percent};
use foreword_simulation::{BadLine, CachePrices};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

const HELP: &str = "Lines of a log: the gateway's access log as JSON, with Foreword's fields (`outcome`, `matched_tokens`,
`client_matched_tokens`, `estimated_tokens`, `arm`, `prompt_tokens`, `cached_tokens`), as gateway-config/envoy/envoy.yaml
writes it. Lines without `outcome` are skipped.

Saved tokens: with an experiment, the cached share of its ordered arm less the control arm's (`by` says `control`);
otherwise what the sent order found less what the clients' own order would have found (`estimate`).

Exit codes: 0 done, 1 a file cannot be read, 2 bad arguments or no request.";

/// The command-line options of `foreword ledger`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Access logs, one JSON object per line; several are read as one
    #[arg(required = true, value_name = "LOG", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Fields of the log by which requests are grouped, such as tenant,model; beyond 1,000 groups requests are counted
    /// together
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    by: Vec<String>,
    /// File with prices, as for `foreword replay`, to tell what was saved in money
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    prices: Option<PathBuf>,
    /// Field with the model's name, by which prices are found; group by it where there are several models
    #[arg(long, value_name = "FIELD", default_value = "model")]
    model_field: String,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Maximum number of groups in a ledger; requests that belong to no group yet are then counted together as [`OTHERS`].
const MAX_GROUPS: usize = 1_000;

/// Minimum number of requests with reported token counts in each of an experiment's two arms (ordered, and control)
/// from which the saving is computed from the experiment. With fewer, the filter's estimate is used.
const LEAST_COUNTED: u64 = 100;

/// Name of the group for all requests beyond [`MAX_GROUPS`] groups.
const OTHERS: &str = "(others)";

/// Sums of token counts over a set of requests.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    requests: u64,
    /// Prompt tokens as the filter estimates them.
    estimated_tokens: u64,
    /// Number of requests whose responses report both prompt tokens and cached tokens. `prompt_tokens`, `cached_tokens`
    /// and `counted_estimated_tokens` are sums over these requests only.
    counted: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    counted_estimated_tokens: u64,
    /// Number of prompt tokens that the filter expected to be cached with the documents in the order that it chose.
    matched_tokens: u64,
    /// Number of prompt tokens that the filter expects would have been cached with the documents in the clients' own
    /// order.
    client_matched_tokens: u64,
}

/// Sums over the requests of one group (equal values of the `--by` fields), by arm of the experiment.
#[derive(Clone, Debug, Default)]
struct Group {
    /// Sums over the requests in an experiment's control arm, whose documents stay in the client's order.
    control: Sum,
    /// Sums over the requests in an experiment's treated arm, whose documents are ordered.
    ordered: Sum,
    /// Sums over the requests that took part in no experiment.
    others: Sum,
    /// Sums over the requests of dry runs: an order was chosen, but the original body was sent.
    dry: Sum,
    /// The model of all requests in the group; `None` if they have several.
    model: Option<String>,
}

/// The figures of one group of requests (equal values of the `--by` fields): a row of the ledger.
#[derive(Debug, Serialize)]
struct Row {
    /// The values of the `--by` fields, joined with spaces; `all` without `--by`.
    #[serde(skip)]
    name: String,
    group: BTreeMap<String, String>,
    requests: u64,
    /// Number of requests whose responses report prompt tokens and cached tokens.
    counted: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    /// Source of `saved_tokens`: `control`, computed from an experiment's control arm (requests left in the client's
    /// order), or `estimate`, from the filter's simulation of the clients' own order.
    basis: &'static str,
    /// Number of prompt tokens that Foreword saved the engine from computing; negative if fewer tokens were reused than
    /// without Foreword. An estimate counts only the order of documents.
    saved_tokens: i64,
    /// `saved_tokens` as a fraction (0 to 1) of all prompt tokens of the group.
    saved_share: f64,
    /// Number of prompt tokens that dry runs would have saved if their order had been sent.
    would_save_tokens: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    saved_money: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Ledger {
    rows: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<String>,
    /// Number of lines that are not counted: bad lines, failed requests, and requests whose documents the filter did
    /// not read.
    skipped: u64,
}

/// Reads access logs, and prints the tokens and money that Foreword saved, by group (equal values of the `--by`
/// fields), to standard output.
///
/// # Errors
/// Returns an error if a file cannot be read or the prices are invalid, and [`BadInput`](log::BadInput) if no line has
/// Foreword's fields.
pub fn run(options: &Options) -> Result<()> {
    let ledger = read(options)?;
    let to_json = || json!(ledger).to_string();
    files::show(options.json, to_json, || ledger.to_table())
}

fn read(options: &Options) -> Result<Ledger> {
    let prices = options.prices.as_deref();
    let prices = prices.map(|file| prices::read(Some(file))).transpose()?;
    let mut groups: BTreeMap<Vec<String>, Group> = BTreeMap::new();
    let mut skipped = 0;
    let counts = log::read(&options.files, "reading", OnBad::Tell, |_, line| {
        let Some(request) = LoggedRequest::of(line)? else {
            skipped += 1;
            return Ok(());
        };
        let fields = options.by.iter().map(|field| request.text(field));
        let mut key: Vec<String> = fields.collect();
        if groups.len() >= MAX_GROUPS && !groups.contains_key(&key) {
            key.fill(OTHERS.to_owned());
        }
        let model = request.text(&options.model_field);
        let group = groups.entry(key).or_insert_with(|| Group::of(&model));
        group.add(&request, &model);
        Ok(())
    })?;
    counts.tell();
    if groups.is_empty() {
        let empty = counts.without_documents("access log", &options.files);
        return Err(empty.into());
    }
    let rows = groups.iter().map(|(key, group)| {
        let priced = prices.as_ref().zip(group.model.as_deref());
        let price = priced.and_then(|(prices, model)| price(prices, model));
        group.row(&options.by, key, price)
    });
    let rows: Vec<Row> = rows.collect();
    if prices.is_some() && rows.iter().all(|row| row.saved_money.is_none()) {
        eprintln!(
            "no price: no group has one model, by --model-field, that the prices name and whose cache is written to without a surcharge"
        );
    }
    Ok(Ledger {
        rows,
        currency: prices.as_ref().map(|prices| prices.currency.clone()),
        skipped: skipped + counts.bad,
    })
}

/// Returns the price of a million computed prompt tokens of `model` minus that of a million cached ones, in the
/// currency of `prices`. A price applies if its model's name in the file is contained in `model`; if several are, the
/// longest name counts. `None` if none is, or if writing to the cache costs more than computing: the log does not tell
/// what was written.
fn price(prices: &CachePrices, model: &str) -> Option<f64> {
    let price = prices.listed(None, model)?;
    let is_written_free = price.rules.write <= 1.0;
    is_written_free.then_some(price.input * (1.0 - price.rules.read))
}

/// A line of a gateway's access log, as a JSON object.
struct LoggedRequest(Map<String, Value>);

impl LoggedRequest {
    /// Parses a line of the access log. Returns `None` if the filter did not read the request's documents, or the
    /// response's status is not 2xx.
    ///
    /// # Errors
    /// Returns an error if the line is no JSON object.
    fn of(line: &[u8]) -> Result<Option<Self>, BadLine> {
        let request: Map<String, Value> =
            serde_json::from_slice(line).map_err(|error| BadLine::NotAnObject {
                column: error.column(),
            })?;
        let request = Self(request);
        let is_read = ["ordered", "unchanged", "dry-run"].contains(&&*request.text("outcome"));
        // An engine that refuses a request, or is down, computes no prompt.
        let is_served = (request.number("status")).is_none_or(|status| status / 100 == 2);
        Ok((is_read && is_served).then_some(request))
    }

    /// Returns the value of a field of the log line as text; empty if the field is absent or null.
    fn text(&self, field: &str) -> String {
        match self.0.get(field) {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(value) => value.to_string(),
        }
    }

    /// Returns the value of a field of the log line as a number, which Envoy may write as a string. Returns `None` if
    /// the field is absent or not a whole number.
    fn number(&self, field: &str) -> Option<u64> {
        match self.0.get(field)? {
            Value::String(text) => text.parse().ok(),
            value => value.as_u64(),
        }
    }
}

impl Group {
    fn of(model: &str) -> Self {
        Self {
            model: Some(model.to_owned()),
            ..Self::default()
        }
    }

    fn add(&mut self, request: &LoggedRequest, model: &str) {
        self.model = self.model.take().filter(|known| known == model);
        let sum = match (&*request.text("outcome"), &*request.text("arm")) {
            ("dry-run", _) => &mut self.dry,
            (_, "control") => &mut self.control,
            (_, "ordered") => &mut self.ordered,
            _ => &mut self.others,
        };
        sum.requests += 1;
        let number = |field| request.number(field).unwrap_or_default();
        let fields = [
            (&mut sum.estimated_tokens, "estimated_tokens"),
            (&mut sum.matched_tokens, "matched_tokens"),
            (&mut sum.client_matched_tokens, "client_matched_tokens"),
        ];
        for (sum, field) in fields {
            *sum = sum.saturating_add(number(field));
        }
        let usage = ["prompt_tokens", "cached_tokens"].map(|field| request.number(field));
        if let [Some(prompt), Some(cached)] = usage {
            sum.counted += 1;
            sum.prompt_tokens = sum.prompt_tokens.saturating_add(prompt);
            sum.cached_tokens = sum.cached_tokens.saturating_add(cached);
            let estimated = number("estimated_tokens");
            sum.counted_estimated_tokens = sum.counted_estimated_tokens.saturating_add(estimated);
        }
    }

    fn row(&self, by: &[String], values: &[String], price: Option<f64>) -> Row {
        let (control, ordered, others, dry) =
            (&self.control, &self.ordered, &self.others, &self.dry);
        let all = [control, ordered, others, dry];
        let total = |of: fn(&Sum) -> u64| all.map(of).into_iter().fold(0, u64::saturating_add);
        // The engine's tokens per estimated token.
        let scale = match total(|sum| sum.counted_estimated_tokens) {
            0 => 1.0,
            estimated => total(|sum| sum.prompt_tokens) as f64 / estimated as f64,
        };
        let estimate =
            |sum: &Sum| scale * (sum.matched_tokens as f64 - sum.client_matched_tokens as f64);
        let has_control = control.counted.min(ordered.counted) >= LEAST_COUNTED;
        let (basis, saved) = if has_control {
            let saved = (ordered.share() - control.share()) * ordered.prompts(scale);
            ("control", saved + estimate(others))
        } else {
            ("estimate", estimate(ordered) + estimate(others))
        };
        let prompts: f64 = all.iter().map(|sum| sum.prompts(scale)).sum();
        let group = by.iter().cloned().zip(values.iter().cloned());
        Row {
            name: match values {
                [] => "all".to_owned(),
                values => values.join(" ").replace(char::is_control, ""),
            },
            group: group.collect(),
            requests: total(|sum| sum.requests),
            counted: total(|sum| sum.counted),
            prompt_tokens: total(|sum| sum.prompt_tokens),
            cached_tokens: total(|sum| sum.cached_tokens),
            basis,
            saved_tokens: saved.round() as i64,
            would_save_tokens: estimate(dry).round() as i64,
            saved_share: saved / prompts.max(1.0),
            saved_money: price.map(|price| saved * price / 1e6),
        }
    }
}

impl Sum {
    /// Returns the cached fraction (0 to 1) of the prompt tokens, over the requests whose responses report both counts.
    fn share(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Returns the number of prompt tokens of all requests: as the engine reports it, and for requests without a report
    /// the estimate times `scale`, the number of the engine's tokens per estimated token.
    fn prompts(&self, scale: f64) -> f64 {
        let counted = self.counted_estimated_tokens;
        let uncounted = self.estimated_tokens.saturating_sub(counted);
        self.prompt_tokens as f64 + scale * uncounted as f64
    }
}

impl Ledger {
    fn to_table(&self) -> String {
        let money = self.currency.as_deref().unwrap_or_default();
        let mut table = format!(
            "{:<28}{:>10}{:>15}{:>9}{:>15}{:>12}{:>10}{money:>12}\n",
            "group", "requests", "prompt tokens", "cached", "saved tokens", "of prompts", "by"
        );
        for row in &self.rows {
            let cached = row.cached_tokens as f64 / row.prompt_tokens.max(1) as f64;
            let money = row.saved_money.map(|money| format!("{money:.2}"));
            let _ = writeln!(
                table,
                "{:<28}{:>10}{:>15}{:>9}{:>15}{:>12}{:>10}{:>12}",
                row.name,
                grouped(row.requests),
                grouped(row.prompt_tokens),
                percent(cached),
                signed(row.saved_tokens),
                percent(row.saved_share),
                row.basis,
                money.unwrap_or_default(),
            );
            if row.would_save_tokens != 0 {
                let tokens = signed(row.would_save_tokens);
                let _ = writeln!(table, "  dry runs would have saved {tokens} tokens");
            }
        }
        table
    }
}

fn signed(value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", grouped(value.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(lines: &[Value], by: &[&str], prices: Option<Value>) -> Result<Ledger> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("access.log");
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        std::fs::write(&log, lines.join("\n"))?;
        let file = folder.path().join("prices.json");
        let prices = prices.map(|prices| std::fs::write(&file, prices.to_string()).map(|()| file));
        read(&Options {
            files: vec![log],
            by: by.iter().map(|field| (*field).to_owned()).collect(),
            prices: prices.transpose()?,
            model_field: "model".to_owned(),
            json: false,
        })
    }

    /// A line as Envoy writes it, with numbers as text.
    fn line(arm: Option<&str>, [matched, client, cached]: [u64; 3]) -> Value {
        json!({"outcome": "ordered", "arm": arm, "tenant": "acme", "model": "small-1", "estimated_tokens": "1000",
            "matched_tokens": matched.to_string(), "client_matched_tokens": client.to_string(),
            "prompt_tokens": "1200", "cached_tokens": cached.to_string()})
    }

    #[test]
    fn an_experiments_control_arm_tells_what_would_have_been_cached() {
        let control = line(Some("control"), [0, 0, 120]);
        let ordered = [600, 480].map(|cached| line(Some("ordered"), [900, 0, cached]));
        let mut lines = vec![control; 99];
        lines.extend(std::iter::repeat_n(ordered, 100).flatten());
        // So few requests of the control arm tell nothing.
        assert_eq!(ledger(&lines, &[], None).unwrap().rows[0].basis, "estimate");
        lines.push(lines[0].clone());
        let row = &ledger(&lines, &[], None).unwrap().rows[0];
        // .45 of 240,000 tokens instead of .1.
        assert_eq!((row.basis, row.saved_tokens), ("control", 84_000));
        assert_eq!((row.requests, row.prompt_tokens), (300, 360_000));
    }

    #[test]
    fn without_one_the_simulated_order_does_in_the_engines_tokens() {
        let mut silent = line(None, [500, 100, 0]);
        silent["prompt_tokens"] = Value::Null;
        let mut dry = line(None, [300, 100, 0]);
        dry["outcome"] = "dry-run".into();
        let mut failed = line(None, [900, 0, 0]);
        failed["status"] = "503".into();
        let passed = json!({"outcome": "passed", "reason": "bypass", "prompt_tokens": 9});
        let lines = [
            line(None, [700, 200, 800]),
            silent,
            dry,
            passed,
            failed,
            json!({"path": "/health"}),
        ];
        let prices = json!({"currency": "USD", "models": [
            {"name": "small", "kind": "prefix", "input": 2.0, "read": 0.5},
            {"name": "large", "kind": "prefix", "input": 90.0},
        ]});
        let found = ledger(&lines, &["tenant", "model"], Some(prices)).unwrap();
        let row = &found.rows[0];
        assert_eq!(
            (row.basis, row.saved_tokens, row.would_save_tokens),
            ("estimate", 1_080, 240)
        );
        assert_eq!((row.requests, row.counted, found.skipped), (3, 2, 3));
        assert!((row.saved_money.unwrap() - 1_080.0 * 1.5 / 1e6).abs() < 1e-12);
        assert!((row.saved_share - 0.3).abs() < 1e-12);
        let table = found.to_table();
        for word in [
            "acme small-1 ",
            "1,080",
            "30.0 %",
            "estimate",
            "USD",
            "would have saved 240",
        ] {
            assert!(table.contains(word), "{word} in {table}");
        }
    }

    #[test]
    fn groups_are_bounded_and_several_models_have_no_price() {
        let lines: Vec<Value> = (0..1_200)
            .map(|tenant| {
                let mut line = line(None, [10, 0, 10]);
                line["tenant"] = format!("t{tenant}").into();
                line["model"] = if tenant < 1_100 { "a" } else { "b" }.into();
                line
            })
            .collect();
        let prices =
            json!({"currency": "USD", "models": [{"name": "a", "kind": "prefix", "input": 1.0}]});
        let found = ledger(&lines, &["tenant"], Some(prices)).unwrap();
        assert_eq!(found.rows.len(), MAX_GROUPS + 1);
        let others = found.rows.iter().find(|row| row.group["tenant"] == OTHERS);
        let others = others.unwrap();
        assert_eq!((others.requests, others.saved_money), (200, None));
    }

    #[test]
    fn a_log_of_something_else_is_refused() {
        let error = ledger(&[json!({"path": "/"})], &[], None).unwrap_err();
        assert!(error.is::<log::BadInput>(), "{error:#}");
    }
}
