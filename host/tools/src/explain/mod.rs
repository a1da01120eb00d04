//! `foreword explain`: reports why the prompts of a log did not reuse earlier ones' prefixes, what that cost, and which
//! line of configuration would change it.
//!
//! ```text
//!  LOG… ──lines──▶ Explaining: index of recent requests ──▶ diagnosis of each ──▶ JSON
//!                                                               └─▶ causes, summed up ──┬─▶ table, report
//!                     the log again, for each remedy ───────────▶ tokens that it saves ─┘
//! ```
//!
//! The core determines causes ([`foreword_ordering::head`]), and `remedy` maps them to remedies. Memory is bounded by
//! the window of recent requests that each one is compared with; no text is stored.

pub(crate) mod causes;
pub(crate) mod lines;
mod plots;
mod remedy;
mod report;

use crate::replay::whole::{self, Input, Ordered};
use anyhow::{Context, Result};
use causes::{Causes, Row, segment_name};
use clap::ValueHint;
use foreword_ordering::Config;
use foreword_ordering::head::{Cause, Diagnosis};
use foreword_ordering::policy::PolicyKind;
use foreword_report::files;
use foreword_report::log::{self, LineError, OnBad, Place};
use foreword_report::words::{grouped, percent, rounded};
use foreword_simulation::{Capacity, PromptReuse};
use lines::Explaining;
use remedy::{Part, Remedy};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

const HELP: &str = "Lines of a log, in JSON:
  a chat body, OpenAI's (chat or Responses), Anthropic's, Cohere's, Gemini's or Bedrock's; or
  {\"docs\": [ids, best first], …}, as for `foreword replay`; or
  {\"request\": a body, as an object or a string, \"response\": {\"usage\": {…}}, \"tenant\": …, \"engine\": …}, where all but
  the request may be absent. `body` says `request`, `upstream` says `engine`; `usage`, or `prompt_tokens` and
  `cached_tokens`, may stand beside the request. What the engine had cached tells evicted from reused.

Exit codes: 0 done, 1 a file cannot be read or written, or a bad line with --strict, 2 bad arguments or no request.
No text of a request is kept or printed: hashes, counts, names of tools and roles, and forms such as 9999-99-99.";

/// The command-line options of `foreword explain`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Logs of requests, one JSON object per line; several are read as one, in the order given
    #[arg(required = true, value_name = "LOG", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Tokens in a page of the engine's cache: a shorter prefix is not reused (vLLM: 16; hybrid models: 528 to 8320)
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    page_tokens: u32,
    /// Tokens that the engine's cache holds, to compute what the remedies would save; 0: unlimited
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    cache_tokens: u64,
    /// Recent requests that each request is compared with
    #[arg(long, value_name = "REQUESTS", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    window: u32,
    /// The gateway's current configuration of documents: its plugin configuration, or the `ordering` in it
    #[arg(long, value_name = "FILE")]
    ordering: Option<PathBuf>,
    /// Do not replay the log to compute what the remedies would save
    #[arg(long)]
    no_gain: bool,
    /// Stop at the first bad line instead of skipping it
    #[arg(long)]
    strict: bool,
    /// File for a report in HTML
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print one JSON object, with a diagnosis for each request, instead of a table
    #[arg(long)]
    json: bool,
}

impl Options {
    /// Returns the size of the engine's cache that is simulated to compute what remedies would save.
    fn capacity(&self) -> Capacity {
        Capacity::stated(self.cache_tokens, self.page_tokens)
    }
}

/// The results of `foreword explain`, shown as a table, as JSON or in the report.
struct Findings {
    log: String,
    skipped: u64,
    page_tokens: u32,
    causes: Causes,
    rows: Vec<(Row, Remedy)>,
    /// The tokens that each remedy would have saved, for remedies that change the gateway's configuration; empty with
    /// `--no-gain`.
    gains: BTreeMap<Part, Gain>,
}

/// The tokens that a remedy would have saved, from two simulations of the log.
#[derive(Clone, Copy, Debug)]
struct Gain {
    /// Number of prompt tokens, over the log, that the engine computes without the remedy.
    without: u64,
    /// Number of prompt tokens, over the log, that the engine computes with the remedy.
    with: u64,
}

impl Gain {
    /// Returns the tokens that the remedy would have saved; below 0 if it would have cost some.
    fn saved(self) -> i64 {
        let signed = |tokens| i64::try_from(tokens).unwrap_or(i64::MAX);
        signed(self.without) - signed(self.with)
    }

    /// Returns the gain in words that follow `it would`.
    fn in_words(self) -> String {
        let (saved, all) = (self.saved(), grouped(self.without));
        let tokens = grouped(saved.unsigned_abs());
        match saved {
            0.. => format!("save {tokens} of {all} tokens computed"),
            _ => format!("cost {tokens} tokens more than the {all} computed"),
        }
    }
}

/// Diagnoses the log's requests, prints the results to standard output, and writes the HTML report if the options name
/// a file for it.
///
/// # Errors
/// Returns an error if a file cannot be read or written, for a bad line with `--strict`, and
/// [`BadInput`](log::BadInput) if no line is a request.
pub fn run(options: &Options) -> Result<()> {
    if !options.no_gain {
        log::check_rereadable(&options.files)
            .context("without --no-gain, explain reads the log again")?;
    }
    let ordering = Ordered::read(options.ordering.as_deref())?;
    let config = Config::try_from(ordering.as_came()?)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let written = "cannot write to standard output";
    let mut explaining =
        Explaining::new(options.window, options.page_tokens, DOCUMENT_TOKENS, config);
    let mut causes = Causes::default();
    // The number of each request in the index, and its place in the log, oldest first.
    let mut places: VecDeque<(u64, Place)> = VecDeque::new();
    let on_bad = OnBad::when(options.strict);
    if options.json {
        write!(out, "{{\"diagnoses\":[").context(written)?;
    }
    let counts = log::read(&options.files, "explaining", on_bad, |place, line| {
        let diagnosis = explaining.line(line)?;
        causes.add(&diagnosis);
        if options.json {
            let entry = entry(options, place, &diagnosis, &places);
            let comma = if causes.requests > 1 { "," } else { "" };
            let written = write!(out, "{comma}\n{entry}").context(written);
            written.map_err(LineError::Fatal)?;
            places.push_back((diagnosis.request, place));
            if places.len() > options.window as usize {
                places.pop_front();
            }
        }
        Ok(())
    })?;
    counts.tell();
    if causes.requests == 0 {
        let why = format!("no line of {} is a request", log::names(&options.files));
        return Err(counts.empty(&why).into());
    }
    let rows = causes.rows().into_iter();
    let rows: Vec<_> = rows
        .map(|row| (row, Remedy::of(row.cause, row.volatile)))
        .collect();
    let gains = match options.no_gain {
        true => BTreeMap::new(),
        false => gains(options, &ordering, &rows)?,
    };
    let findings = Findings {
        log: log::names(&options.files),
        skipped: counts.bad,
        page_tokens: options.page_tokens,
        causes,
        rows,
        gains,
    };
    if let Some(path) = &options.report {
        files::write_report(path, &report::page(&findings)?)?;
    }
    if options.json {
        let summary = findings.to_json().to_string();
        // The summary's fields follow the list of diagnoses.
        let fields = summary.trim_start_matches('{');
        writeln!(out, "\n],{fields}").context(written)?;
    } else {
        let table = findings.to_table();
        out.write_all(table.as_bytes()).context(written)?;
    }
    out.flush().context(written)
}

/// Number of tokens assumed for a document whose size a log does not state.
const DOCUMENT_TOKENS: u32 = 256;

/// Returns a request's diagnosis as an entry of the JSON output. `place` is the request's line in the log; `places` has
/// the lines of earlier requests by their numbers, to name the one with which it was compared.
fn entry(
    options: &Options,
    place: Place,
    diagnosis: &Diagnosis,
    places: &VecDeque<(u64, Place)>,
) -> Value {
    let file = |place: Place| {
        let file = options.files.get(place.file);
        file.map(|file| file.display().to_string())
    };
    let earlier = diagnosis.earlier.and_then(|number| {
        let at = places.binary_search_by_key(&number, |(number, _)| *number);
        places.get(at.ok()?).map(|(_, place)| *place)
    });
    let mut entry = json!({
        "line": place.number,
        "earlier": earlier.map(|earlier| earlier.number),
        "cause": diagnosis.cause.name(),
        "segment": segment_name(diagnosis.segment),
        "name": diagnosis.name,
        "index": diagnosis.index,
        "offset": diagnosis.offset,
        "shape": diagnosis.shape,
        "prompt_tokens": diagnosis.prompt_tokens,
        "shared_tokens": diagnosis.shared_tokens,
        "prefix_tokens": diagnosis.reused_tokens,
        "lost_tokens": diagnosis.lost_tokens,
    });
    if diagnosis.cause == Cause::None || diagnosis.cause == Cause::FirstSeen {
        entry["segment"] = Value::Null;
    }
    if let Some(kind) = diagnosis.volatile {
        entry["volatile"] = kind.name().into();
    }
    if options.files.len() > 1 {
        entry["file"] = file(place).into();
        entry["earlier_file"] = earlier.and_then(file).into();
    }
    entry
}

/// Simulates the log's prompts, without and with each change of the gateway's configuration that is a remedy for one of
/// `rows`. Returns the prompt tokens that the engine computes in both simulations, by the changed part of the
/// configuration.
fn gains(
    options: &Options,
    ordering: &Ordered,
    rows: &[(Row, Remedy)],
) -> Result<BTreeMap<Part, Gain>> {
    let input = Input {
        files: &options.files,
        capacity: options.capacity(),
        document_tokens: DOCUMENT_TOKENS,
    };
    let computed = |kind, changes: &Value, is_ordered| -> Result<u64> {
        let raw = ordering.raw(changes)?;
        let outcome = whole::prompts(&input, kind, &raw, is_ordered)?;
        Ok(outcome.prompts.map_or(0, PromptReuse::computed_tokens))
    };
    let plain = json!({"head": {"mode": "off"}, "conversation": {"pin": false}});
    let policy = ordering.policy()?;
    let mut ordered = None;
    let mut gains = BTreeMap::new();
    for part in rows.iter().filter_map(|(_, remedy)| remedy.part) {
        if gains.contains_key(&part) {
            continue;
        }
        if ordered.is_none() {
            ordered = Some(computed(policy, &plain, true)?);
        }
        let ordered = ordered.unwrap_or_default();
        let (without, with) = match part {
            Part::Policy => (
                computed(PolicyKind::Retrieval, &plain, false)?,
                computed(PolicyKind::Foresight, &plain, true)?,
            ),
            part => (ordered, computed(policy, &part.alone(), true)?),
        };
        gains.insert(part, Gain { without, with });
    }
    Ok(gains)
}

impl Findings {
    /// Returns the tokens that a remedy would have saved; `None` if it changes no configuration, or with `--no-gain`.
    fn gain_of(&self, remedy: &Remedy) -> Option<Gain> {
        remedy.part.and_then(|part| self.gains.get(&part).copied())
    }

    fn to_json(&self) -> Value {
        let causes = self.rows.iter().map(|(row, remedy)| {
            let mut entry = row.to_json();
            entry["share"] = rounded(self.causes.share(row.sum.tokens), 1e6).into();
            entry["remedy"] = remedy.words.into();
            entry["configuration"] = remedy.part.map(Part::configuration).into();
            entry["saved_tokens"] = self.gain_of(remedy).map(Gain::saved).into();
            entry
        });
        json!({
            "log": self.log,
            "requests": self.causes.requests,
            "skipped": self.skipped,
            "first_seen": self.causes.quiet(Cause::FirstSeen),
            "unbroken": self.causes.quiet(Cause::None),
            "page_tokens": self.page_tokens,
            "prompt_tokens": self.causes.prompt_tokens,
            "reused_tokens": self.causes.reused_tokens,
            "lost_tokens": self.causes.lost_tokens(),
            "causes": causes.collect::<Vec<_>>(),
        })
    }

    fn to_table(&self) -> String {
        let causes = &self.causes;
        let mut table = format!(
            "{} requests, {} prompt tokens; {} begin as earlier prompts did, {} were lost\n\
             {} requests broke nothing, {} shared nothing\n",
            grouped(causes.requests),
            grouped(causes.prompt_tokens),
            percent(causes.share(causes.reused_tokens)),
            percent(causes.share(causes.lost_tokens())),
            grouped(causes.quiet(Cause::None)),
            grouped(causes.quiet(Cause::FirstSeen)),
        );
        table.push_str(&causes.to_table());
        let mut told: Vec<&str> = Vec::new();
        for (row, remedy) in &self.rows {
            if told.contains(&row.cause.name()) && remedy.part.is_none() {
                continue;
            }
            told.push(row.cause.name());
            let _ = write!(table, "\n{}: {}\n", row.name(), remedy.words);
            if let Some(part) = remedy.part {
                let _ = writeln!(table, "  {}", part.configuration());
            }
            if let Some(gain) = self.gain_of(remedy) {
                let _ = writeln!(table, "  it would {}", gain.in_words());
            }
        }
        table
    }
}
