//! `foreword evaluate`: tests whether answers stay as good when documents are in another order. It asks the user's own
//! model questions with known answers, before the filter is enabled.
//!
//! ```text
//!  FILE ──▶ data ──▶ cases ─┐
//!                           ├─▶ ask: every case under every arm ──▶ journal (answers.jsonl)
//!  arms: the core's ────────┘     prompt, orderer, client,            │
//!  configuration per arm          stream                              ├──▶ likelihood: right answers (scores.jsonl)
//!                                                                     ▼
//!                                           score ──▶ compare, bootstrap ──▶ table, JSON, report (plots)
//! ```
//!
//! The arms (ways to ask: a document order and a core configuration) order with the ordering core itself, so what is
//! measured is what the filter does (`tests/tests/evaluate` checks this through Envoy). Any endpoint with OpenAI's chat
//! API will do. The same command resumes a stopped run, and scores a finished one again without a request.

mod arm;
mod ask;
mod bootstrap;
mod choice;
mod client;
mod compare;
mod data;
mod figures;
mod head;
mod hint_place;
mod journal;
mod judge;
mod kept;
mod likelihood;
mod plots;
mod profile;
mod prompt;
mod report;
mod score;
mod scores;
mod stream;
mod template;

pub(crate) use profile::RankProfile;
#[cfg(test)]
pub(crate) use profile::tests::example as profile_example;

use crate::client::{Access, Client, chat_url};
use crate::options::{api_key, backoff, concurrency, named, ordering, seconds};
use anyhow::{Context, Result, anyhow, ensure};
use arm::Arm;
use ask::{Questions, RunOutcome};
use data::{Format, Reading};
use figures::Figures;
use foreword_ordering::{Config, RawConfig};
use foreword_report::files;
use foreword_report::progress;
use fxhash::FxHashSet;
use hint_place::HintPlace;
use journal::{Journal, Record};
use profile::Orders;
use prompt::Prompts;
use serde_json::{Map, Value, json};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use template::Template;

const HELP: &str = "Data:
  FILE.json   SQuAD: the file's paragraphs are the documents; each question gets the best K by BM25, its own among them
  FILE.jsonl  {\"question\": …, \"documents\": [best first: a text, or {\"id\", \"title\", \"text\"}], \"answers\": [texts]}
              or {\"turns\": [{\"question\", \"documents\", \"answers\"}, …]} on each line;
              with \"choices\": [texts], answers are letters, A for the first
  examples/datasets.py writes HotpotQA, MultiHop-RAG, QASPER, NarrativeQA, MT-RAG, Natural Questions, MMLU and PubMedQA
  as such lines

Among choices, the letter with the highest log-probability is the answer. A judge (--judge) says of answers in words
whether they are right; its judgements are kept in DIR/judgements.jsonl.

Arms: retrieval, ordered, ordered+hint, dedup, dedup+hint (what the filter does), random, reversed, gateway;
  ordered:free, ordered:last, ordered:first, ordered:ends, ordered:auto, each also with +hint: where the best
  document stands;
  first, middle, last: where the answer's document stands;
  ordered+hint:top, ordered+hint:end, dedup+hint:top, dedup+hint:end: the order hint before the documents, or behind the
  question, instead of between them;
  stabilised, stabilised:tools, stabilised:words: what stands before the documents is made alike

DIR/answers.jsonl holds the answers' texts, readable by its owner alone: a run that was stopped goes on from it.

Exit codes: 0 done, 1 it failed (what was answered is kept), 2 bad arguments.";

/// The command-line options of `foreword evaluate`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// OpenAI-compatible endpoint: http://localhost:8000, say, or the same with https
    #[arg(long, value_name = "URL")]
    endpoint: String,
    /// Name of the model at the endpoint
    #[arg(long, value_name = "NAME")]
    model: String,
    /// Questions with answers: SQuAD (.json) or lines (.jsonl)
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Format of the questions, where the ending does not tell: squad, lines
    #[arg(long, value_name = "NAME", value_parser = named(Format::ALL, Format::name))]
    format: Option<Format>,
    /// OpenAI-compatible endpoint of a model that says which answers are right
    #[arg(long, value_name = "URL", requires = "judge_model")]
    judge: Option<String>,
    /// Name of the judge's model
    #[arg(long, value_name = "NAME", requires = "judge")]
    judge_model: Option<String>,
    /// Environment variable that holds the judge's API key
    #[arg(long, value_name = "VAR", requires = "judge")]
    judge_key_env: Option<String>,
    /// Folder of the run, for answers, figures and report
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Ways to ask [default: those without a position; dedup ones where chats have turns]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = arm)]
    arms: Vec<Arm>,
    /// Also put the answer's document first, in the middle and last
    #[arg(long)]
    positions: bool,
    /// Also put the order hint before the documents and behind the question, in the arms that have one
    #[arg(long)]
    hint_positions: bool,
    /// Also compare each arm with this one, question by question; retrieval order always is compared with
    #[arg(long, value_name = "ARM")]
    baseline: Option<String>,
    /// Ask the first N questions only (of SQuAD's, N drawn at random)
    #[arg(long, value_name = "N")]
    questions: Option<NonZeroUsize>,
    /// Documents per question [default: 10 for SQuAD, all for lines]
    #[arg(long, value_name = "K")]
    documents: Option<NonZeroUsize>,
    /// Requests in flight at once
    #[arg(long, value_name = "C", default_value = "1", value_parser = concurrency())]
    concurrency: usize,
    /// Seed of all random choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Gateways with the filter in front of the same endpoint; each adds an arm of its NAME [default NAME: gateway]
    #[arg(long = "gateway", value_name = "[NAME=]URL", value_parser = gateway)]
    gateways: Vec<(&'static str, String)>,
    /// The gateway's configuration: its plugin configuration's `ordering`, in JSON
    #[arg(long, value_name = "FILE")]
    ordering: Option<PathBuf>,
    /// Environment variable that holds the API key
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// System message; empty for none
    #[arg(long, value_name = "TEXT", default_value = SYSTEM)]
    system: String,
    /// Let what stands before the documents differ in each request: a clock and an id in the system message, tools in
    /// another order; adds the arm stabilised
    #[arg(long)]
    changing_head: bool,
    /// Most tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// More members for every request, as a JSON object, such as {"chat_template_kwargs": {"enable_thinking": false}}
    #[arg(long, value_name = "JSON", value_parser = object, default_value = "{}", hide_default_value = true)]
    extra: Map<String, Value>,
    /// Send no cache_salt, for endpoints that refuse it: the arms then share the engine's cache
    #[arg(long)]
    no_cache_salt: bool,
    /// Seconds that one attempt may take
    #[arg(long = "timeout-s", value_name = "SECONDS", default_value = "300", value_parser = seconds(86_400))]
    timeout: Duration,
    /// Further attempts after the first, where another may help
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=100))]
    retries: u32,
    /// Milliseconds before the second attempt; doubled each time, up to 30 s
    #[arg(long = "backoff-ms", value_name = "MS", default_value = "500", value_parser = backoff())]
    backoff: Duration,
    /// Format of the documents in the prompt: tags, numbered, open-webui, llamaindex, cohere (the array `documents`,
    /// which the model's chat template must know)
    #[arg(long, value_name = "NAME", value_parser = named(Template::ALL, Template::name), default_value = "tags")]
    template: Template,
    /// Do not measure the model's probability of the right answers
    #[arg(long, conflicts_with = "score_only")]
    no_logprob: bool,
    /// Measure only the model's probability of the right answers, and generate none: several times cheaper
    #[arg(long)]
    score_only: bool,
    /// Also measure where the model reads: score each question in N orders of its documents, in which every rank stands
    /// in every place equally often [default N: as many as documents]
    #[arg(long, value_name = "N", num_args = 0..=1, conflicts_with = "no_logprob")]
    profile: Option<Option<NonZeroUsize>>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the evaluation, prints the figures to standard output, and writes `figures.json` and `report.html` (with
/// `--profile`, also `rank-profile.json`) to the run's folder.
///
/// # Errors
/// Returns an error for an unsuitable argument, a file that cannot be read or written, or an endpoint that does not
/// answer.
pub fn run(options: &Options) -> Result<()> {
    for (at, (name, _)) in options.gateways.iter().enumerate() {
        let mut earlier = options.gateways.iter().take(at);
        ensure!(
            earlier.all(|(other, _)| other != name),
            "--gateway: two gateways have the name {name}"
        );
    }
    let key = api_key("--api-key-env", options.api_key_env.as_ref())?;
    let judge_key = api_key("--judge-key-env", options.judge_key_env.as_ref())?;
    let mut ordering = ordering(options.ordering.as_deref())?;
    options.template.configure(&mut ordering);
    let url = chat_url(&options.endpoint).map_err(|wrong| anyhow!("--endpoint: {wrong}"))?;
    let mut gateways = options.gateways.clone();
    for (_, url) in &mut gateways {
        *url = chat_url(url).map_err(|wrong| anyhow!("--gateway: {wrong}"))?;
    }
    let reading = Reading {
        format: options.format,
        documents: options.documents.map(NonZeroUsize::get),
        questions: options.questions.map(NonZeroUsize::get),
        seed: options.seed,
    };
    let data = data::read(&options.data, reading)?;
    let has_chats = data.cases.iter().any(|case| case.turns.len() > 1);
    let arms = arms(options, has_chats)?;
    let baseline = baseline(options, &arms)?;
    let configs = arms.iter().map(|arm| arm.config(&ordering, options.seed));
    let configs = configs.collect::<Result<Vec<_>>>()?;
    let parameters = parameters(options, &ordering, &arms, data.fingerprint, &url, &gateways);

    let mut prompts = Prompts {
        model: options.model.clone(),
        system: options.system.clone(),
        max_tokens: options.max_tokens,
        extra: options.extra.clone(),
        salt: None,
        template: options.template,
        tag: Prompts::tag(&ordering)?,
        changing_head: options.changing_head.then_some(options.seed),
    };
    let base = Config::try_from(ordering.clone()).context("the ordering configuration")?;
    let moves_hints = arms.iter().any(|arm| arm.hint_place().is_some());
    for case in &data.cases {
        prompts.check(case, &base)?;
        if moves_hints {
            hint_place::check(case)?;
        }
    }
    let (mut journal, records) = Journal::open(&options.out, &parameters)?;
    if !options.no_cache_salt {
        prompts.salt = Some(format!("evaluate-{}", journal.run()));
    }
    let client_with = |key: Option<String>| {
        Client::new(Access {
            key,
            timeout: options.timeout,
            retries: options.retries,
            backoff: options.backoff,
            connections: None,
        })
    };
    let client = client_with(key);
    let questions = Questions {
        cases: &data.cases,
        arms: &arms,
        configs,
        prompts: &prompts,
        client: &client,
        url: &url,
        gateways: &gateways,
        seed: options.seed,
        concurrency: options.concurrency,
    };
    let scores = !options.no_logprob && can_score(options, &client, &prompts, &url)?;
    let mut outcome = if !options.score_only {
        let bar = progress::bar("asking", questions.requests())?;
        let outcome = questions.ask(&mut journal, records, &bar);
        bar.finish_and_clear();
        outcome?
    } else {
        RunOutcome {
            records: questions.unasked()?,
            ..RunOutcome::default()
        }
    };
    let mut profile = None;
    if scores {
        score(options, &client, &questions, &mut outcome.records)?;
        if let Some(orders) = options.profile {
            let config = Arm::Retrieval.config(&ordering, options.seed)?;
            let measured = measure_profile(options, orders, &client, &questions, &config);
            profile = Some(measured?);
        }
    }
    outcome.records.retain(|record| !record.is_failed);
    ensure!(
        outcome.left_out.len() < data.cases.len(),
        "no question was answered under every arm: all {} were refused or failed",
        data.cases.len()
    );
    if let Some((endpoint, model)) = options.judge.as_ref().zip(options.judge_model.as_ref()) {
        let judge_url = chat_url(endpoint).map_err(|wrong| anyhow!("--judge: {wrong}"))?;
        let client = client_with(judge_key);
        let bar = progress::bar("judging", outcome.records.len())?;
        let judged = judge::judge(
            &judge_url,
            model,
            &client,
            &options.out,
            &data.cases,
            &mut outcome.records,
            options.concurrency,
            &bar,
        );
        bar.finish_and_clear();
        judged?;
    }

    let name = options.data.file_name().unwrap_or_default();
    let figures = Figures {
        data: name.to_string_lossy().into_owned(),
        model: options.model.clone(),
        endpoint: url,
        run: journal.run().to_owned(),
        seed: options.seed,
        concurrency: options.concurrency,
        cases: data.cases.len(),
        left_out: outcome.left_out.len(),
        without_answers: data.without_answers,
        salted: !options.no_cache_salt,
        baseline,
        arms: compare::compare(&data.cases, &arms, baseline, &outcome.records, options.seed),
        profile,
    };
    show(&figures, options)
}

/// Returns whether the endpoint reports the log-probabilities of a prompt's tokens, which scoring right answers needs.
/// If it does not, prints a warning with the reason.
///
/// # Errors
/// Returns an error if the endpoint does not answer, or if it reports no log-probabilities and `--score-only` or
/// `--profile` was given.
fn can_score(options: &Options, client: &Client, prompts: &Prompts, url: &str) -> Result<bool> {
    let Some(reason) = scores::reason_unscored(client, &prompts.probe(), url)? else {
        return Ok(true);
    };
    ensure!(
        !options.score_only && options.profile.is_none(),
        "the endpoint cannot tell how likely an answer is (prompt_logprobs with continue_final_message, as vLLM and foreword serve have \
         them): {reason}"
    );
    eprintln!(
        "warning: answer_logprob is left out, since the endpoint cannot tell how likely an answer is (prompt_logprobs with \
         continue_final_message, as vLLM and foreword serve have them): {reason}"
    );
    Ok(false)
}

/// Requests, for each record, the log-probability of the right answer as the continuation of the record's prompt, and
/// stores it in the record.
fn score(
    options: &Options,
    client: &Client,
    questions: &Questions<'_>,
    records: &mut [Record],
) -> Result<()> {
    let (places, forced): (Vec<_>, Vec<_>) = questions.forced(records)?.into_iter().unzip();
    let bar = progress::bar("scoring", forced.len())?;
    let found = scores::likelihoods(forced, client, &options.out, options.concurrency, &bar);
    bar.finish_and_clear();
    for (place, likelihood) in places.into_iter().zip(found?) {
        records[place].likelihood = likelihood;
    }
    Ok(())
}

/// Measures the log-probability of each question's right answer in several orders of its documents, and fits the
/// model's rank profile to it (the effect of a document's place in the prompt on the right answer, by the document's
/// rank). `orders` is the number of orders per question; with `None`, as many as the question has documents.
fn measure_profile(
    options: &Options,
    orders: Option<NonZeroUsize>,
    client: &Client,
    questions: &Questions<'_>,
    config: &Config,
) -> Result<RankProfile> {
    let (count, seed) = (orders.map(NonZeroUsize::get), questions.seed);
    let (cases, prompts, url) = (questions.cases, questions.prompts, questions.url);
    let (orders, forced) = Orders::new(cases, prompts, config, url, count, seed)?;
    let bar = progress::bar("profiling", forced.len())?;
    let found = scores::likelihoods(forced, client, &options.out, options.concurrency, &bar);
    bar.finish_and_clear();
    Ok(orders.profile(&found?, &options.model, options.template.name(), seed))
}

fn show(figures: &Figures, options: &Options) -> Result<()> {
    if let Some(profile) = &figures.profile {
        profile.write(&options.out.join("rank-profile.json"))?;
    }
    let json = figures.to_json() + "\n";
    let page = report::page(figures)?;
    for (name, text) in [("figures.json", &json), ("report.html", &page)] {
        files::write(&options.out.join(name), text)?;
    }
    files::print(&if options.json {
        json
    } else {
        figures.to_table()
    })
}

/// Returns the arms (ways to ask) that the options request, each once: gateways last, the others in the order of
/// [`Arm::all`]. `has_chats` is true if a case has several turns.
fn arms(options: &Options, has_chats: bool) -> Result<Vec<Arm>> {
    let mut arms: FxHashSet<Arm> = options.arms.iter().copied().collect();
    if arms.is_empty() {
        arms.extend([Arm::Retrieval, Arm::Ordered, Arm::OrderedHint]);
        arms.extend([Arm::Random, Arm::Reversed]);
        if has_chats {
            arms.extend([Arm::Dedup, Arm::DedupHint]);
        }
        if options.changing_head {
            arms.insert(Arm::Stabilised);
        }
    }
    arms.extend(options.gateways.iter().map(|(name, _)| Arm::Gateway(name)));
    if options.positions {
        arms.extend(Arm::POSITIONS);
    }
    if options.hint_positions {
        let mut places = Vec::new();
        for place in [HintPlace::Top, HintPlace::End] {
            let of = [
                (Arm::OrderedHint, Arm::OrderedHintAt(place)),
                (Arm::DedupHint, Arm::DedupHintAt(place)),
            ];
            let with_hint = of.into_iter().filter(|(usual, _)| arms.contains(usual));
            places.extend(with_hint.map(|(_, arm)| arm));
        }
        ensure!(
            !places.is_empty(),
            "--hint-positions needs the arm ordered+hint or dedup+hint"
        );
        arms.extend(places);
    }
    let named = (options.gateways.iter()).map(|(name, _)| Arm::Gateway(name));
    ensure!(
        !arms.contains(&Arm::GATEWAY) || named.clone().any(|arm| arm == Arm::GATEWAY),
        "the arm gateway needs --gateway"
    );
    let core = Arm::all().filter(|arm| !arm.is_gateway());
    Ok(core.chain(named).filter(|arm| arms.contains(arm)).collect())
}

/// Returns the arm (way to ask) that the option `--baseline` names; `None` if the option was not given. Returns an
/// error unless the arm is one of `arms` and puts no document in a given position, so that it is asked all questions.
fn baseline(options: &Options, arms: &[Arm]) -> Result<Option<Arm>> {
    let Some(name) = options.baseline.as_deref() else {
        return Ok(None);
    };
    let all = arms.iter().copied().filter(|arm| !arm.is_position());
    let found = all.clone().find(|arm| arm.name() == name);
    ensure!(
        found.is_some(),
        "--baseline: it must be one of the arms {}, not {name:?}",
        all.map(Arm::name).collect::<Vec<_>>().join(", ")
    );
    Ok(found)
}

/// Returns the options on which answers and times depend, by name: a run can be resumed only with the same ones. API
/// key, time limit and retries are not among them. `data` is the hash of the data file.
fn parameters(
    options: &Options,
    ordering: &RawConfig,
    arms: &[Arm],
    data: u64,
    url: &str,
    gateways: &[(&str, String)],
) -> Map<String, Value> {
    let names: Vec<_> = arms.iter().map(|arm| arm.name()).collect();
    [
        ("model", json!(options.model)),
        ("data", json!(format!("{data:016x}"))),
        ("arms", json!(names)),
        ("questions", json!(options.questions)),
        ("documents", json!(options.documents)),
        ("format", json!(options.format.map(Format::name))),
        ("seed", json!(options.seed)),
        ("concurrency", json!(options.concurrency)),
        ("system", json!(options.system)),
        ("changing_head", json!(options.changing_head)),
        ("max_tokens", json!(options.max_tokens)),
        ("extra", json!(options.extra)),
        ("ordering", json!(format!("{ordering:?}"))),
        ("cache_salt", json!(!options.no_cache_salt)),
        ("template", json!(options.template.name())),
        ("endpoint", json!(url)),
        ("gateways", json!(gateways)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect()
}

/// Parses a value `[NAME=]URL` of `--gateway` into the gateway's name (`gateway` if none is given) and its URL. Returns
/// an error if the name is empty or is that of another arm (way to ask).
fn gateway(text: &str) -> Result<(&'static str, String), String> {
    let usual = Arm::GATEWAY.name();
    let (name, url) = match text.split_once('=') {
        Some((name, url)) if !name.contains(['/', ':', '?']) => (name, url),
        _ => (usual, text),
    };
    if name.is_empty() || (name != usual && Arm::by_name(name).is_some()) {
        return Err(format!("{name:?} cannot be a gateway's name"));
    }
    // An arm's name is a `&'static str`.
    Ok((name.to_owned().leak(), url.to_owned()))
}

fn arm(name: &str) -> Result<Arm, String> {
    let names: Vec<&str> = Arm::all().map(Arm::name).collect();
    Arm::by_name(name).ok_or_else(|| format!("it must be one of {}", names.join(", ")))
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("it must be a JSON object: {error}"))
}

const SYSTEM: &str = "Answer the question from the documents, with the answer alone and in as few words as possible.";
