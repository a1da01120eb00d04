//! `foreword evaluate`: tests whether answers are as good with documents in another order. It asks the user's own model
//! questions with known answers, before the filter is enabled.
//!
//! ```text
//!  FILE ──▶ data ──▶ cases ─┐
//!                           ├─▶ ask: every case under every arm ──▶ journal (answers.jsonl)
//!  arms: the core's ────────┘     prompt, orderer, client,            │
//!  configuration per arm          stream                              ├──▶ likelihood: the right answers (scores.jsonl)
//!                                                                     ▼
//!                                           score ──▶ compare, bootstrap ──▶ table, JSON, report (plots)
//! ```
//!
//! The arms order with the filter's own core, so the measurement covers what the filter does (`tests/tests/evaluate`
//! proves it, through Envoy). The endpoint may be any with OpenAI's chat protocol, over HTTP or HTTPS. A stopped run is
//! resumed; a finished one is scored again without a request.

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

pub use arm::Arm;
pub use data::Format;
pub use hint_place::HintPlace;
pub use judge::JudgeOptions;
pub use profile::RankProfile;
#[cfg(test)]
pub(crate) use profile::tests::example as profile_example;
pub use template::Template;

use crate::client::{Access, Client, chat_url};
use crate::files;
use anyhow::{Context, Result, anyhow, ensure};
use ask::{Questions, RunOutcome};
use data::Reading;
use figures::Figures;
use foreword_ordering::{Config, RawConfig};
use foreword_report::progress;
use fxhash::FxHashSet;
use journal::{Journal, Record};
use profile::Orders;
use prompt::Prompts;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// The options of an evaluation.
#[derive(Clone, Debug)]
pub struct Options {
    /// URL of the endpoint: its root, its `/v1` or its chat route.
    pub endpoint: String,
    /// Names and URLs of gateways in front of the same endpoint, each for an [`Arm::Gateway`].
    pub gateways: Vec<(&'static str, String)>,
    /// Name of the model at the endpoint.
    pub model: String,
    /// File with the questions.
    pub data: PathBuf,
    /// The file's format; `None` to choose by its extension.
    pub format: Option<Format>,
    /// A model that judges which answers are right.
    pub judge: Option<JudgeOptions>,
    /// Folder of the run.
    pub out: PathBuf,
    /// The arms; if empty, all that make a difference for the questions.
    pub arms: Vec<Arm>,
    /// Whether to put the answer's document also first, in the middle and last.
    pub positions: bool,
    /// Whether to put the order hint also before the documents and after the question.
    pub hint_positions: bool,
    /// Most questions.
    pub questions: Option<usize>,
    /// Most documents per question.
    pub documents: Option<usize>,
    /// Number of requests in flight.
    pub concurrency: usize,
    /// Seed of all random choices: the order of questions and of arms, random orders, and resamples.
    pub seed: u64,
    /// The system message; empty for none.
    pub system: String,
    /// Whether the prompt's head differs from request to request.
    pub changing_head: bool,
    /// Most tokens of an answer.
    pub max_tokens: u32,
    /// Further fields of every body, which replace the standard ones.
    pub extra: Map<String, Value>,
    /// The gateway's configuration of ordering.
    pub ordering: RawConfig,
    /// Whether every arm has its own cache, by means of `cache_salt`.
    pub salts: bool,
    /// Bearer token for the endpoint.
    pub api_key: Option<String>,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Further attempts after the first.
    pub retries: u32,
    /// The first wait between two attempts; it doubles.
    pub backoff: Duration,
    /// How documents are written into the prompt.
    pub template: Template,
    /// What is measured for each question.
    pub measure: Measure,
    /// Whether to measure the rank profile, and in how many orders.
    pub profile: Option<ProfileOrders>,
    /// Whether standard output is JSON instead of a table.
    pub json: bool,
}

/// What is measured for a question under an arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The model's answer.
    Answers,
    /// The likelihood of the right answer.
    Likelihood,
    /// Both.
    Both,
}

/// The number of document orders per question for the rank profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileOrders {
    /// As many as the question has documents.
    Documents,
    /// This many.
    Count(usize),
}

impl Measure {
    fn asks(self) -> bool {
        self != Self::Likelihood
    }

    fn scores(self) -> bool {
        self != Self::Answers
    }
}

/// Runs the evaluation, prints the figures to standard output, and writes `figures.json` and `report.html` to the run's
/// folder.
///
/// # Errors
/// Returns an error for an unsuitable argument, a file that cannot be read or written, or an endpoint that does not
/// answer.
pub fn run(options: &Options) -> Result<()> {
    let mut options = options.clone();
    options.template.configure(&mut options.ordering);
    let options = &options;
    let url = chat_url(&options.endpoint).map_err(|wrong| anyhow!("--endpoint: {wrong}"))?;
    let mut gateways = options.gateways.clone();
    for (_, url) in &mut gateways {
        *url = chat_url(url).map_err(|wrong| anyhow!("--gateway: {wrong}"))?;
    }
    let data = data::read(
        &options.data,
        Reading {
            format: options.format,
            documents: options.documents,
            questions: options.questions,
            seed: options.seed,
        },
    )?;
    let has_chats = data.cases.iter().any(|case| case.turns.len() > 1);
    let arms = arms(options, has_chats)?;
    let configs = arms
        .iter()
        .map(|arm| arm.config(&options.ordering, options.seed))
        .collect::<Result<Vec<_>>>()?;
    let parameters = parameters(options, &arms, data.fingerprint, &url, &gateways);

    let mut prompts = Prompts {
        model: options.model.clone(),
        system: options.system.clone(),
        max_tokens: options.max_tokens,
        extra: options.extra.clone(),
        salt: None,
        template: options.template,
        tag: Prompts::tag(&options.ordering)?,
        changing_head: options.changing_head.then_some(options.seed),
    };
    let base = Config::try_from(options.ordering.clone()).context("the ordering configuration")?;
    let moves_hints = arms.iter().any(|arm| arm.hint_place().is_some());
    for case in &data.cases {
        prompts.check(case, &base)?;
        if moves_hints {
            hint_place::check(case)?;
        }
    }
    let (mut journal, records) = Journal::open(&options.out, &parameters)?;
    if options.salts {
        prompts.salt = Some(format!("evaluate-{}", journal.run()));
    }
    let client_with = |key: &Option<String>| {
        Client::new(Access {
            key: key.clone(),
            timeout: options.timeout,
            retries: options.retries,
            backoff: options.backoff,
            connections: None,
        })
    };
    let client = client_with(&options.api_key);
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
    let scores = options.measure.scores() && can_score(options, &client, &prompts, &url)?;
    let mut outcome = if options.measure.asks() {
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
            let config = Arm::Retrieval.config(&options.ordering, options.seed)?;
            profile = Some(measure_profile(
                options, orders, &client, &questions, &config,
            )?);
        }
    }
    if let Some(options_of_judge) = &options.judge {
        let client = client_with(&options_of_judge.api_key);
        let bar = progress::bar("judging", outcome.records.len())?;
        let judged = judge::judge(
            options_of_judge,
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
        salted: options.salts,
        arms: compare::compare(&data.cases, &arms, &outcome.records, options.seed),
        profile,
    };
    show(&figures, options)
}

/// Returns whether the endpoint can report likelihoods, and prints the reason if it cannot.
///
/// # Errors
/// Returns an error if it cannot and nothing else is to be measured, or if it does not answer at all.
fn can_score(options: &Options, client: &Client, prompts: &Prompts, url: &str) -> Result<bool> {
    let Some(reason) = scores::unable(client, &prompts.probe(), url)? else {
        return Ok(true);
    };
    ensure!(
        options.measure.asks() && options.profile.is_none(),
        "the endpoint cannot tell how likely an answer is (prompt_logprobs with continue_final_message, as vLLM and foreword serve have \
         them): {reason}"
    );
    eprintln!(
        "warning: answer_logprob is left out, since the endpoint cannot tell how likely an answer is (prompt_logprobs with \
         continue_final_message, as vLLM and foreword serve have them): {reason}"
    );
    Ok(false)
}

/// Scores the right answers under every arm.
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

/// Scores the right answer under different document orders, and fits how each rank's place affects it.
fn measure_profile(
    options: &Options,
    orders: ProfileOrders,
    client: &Client,
    questions: &Questions<'_>,
    config: &Config,
) -> Result<RankProfile> {
    let count = match orders {
        ProfileOrders::Documents => None,
        ProfileOrders::Count(count) => Some(count),
    };
    let Questions {
        cases,
        prompts,
        url,
        seed,
        ..
    } = *questions;
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
    let printed = if options.json {
        json
    } else {
        figures.to_table()
    };
    files::print(&printed)
}

/// Returns the distinct arms, in the order of [`Arm::all`].
fn arms(options: &Options, has_chats: bool) -> Result<Vec<Arm>> {
    let mut arms: FxHashSet<Arm> = options.arms.iter().copied().collect();
    if arms.is_empty() {
        arms.extend([
            Arm::Retrieval,
            Arm::Ordered,
            Arm::OrderedHint,
            Arm::Random,
            Arm::Reversed,
        ]);
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
        let usual = Arm::all().filter_map(|arm| Some((arm, arm.with_usual_hint()?)));
        let mut usual: Vec<_> = usual.collect();
        usual.retain(|(_, usual)| arms.contains(usual));
        ensure!(
            !usual.is_empty(),
            "--hint-positions needs the arm ordered+hint or dedup+hint"
        );
        arms.extend(usual.into_iter().map(|(arm, _)| arm));
    }
    let named = (options.gateways.iter()).map(|(name, _)| Arm::Gateway(name));
    ensure!(
        !arms.contains(&Arm::GATEWAY) || named.clone().any(|arm| arm == Arm::GATEWAY),
        "the arm gateway needs --gateway"
    );
    let core = Arm::all().filter(|arm| !arm.is_gateway());
    Ok(core.chain(named).filter(|arm| arms.contains(arm)).collect())
}

/// Returns the parameters on which answers and times depend: a run is resumed only with the same ones. The API key,
/// time limit and retries do not belong to them.
fn parameters(
    options: &Options,
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
        ("ordering", json!(format!("{:?}", options.ordering))),
        ("cache_salt", json!(options.salts)),
        ("template", json!(options.template.name())),
        ("endpoint", json!(url)),
        ("gateways", json!(gateways)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect()
}
