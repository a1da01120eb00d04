//! The arguments of `foreword evaluate`.

use super::{api_key, ordering};
use anyhow::bail;
use foreword_tools::evaluate::{
    Arm, Format, JudgeOptions, Measure, Options, ProfileOrders, Template,
};
use serde_json::{Map, Value};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) const HELP: &str = "Data:
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

#[derive(clap::Args)]
pub(crate) struct Arguments {
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
    #[arg(long, value_name = "NAME", value_parser = format)]
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
    /// Ask the first N questions only (of SQuAD's, N drawn at random)
    #[arg(long, value_name = "N")]
    questions: Option<NonZeroUsize>,
    /// Documents per question [default: 10 for SQuAD, all for lines]
    #[arg(long, value_name = "K")]
    documents: Option<NonZeroUsize>,
    /// Requests in flight at once
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    concurrency: u16,
    /// Seed of all random choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Gateways with the filter in front of the same endpoint; each adds an arm of its NAME [default NAME: gateway]
    #[arg(long = "gateway", value_name = "[NAME=]URL", value_parser = gateway)]
    gateways: Vec<(String, String)>,
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
    extra: Object,
    /// Send no cache_salt, for endpoints that refuse it: the arms then share the engine's cache
    #[arg(long)]
    no_cache_salt: bool,
    /// Seconds that one attempt may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout_s: u64,
    /// Further attempts after the first, where another may help
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=100))]
    retries: u32,
    /// Milliseconds before the second attempt; doubled each time, up to 30 s
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=30_000))]
    backoff_ms: u64,
    /// How documents are written into the prompt, after the clients that do it so: tags, numbered, open-webui, llamaindex,
    /// cohere (the array `documents`, which the model's chat template must know)
    #[arg(long, value_name = "NAME", value_parser = template, default_value = "tags")]
    template: Template,
    /// Do not measure how likely the model finds the right answers
    #[arg(long, conflicts_with = "score_only")]
    no_logprob: bool,
    /// Measure only how likely the model finds the right answers, and ask for none: several times cheaper
    #[arg(long)]
    score_only: bool,
    /// Also measure where the model reads: score each question in N orders of its documents, in which every rank stands in
    /// every place equally often [default N: as many as documents]
    #[arg(long, value_name = "N", num_args = 0..=1, conflicts_with = "no_logprob")]
    profile: Option<Option<NonZeroUsize>>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// A JSON object as one argument.
#[derive(Clone)]
struct Object(Map<String, Value>);

impl Arguments {
    pub(crate) fn options(self) -> anyhow::Result<Options> {
        let mut gateways: Vec<(&'static str, String)> = Vec::new();
        for (name, url) in self.gateways {
            if gateways.iter().any(|(other, _)| *other == name) {
                bail!("--gateway: two gateways have the name {name}");
            }
            // An arm's name is static.
            gateways.push((name.leak(), url));
        }
        let api_key = api_key("--api-key-env", self.api_key_env.as_ref())?;
        let judge_key = super::api_key("--judge-key-env", self.judge_key_env.as_ref())?;
        let judge = self.judge.zip(self.judge_model);
        let judge = judge.map(|(endpoint, model)| JudgeOptions {
            endpoint,
            model,
            api_key: judge_key,
        });
        Ok(Options {
            endpoint: self.endpoint,
            gateways,
            model: self.model,
            data: self.data,
            format: self.format,
            judge,
            out: self.out,
            arms: self.arms,
            positions: self.positions,
            hint_positions: self.hint_positions,
            questions: self.questions.map(NonZeroUsize::get),
            documents: self.documents.map(NonZeroUsize::get),
            concurrency: self.concurrency.into(),
            seed: self.seed,
            system: self.system,
            changing_head: self.changing_head,
            max_tokens: self.max_tokens,
            extra: self.extra.0,
            ordering: ordering(self.ordering.as_deref())?,
            salts: !self.no_cache_salt,
            api_key,
            timeout: Duration::from_secs(self.timeout_s),
            retries: self.retries,
            backoff: Duration::from_millis(self.backoff_ms),
            template: self.template,
            measure: match (self.no_logprob, self.score_only) {
                (true, _) => Measure::Answers,
                (false, true) => Measure::Likelihood,
                (false, false) => Measure::Both,
            },
            profile: self.profile.map(|orders| match orders {
                None => ProfileOrders::Documents,
                Some(orders) => ProfileOrders::Count(orders.get()),
            }),
            json: self.json,
        })
    }
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    match arguments
        .options()
        .and_then(|options| foreword_tools::evaluate::run(&options))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::failed(&error, 1),
    }
}

/// Parses a gateway's name, which must not be another arm's, and its URL.
fn gateway(text: &str) -> Result<(String, String), String> {
    let usual = Arm::GATEWAY.name();
    let (name, url) = match text.split_once('=') {
        Some((name, url)) if !name.contains(['/', ':', '?']) => (name, url),
        _ => (usual, text),
    };
    if name.is_empty() || (name != usual && Arm::by_name(name).is_some()) {
        return Err(format!("{name:?} cannot be a gateway's name"));
    }
    Ok((name.to_owned(), url.to_owned()))
}

fn format(name: &str) -> Result<Format, String> {
    let names = Format::ALL.map(Format::name).join(", ");
    Format::by_name(name).ok_or(format!("it must be one of {names}"))
}

fn template(name: &str) -> Result<Template, String> {
    let names = Template::ALL.map(Template::name).join(", ");
    Template::by_name(name).ok_or(format!("it must be one of {names}"))
}

fn arm(name: &str) -> Result<Arm, String> {
    let names: Vec<&str> = Arm::all().map(Arm::name).collect();
    Arm::by_name(name).ok_or_else(|| format!("it must be one of {}", names.join(", ")))
}

fn object(text: &str) -> Result<Object, String> {
    serde_json::from_str(text)
        .map(Object)
        .map_err(|error| format!("it must be a JSON object: {error}"))
}

const SYSTEM: &str = "Answer the question from the documents, with the answer alone and in as few words as possible.";
