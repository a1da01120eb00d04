//! `foreword batch`: sends a file of requests in OpenAI's batch format to an endpoint, in the order that reuses most of
//! the endpoint's prefix cache.
//!
//! ```text
//!  FILE ─▶ index (offsets, hashes, numbers of documents) ─▶ schedule ─▶ ask: workers ─▶ output
//!                                                                        │   ▲
//!                                      documents ordered by the core ◀───┘   └── pace (rate, Retry-After), client
//! ```
//!
//! Since all requests are known before the first is sent, requests that share documents can follow each other, with the
//! shared documents first (RAGBoost, section 5.2; `foreword_simulation::batch`). Any endpoint with OpenAI's API will
//! do. The same command continues a run that was stopped: the output file records the answered requests.

mod ask;
mod output;
mod pace;

use crate::client::{self, Access, Client};
use crate::options::{api_key, backoff, batch_order, concurrency, ordering, seconds};
use anyhow::{Context, Result, anyhow, ensure};
use ask::{Batch, Progress};
use foreword_ordering::RawConfig;
use foreword_report::files;
use foreword_report::log::BadInput;
use foreword_report::progress;
use foreword_report::words::{grouped, percent, rounded};
use foreword_simulation::{
    BatchError, BatchIndex, BatchLimits, BatchOrder, BatchOrderer, BatchSchedule, BatchUsage,
    MAX_LINE_BYTES, URLS,
};
use output::Output;
use pace::Pace;
use serde_json::json;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher;
use std::io::{BufRead, BufReader, Seek};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const HELP: &str = "Lines of FILE, in OpenAI's batch format, each custom_id once:
  {\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {…}}
  url: /v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses
Lines of OUT, in the order of their answers, readable by its owner alone:
  {\"id\": …, \"custom_id\": \"1\", \"response\": {\"status_code\": 200, \"request_id\": …, \"body\": {…}}, \"error\": null}

A run that was stopped goes on with the same command: what OUT answers is not asked again. OUT.run identifies FILE and the
order; others are refused.
To compare: --order input with the policy \"retrieval\" in --ordering leaves requests and documents as they stand.
An endpoint behind Foreword's filter orders documents again: name the engine itself.

Exit codes: 0 every request was served, 1 the run failed (what was answered is kept), 2 bad arguments or wrong lines,
3 every request has an answer, and some were refused or failed.";

/// The command-line options of `foreword batch`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Requests, one JSON object per line
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// OpenAI-compatible endpoint: http://localhost:8000, say, or the same with https
    #[arg(long, value_name = "URL", required_unless_present = "check")]
    endpoint: Option<String>,
    /// File for the answers
    #[arg(long, value_name = "OUT", required_unless_present = "check")]
    out: Option<PathBuf>,
    /// Order of the requests: as planned, those that share documents together; or as in FILE, where --ordering's policy
    /// orders documents as a gateway would
    #[arg(long, value_name = "ORDER", value_parser = batch_order(), default_value = "plan")]
    order: BatchOrder,
    /// The gateway's configuration: its plugin configuration's `ordering`, in JSON. A plan takes the place of its
    /// policy; nothing is pinned, since requests are independent
    #[arg(long, value_name = "FILE")]
    ordering: Option<PathBuf>,
    /// Requests in flight at once
    #[arg(long, value_name = "C", default_value = "8", value_parser = concurrency())]
    concurrency: usize,
    /// Most requests a second [default: any number]
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Environment variable that holds the API key
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// Seconds that one attempt may take
    #[arg(long = "timeout-s", value_name = "SECONDS", default_value = "600", value_parser = seconds(86_400))]
    timeout: Duration,
    /// Further attempts after the first, on 408, 425, 429, 5xx and broken connections
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=100))]
    retries: u32,
    /// Milliseconds before the second attempt; doubled each time, up to 30 s. A Retry-After holds back all requests,
    /// up to 10 minutes
    #[arg(long = "backoff-ms", value_name = "MS", default_value = "500", value_parser = backoff())]
    backoff: Duration,
    /// Send requests again that were refused or failed in an earlier run: their lines are removed from OUT first
    #[arg(long)]
    retry_failed: bool,
    /// Write requests as failed that the endpoint still answers with 5xx after all retries, and go on; without this,
    /// three in a row end the run, since the endpoint may be at fault
    #[arg(long)]
    keep_going: bool,
    /// Only read FILE and name its wrong lines
    #[arg(long)]
    check: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The figures of a run of `foreword batch`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Number of requests in the batch.
    pub requests: u64,
    /// Number of requests for which the output file had answers when the run began.
    pub answered_before: u64,
    /// Number of requests that were served (2xx), in this run or an earlier one.
    pub served: u64,
    /// Number of requests that were refused or failed, in this run or an earlier one.
    pub failed: u64,
    /// Number of retries in this run.
    pub repeated: u64,
    /// Number of requests of this run whose bodies Foreword's ordering core changed, such as by reordering documents.
    pub ordered: u64,
    /// Number of distinct documents in all requests of the batch whose order the plan (`--order plan`) may change. Only
    /// the first documents of a prompt count, and of these not the retriever's best ones if the configuration gives
    /// them fixed places.
    pub documents: u64,
    /// Token counts, as the endpoint reports them, summed over the answers of this run and of earlier ones.
    pub usage: BatchUsage,
    /// Seconds that this run took.
    pub seconds: f64,
}

/// Sends the requests that have no answer in the output yet, and prints the summary to standard output. With `--check`,
/// only reads the file.
///
/// # Errors
/// Returns an error for an invalid argument, a bad line ([`BadInput`]), a file that cannot be read or written, or an
/// endpoint that does not answer.
pub fn run(options: &Options) -> Result<Summary> {
    let key = api_key("--api-key-env", options.api_key_env.as_ref())?;
    let ordering = ordering(options.ordering.as_deref())?;
    let endpoint = options.endpoint.as_deref().unwrap_or_default();
    let root = client::root(endpoint).map_err(|wrong| anyhow!("--endpoint: {wrong}"));
    let root = if options.check { String::new() } else { root? };
    let mut orderer =
        BatchOrderer::new(&ordering, options.order).context("the ordering configuration")?;
    let file = &options.file;
    let failed = || format!("cannot read {}", file.display());
    let input = File::open(file).with_context(failed)?;
    let started = Instant::now();
    let index = read(options, &input, &mut orderer)?;
    if options.check {
        let summary = Summary {
            requests: index.len() as u64,
            documents: index.distinct_documents() as u64,
            seconds: started.elapsed().as_secs_f64(),
            ..Summary::default()
        };
        show(&summary, options)?;
        return Ok(summary);
    }
    let out = options.out.as_deref().unwrap_or(Path::new(""));
    let run = BatchRun::of(out, options, &ordering, &input)?;
    run.check(out, options.retry_failed)?;
    let (output, answers) = Output::open(out, &input, &index, options.retry_failed)?;
    run.write()?;
    let answered_before = answers.served + answers.failed;
    let schedule = BatchSchedule::new(&index, options.order, options.concurrency, |line| {
        !answers.is_answered(line)
    });
    let client = Client::new(Access {
        key,
        timeout: options.timeout,
        retries: options.retries,
        backoff: options.backoff,
        connections: Some(options.concurrency),
    });
    let pace = Pace::new(options.rate, Instant::now());
    let bar = progress::bar("asking", index.len())?;
    bar.set_position(answered_before);
    let run = format!("{:016x}", RandomState::new().hash_one("foreword batch"));
    let batch = Batch {
        input: &input,
        index: &index,
        client: &client,
        pace: &pace,
        root: &root,
        workers: options.concurrency,
        keep_going: options.keep_going,
        run: &run,
        bar: &bar,
    };
    let asked = batch.ask(Progress {
        schedule,
        orderer,
        output,
        answers,
        repeated: 0,
        ordered: 0,
        unanswered: Vec::new(),
        stop: None,
    });
    bar.finish_and_clear();
    let asked = asked?;
    let summary = Summary {
        requests: index.len() as u64,
        answered_before,
        served: asked.answers.served,
        failed: asked.answers.failed,
        repeated: asked.repeated,
        ordered: asked.ordered,
        documents: index.distinct_documents() as u64,
        usage: asked.answers.usage,
        seconds: started.elapsed().as_secs_f64(),
    };
    show(&summary, options)?;
    Ok(summary)
}

/// The identity of a run of `foreword batch`: hashes of its input and settings, kept in `OUT.run` beside the answers, so
/// that a later run with others is refused.
struct BatchRun {
    path: PathBuf,
    /// Hash of the file of requests.
    file: String,
    /// Hash of `--order` and the configuration.
    terms: String,
}

impl BatchRun {
    fn of(out: &Path, options: &Options, ordering: &RawConfig, input: &File) -> Result<Self> {
        let failed = || format!("cannot read {}", options.file.display());
        let mut input = input;
        input.rewind().with_context(failed)?;
        let mut reader = BufReader::with_capacity(1 << 20, input);
        let mut hash = Xxh3::new();
        loop {
            let bytes = reader.fill_buf().with_context(failed)?;
            if bytes.is_empty() {
                break;
            }
            hash.update(bytes);
            let count = bytes.len();
            reader.consume(count);
        }
        input.rewind().with_context(failed)?;
        let terms = format!("{:?} {ordering:?}", options.order);
        let mut path = out.to_owned().into_os_string();
        path.push(".run");
        Ok(Self {
            path: path.into(),
            file: format!("{:016x}", hash.digest()),
            terms: format!("{:016x}", xxh3_64(terms.as_bytes())),
        })
    }

    /// Returns an error if `out` has answers of a run with another file of requests, another `--order` or another
    /// configuration: they would be taken for this run's. A file may have been mended if failed requests are sent again
    /// (`may_be_mended`).
    fn check(&self, out: &Path, may_be_mended: bool) -> Result<()> {
        let has_answers = out.metadata().is_ok_and(|out| out.len() > 0);
        let known = std::fs::read_to_string(&self.path).unwrap_or_default();
        let Some((file, terms)) = known.trim_end().split_once(' ').filter(|_| has_answers) else {
            return Ok(());
        };
        ensure!(
            terms == self.terms && (file == self.file || may_be_mended),
            "{} has answers to other requests, or in another order: give another --out",
            out.display()
        );
        Ok(())
    }

    fn write(&self) -> Result<()> {
        let written = std::fs::write(&self.path, format!("{} {}\n", self.file, self.terms));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Reads and indexes the file of requests. Prints the errors of at most [`NAMED`] bad lines, and returns [`BadInput`]
/// if there is any bad line.
fn read(options: &Options, input: &File, orderer: &mut BatchOrderer) -> Result<BatchIndex> {
    let file = &options.file;
    let failed = || format!("cannot read {}", file.display());
    let bytes = input.metadata().with_context(failed)?.len();
    let bar = progress::bar("reading", usize::try_from(bytes)?)?;
    let mut wrong = 0;
    let limits = BatchLimits {
        urls: &URLS,
        requests: MAX_REQUESTS,
        line_bytes: MAX_LINE_BYTES,
    };
    let name = |error: BatchError| {
        wrong += 1;
        if wrong <= NAMED {
            bar.suspend(|| eprintln!("{}: {error}", file.display()));
        }
        true
    };
    let passed = |bytes| {
        bar.set_position(bytes);
        true
    };
    let input = BufReader::new(input);
    let index = BatchIndex::read(input, limits, Some(orderer), name, passed);
    bar.finish_and_clear();
    let index = index.with_context(failed)?;
    if wrong > NAMED {
        eprintln!("… and {} more", wrong - NAMED);
    }
    if wrong > 0 {
        let wrong = format!("{wrong} lines are wrong; nothing was asked");
        return Err(BadInput(wrong).into());
    }
    Ok(index)
}

fn show(summary: &Summary, options: &Options) -> Result<()> {
    let usage = summary.usage;
    let cached = match usage.prompt_tokens {
        0 => 0.0,
        prompt => usage.cached_tokens as f64 / prompt as f64,
    };
    let order = options.order.name();
    let printed = if options.json {
        let figures = json!({
            "requests": summary.requests,
            "answered_before": summary.answered_before,
            "served": summary.served,
            "failed": summary.failed,
            "repeated": summary.repeated,
            "order": order,
            "ordered": summary.ordered,
            "documents": summary.documents,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "cached_share": rounded(cached, 10_000.0),
            "completion_tokens": usage.completion_tokens,
            "seconds": rounded(summary.seconds, 1_000.0),
        });
        format!("{figures}\n")
    } else if options.check {
        format!(
            "{} requests with {} distinct documents: no line is wrong\n",
            grouped(summary.requests),
            grouped(summary.documents)
        )
    } else {
        format!(
            "requests           {}, {} of them answered before\n\
             served             {}\n\
             failed             {}\n\
             sent again         {}\n\
             documents          {} distinct; ordered in {} requests (--order {order})\n\
             prompt tokens      {}\n\
             cached tokens      {} ({})\n\
             completion tokens  {}\n\
             seconds            {:.1}\n",
            grouped(summary.requests),
            grouped(summary.answered_before),
            grouped(summary.served),
            grouped(summary.failed),
            grouped(summary.repeated),
            grouped(summary.documents),
            grouped(summary.ordered),
            grouped(usage.prompt_tokens),
            grouped(usage.cached_tokens),
            percent(cached),
            grouped(usage.completion_tokens),
            summary.seconds,
        )
    };
    files::print(&printed)
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    rate.filter(|rate| (0.001..=100_000.0).contains(rate))
        .ok_or("it must be a number from 0.001 to 100000".to_owned())
}

/// Maximum number of bad lines of a file whose errors are printed; further ones are only counted.
const NAMED: u64 = 20;
/// Maximum number of requests in a file; it keeps line numbers within 32 bits.
const MAX_REQUESTS: u32 = 100_000_000;
