//! Reuse in a real vLLM: 300 questions of XQuAD, in a shuffled order, each with its ten best paragraphs by BM25.
//!
//! ```text
//! FOREWORD_VLLM_PYTHON=…/bin/python FOREWORD_XQUAD=…/xquad.en.json cargo bench -p foreword-benches -- vllm
//! … orders     cached share of all prompt tokens: client's order, each policy's and as shipped, through real Envoy
//! … bridge     what `foreword kv-bridge` reports as held, against what vLLM reports as cached
//! … feed       what the filter believes with the bridge's feed and by answers alone; `pages=160` makes vLLM evict
//! … fleet      three vLLMs and two gateways, while one of each is killed and comes back (takes 12 GiB; only if named)
//! … heads      cached share where tools or system text differ between requests, as they come and stabilised
//! … requests=100 pages=400, and for `heads` place=free
//! ```
//!
//! The whole prompt counts: one system sentence, documents, hint and question. vLLM's CPU build has pages of 128
//! tokens. All requests are sent one after another, so nothing here is timed.

mod engine;
mod feed;
mod fleet;
mod heads;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use engine::{MODEL, Vllm};
use foreword_benches::Arguments;
use foreword_benches::xquad::{self, Corpus};
use foreword_engine::text::{ChatTemplate, Ending, Tokenizer};
use foreword_ordering::feed::{Batch, Event};
use foreword_ordering::path::Locator;
use foreword_ordering::policy::PolicyKind;
use foreword_ordering::{Config, Orderer, Tenant};
use foreword_tests::http::{Client, post, post_with};
use foreword_tests::{Bridge, Gateway, GatewayOptions};
use serde_json::{Value, json};

/// Environment variable that names a Python with vLLM.
const PYTHON: &str = "FOREWORD_VLLM_PYTHON";
const REQUESTS: usize = 300;
const DEPTH: usize = 10;
/// Tokens in a page of vLLM's CPU build.
const PAGE: u64 = 128;
/// Policies measured with documents placed freely, beside [`PolicyKind::Foresight`].
const OTHERS: [PolicyKind; 3] = [PolicyKind::Sorted, PolicyKind::Greedy, PolicyKind::Longest];
/// The cached share of [`PolicyKind::Foresight`] must be at least this many times that of the client's order where
/// documents are placed freely.
const FREE_MUST_HOLD: f64 = 3.3;
/// The cached share with the filter as shipped must be at least this part of that with documents placed freely.
const SHIPPED_MUST_HOLD: f64 = 0.8;

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    if !arguments.benching {
        return Ok(());
    }
    let (python, corpus, file) = match needed() {
        Ok(needed) => needed,
        Err(reason) => {
            println!("SKIPPED: {reason}");
            return Ok(());
        }
    };
    let requests = arguments.number("requests").unwrap_or(REQUESTS);
    let bodies: Vec<String> = bodies(&corpus).into_iter().take(requests).collect();
    let pages = arguments.number("pages");
    if arguments.says("fleet") {
        let holds = fleet::fleet(&python, &file, pages, &bodies)?;
        return arguments.require(holds);
    }
    let vllm = Vllm::start(&python, &file, pages)?;
    println!(
        "vLLM with room for {} tokens; {requests} questions, {DEPTH} documents each",
        vllm.kv_tokens()?
    );
    let mut holds = true;
    if arguments.has("orders") {
        holds &= orders(&vllm, &bodies)?;
    }
    if arguments.has("bridge") {
        holds &= bridge(&vllm, &bodies)?;
    }
    if arguments.has("feed") {
        holds &= feed::feed(&vllm, &bodies)?;
    }
    if arguments.has("heads") {
        holds &= heads::heads(&vllm, &corpus, requests, &arguments.rank("place"))?;
    }
    arguments.require(holds)
}

/// Returns what the bench requires, or what is missing.
fn needed() -> Result<(PathBuf, Corpus, PathBuf), String> {
    let path = |variable: &str, what: &str| {
        let value = std::env::var_os(variable).map(PathBuf::from);
        value.ok_or_else(|| format!("{variable} does not name {what}"))
    };
    let python = path(PYTHON, "a Python that has vLLM")?;
    let file = path(xquad::VARIABLE, "XQuAD's English file")?;
    Ok((python, xquad::corpus()?, file))
}

/// Returns the requests as a client sends them.
fn bodies(corpus: &Corpus) -> Vec<String> {
    let retrievals = corpus.retrievals().into_iter();
    retrievals
        .map(|retrieval| {
            let documents = retrieval.paragraphs.iter().take(DEPTH).map(|&paragraph| {
                let text = &corpus.paragraphs[paragraph];
                format!("<document id=\"{paragraph:03}\">{text}</document>\n")
            });
            let content = format!("{}{}", documents.collect::<String>(), retrieval.question);
            let body = json!({
                "model": MODEL,
                "messages": [
                    {"role": "system", "content": "Answer the question from the documents."},
                    {"role": "user", "content": content},
                ],
                "max_tokens": 1,
                "temperature": 0,
            });
            body.to_string()
        })
        .collect()
}

/// Tokens of prompts, and those of them that the engine did not compute.
#[derive(Default)]
struct Usage {
    prompt: u64,
    cached: u64,
}

impl Usage {
    fn of(answer: &Value) -> Result<Self> {
        let usage = &answer["usage"];
        let prompt = usage["prompt_tokens"].as_u64();
        let details = &usage["prompt_tokens_details"];
        Ok(Self {
            prompt: prompt.with_context(|| format!("no usage in {answer}"))?,
            cached: details["cached_tokens"].as_u64().unwrap_or(0),
        })
    }

    fn share(&self) -> f64 {
        100.0 * self.cached as f64 / self.prompt as f64
    }
}

/// Prints the table of orders. Returns whether foresight improves on the client's order as much as it must, and the
/// filter as shipped comes as close to it as it must.
fn orders(vllm: &Vllm, bodies: &[String]) -> Result<bool> {
    println!(
        "\n| order | prompt tokens | cached | share | of the client's |\n| --- | --- | --- | --- | --- |"
    );
    let clients = order(vllm, bodies, "the client's", None)?;
    let print = |name: &str, usage: &Usage| {
        println!(
            "| {name} | {} | {} | {:.1} % | {:.2} |",
            usage.prompt,
            usage.cached,
            usage.share(),
            usage.share() / clients.share()
        );
    };
    print("the client's", &clients);
    let placed_freely = |policy: PolicyKind| {
        let name = format!("{}, placed freely", policy.name());
        let plugin = json!({"ordering": {"policy": policy.name(), "rank": {"place": "free"}}});
        let usage = order(vllm, bodies, &name, Some(plugin))?;
        print(&name, &usage);
        Ok::<f64, anyhow::Error>(usage.share())
    };
    let free = placed_freely(PolicyKind::Foresight)?;
    let shipped = order(vllm, bodies, "as shipped", Some(json!({})))?;
    print("as shipped", &shipped);
    for policy in OTHERS {
        placed_freely(policy)?;
    }
    let (of_clients, of_free) = (free / clients.share(), shipped.share() / free);
    println!(
        "\nforesight, placed freely: {of_clients:.2} times the client's (must hold: at least {FREE_MUST_HOLD}); as \
         shipped: {of_free:.2} of that (must hold: at least {SHIPPED_MUST_HOLD})"
    );
    Ok(of_clients >= FREE_MUST_HOLD && of_free >= SHIPPED_MUST_HOLD)
}

/// Sends all requests to an empty cache through Envoy, whose filter has the configuration `plugin`; without a filter if
/// `None`.
fn order(vllm: &Vllm, bodies: &[String], name: &str, plugin: Option<Value>) -> Result<Usage> {
    vllm.reset()?;
    let filters = plugin.is_some();
    let gateway = Gateway::start(&GatewayOptions {
        plugin,
        ..GatewayOptions::new(vllm.address)
    })?;
    let mut client = Client::connect(gateway.address())?;
    let mut total = Usage::default();
    for body in bodies {
        client.send(&post(body.as_bytes()))?;
        let response = client.response()?;
        ensure!(
            response.status == 200,
            "{name} answered {}",
            response.status
        );
        let report = response.report();
        let is_decided = ["ordered", "unchanged"]
            .iter()
            .any(|word| report.starts_with(word));
        ensure!(is_decided == filters, "{name}: {report:?}");
        let usage = Usage::of(&response.json()?)?;
        total.prompt += usage.prompt;
        total.cached += usage.cached;
    }
    Ok(total)
}

/// Compares the bridge's feed before each request with what vLLM then reports. Returns whether the feed never claimed
/// too much.
fn bridge(vllm: &Vllm, bodies: &[String]) -> Result<bool> {
    vllm.reset()?;
    let bridge = Bridge::start(&vllm.model(), MODEL, vllm.events, vllm.replay, &[])?;
    wait("the bridge follows the engine", || {
        Ok(bridge.get("/readyz")?.status == 200)
    })?;
    let reader = Reader::new(&vllm.model())?;
    let mut orderer = Orderer::new(Config::default());
    let (mut equal, mut less, mut more, mut hits) = (0, 0, 0, 0);
    let mut engine = Client::connect(vllm.address)?;
    for body in bodies {
        let rewrite = orderer
            .rewrite(Tenant::named(""), body.as_bytes())
            .context("documents")?;
        let body = rewrite.body.unwrap_or_else(|| body.clone().into_bytes());
        let path = rewrite.path.to_header().context("a path")?;
        let run = &rewrite.path.runs[0];
        let documents: Vec<u64> = run.documents.iter().map(|document| document.0).collect();
        let held = held(&bridge)?;
        let count = (1..=documents.len())
            .take_while(|&count| held.contains(&(run.scope.0, documents[..count].to_vec())))
            .count();
        let said = match count {
            0 => 0,
            count => reader.end(&rewrite.path, &body, count)? / PAGE * PAGE,
        };
        let request = post_with(
            &[
                "content-type: application/json",
                &format!("x-foreword-path: {path}"),
            ],
            &body,
        );
        let copied = foreword_tests::http::exchange(bridge.address(), &request)?;
        ensure!(
            copied.status == 204,
            "the bridge answered {}",
            copied.status
        );
        engine.send(&request)?;
        let response = engine.response()?;
        ensure!(response.status == 200, "vLLM answered {}", response.status);
        let reported = Usage::of(&response.json()?)?.cached;
        hits += u64::from(reported > 0);
        match said.cmp(&reported) {
            std::cmp::Ordering::Equal => equal += 1,
            std::cmp::Ordering::Less => less += 1,
            std::cmp::Ordering::Greater => more += 1,
        }
        let asked = equal + less + more;
        wait(
            &format!("the bridge has seen the blocks of request {asked}"),
            || {
                let copies = bridge.metric("foreword_bridge_copies_total{outcome=\"followed\"}")?;
                Ok(copies == equal + less + more
                    && bridge.metric("foreword_bridge_waiting_prompts")? == 0)
            },
        )?;
    }
    println!(
        "\nThe bridge's feed beside vLLM's cached_tokens, {} requests, {hits} of them with a hit: equal {equal}, less {less}, \
         more {more} (must hold: none)",
        bodies.len()
    );
    Ok(more == 0)
}

/// Returns the paths that the feed reports as held, each with its scope.
fn held(bridge: &Bridge) -> Result<HashSet<(u64, Vec<u64>)>> {
    let response = bridge.get("/v1/kv/snapshot")?;
    ensure!(
        response.status == 200,
        "the feed answered {}",
        response.status
    );
    let batch = Batch::read(&response.body, None)?;
    let mut held = HashSet::new();
    for event in batch.events {
        if let Event::Stored { scope, path, .. } = event {
            let path: Vec<u64> = path.iter().map(|(document, _)| document.0).collect();
            held.extend((1..=path.len()).map(|count| (scope.0, path[..count].to_vec())));
        }
    }
    Ok(held)
}

/// Computes where documents end in a prompt, by the checkpoint's template and tokenizer.
struct Reader {
    template: ChatTemplate,
    tokenizer: Tokenizer,
    locator: Locator,
}

impl Reader {
    fn new(model: &Path) -> Result<Self> {
        Ok(Self {
            template: ChatTemplate::load(model, None)?.context("a chat template")?,
            tokenizer: Tokenizer::load(model)?,
            locator: Locator::new(Config::default()),
        })
    }

    /// Returns the tokens up to the end of the path's first `count` documents.
    fn end(
        &self,
        path: &foreword_ordering::path::SentPath,
        body: &[u8],
        count: usize,
    ) -> Result<u64> {
        let value: Value = serde_json::from_slice(body)?;
        let prompt = self
            .template
            .render(&value["messages"], None, None, None, Ending::Answer)?;
        let located = self
            .locator
            .locate(path, body, &prompt)
            .context("documents")?;
        let (_, end) = located[0].documents[count - 1];
        let (_, counts) = self.tokenizer.encode_counting(&prompt, false, &[end])?;
        Ok(counts[0].into())
    }
}

fn wait(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !condition()? {
        ensure!(
            start.elapsed() < Duration::from_secs(60),
            "waited in vain: {what}"
        );
        sleep(Duration::from_millis(2));
    }
    Ok(())
}
