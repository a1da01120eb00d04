//! The survey: sends a new prompt twice to each API, then beginnings of one of the prompts. The checks `caching`,
//! `cached-tokens/<api>` and `least-reusable` use the answers.
//!
//! ```text
//!   no API caches 400 tokens ─▶ 2,300 ─▶ 9,200 on one API (hybrid models share blocks of up to 8,320) ─▶ off
//!   one does ─▶ that length on every API ─▶ its beginnings, doubling from 24 tokens: the shortest that is reused
//! ```

use super::api::{APIS, Api, Usage};
use super::client::Client;
use super::finding::{Finding, Status};
use super::metrics::Metrics;
use super::prompt::Words;

/// The token counts of a new prompt that was sent twice to each API, and of beginnings of one of these prompts.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) routes: Vec<Route>,
    /// Token counts of beginnings of one of the prompts, which were sent as prompts of their own, the shortest first.
    beginnings: Vec<Usage>,
}

/// An API, the prompt that was sent to it twice, and the token counts in its responses.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) api: &'static Api,
    pub(super) text: String,
    /// Token counts of the first and the second request, or the error of one of them.
    pub(super) pair: Result<[Usage; 2], String>,
}

/// The engine to examine, and the client that sends requests to it.
pub(super) struct Engine<'a> {
    pub(super) client: &'a Client,
    pub(super) root: &'a str,
    pub(super) model: &'a str,
    /// The model's context length in tokens; `None` if the engine does not state it.
    pub(super) max_tokens: Option<u64>,
}

impl Engine<'_> {
    pub(super) fn ask(&self, api: &Api, text: &str) -> Result<Usage, String> {
        api.ask(self.client, self.root, &api.body(self.model, text))
    }
}

impl Route {
    fn ask(engine: &Engine<'_>, api: &'static Api, text: String) -> Self {
        let first = engine.ask(api, &text);
        let pair = first.and_then(|first| Ok([first, engine.ask(api, &text)?]));
        Self { api, text, pair }
    }

    /// Returns the token counts of the second request if at least half of the prompt was cached; `None` otherwise.
    pub(super) fn warm(&self) -> Option<&Usage> {
        let [_, warm] = self.pair.as_ref().ok()?;
        Some(warm).filter(|warm| warm.is_warm())
    }

    /// Returns the number of prompt tokens per word of `text`, within reason whatever the engine reports; `None` if the
    /// request failed or reported no tokens.
    fn tokens_per_word(&self) -> Option<f64> {
        let [first, _] = self.pair.as_ref().ok()?;
        let words = self.text.split(' ').count();
        (first.prompt > 0).then(|| (first.prompt as f64 / words as f64).clamp(0.5, 8.0))
    }
}

impl Survey {
    pub(super) fn take(engine: &Engine<'_>, words: &mut Words) -> Self {
        let mut survey = Self::default();
        let mut per_word = WORD_TOKENS;
        for api in &APIS {
            let route = Route::ask(engine, api, words.text(count(LENGTHS[0], per_word)));
            per_word = route.tokens_per_word().unwrap_or(per_word);
            survey.routes.push(route);
        }
        let first = survey.routes.iter().position(|route| route.pair.is_ok());
        let is_possible =
            |length: &&u64| engine.max_tokens.is_none_or(|most| **length + 64 <= most);
        for length in LENGTHS[1..].iter().filter(is_possible) {
            let Some(first) = first.filter(|_| survey.reusing().is_none()) else {
                break;
            };
            let mut longer =
                |route: &Route| Route::ask(engine, route.api, words.text(count(*length, per_word)));
            let route = longer(&survey.routes[first]);
            if route.warm().is_some() {
                survey.routes[first] = route;
                let others = survey.routes.iter_mut().skip(first + 1);
                for other in others.filter(|other| other.pair.is_ok()) {
                    *other = longer(other);
                }
            }
        }
        survey.beginnings = survey.ask_beginnings(engine);
        survey
    }

    fn ask_beginnings(&self, engine: &Engine<'_>) -> Vec<Usage> {
        let Some((route, warm)) = self.reusing() else {
            return Vec::new();
        };
        let per_word = route.tokens_per_word().unwrap_or(WORD_TOKENS);
        let words: Vec<&str> = route.text.split(' ').collect();
        let lengths = (0..).map(|power| LEAST << power);
        let lengths = lengths.take_while(|length| *length < warm.prompt);
        let ask = |length| {
            let text = words.get(..count(length, per_word) as usize)?.join(" ");
            engine.ask(route.api, &text).ok()
        };
        lengths.filter_map(ask).collect()
    }

    /// Returns the first route whose second request found at least half of the prompt cached, with that request's token
    /// counts; `None` if there is none.
    pub(super) fn reusing(&self) -> Option<(&Route, &Usage)> {
        (self.routes.iter()).find_map(|route| Some((route, route.warm()?)))
    }

    pub(super) fn route(&self, api: &Api) -> Option<&Route> {
        (self.routes.iter()).find(|route| route.api.name == api.name)
    }

    /// Returns the number of tokens of the shortest prompt that was at least partly cached; `None` if no prompt was.
    pub(super) fn least(&self) -> Option<u64> {
        let reused = self.counted().filter(|usage| usage.cached_or_zero() > 0);
        reused.map(|usage| usage.prompt).min()
    }

    /// Returns the greatest common divisor of all counts of cached tokens: an estimate of the engine's block size in
    /// tokens.
    fn step(&self) -> u64 {
        let cached = self.counted().map(Usage::cached_or_zero);
        cached.fold(0, common)
    }

    fn counted(&self) -> impl Iterator<Item = &Usage> {
        let warm = self.reusing().map(|(_, warm)| warm);
        self.beginnings.iter().chain(warm)
    }
}

/// Checks that a prompt sent twice is cached the second time.
pub(super) fn caching(survey: &Survey, metrics: &Metrics) -> Finding {
    if let Some((route, warm)) = survey.reusing() {
        let (name, cached) = (route.api.name, warm.of_prompt());
        return Finding::ok(format!("one {name} prompt twice: {cached} tokens cached"));
    }
    let routes = || survey.routes.iter();
    let served = || routes().filter_map(|route| Some((route, route.pair.as_ref().ok()?)));
    let Some((route, [_, warm])) = served().next() else {
        let came = routes().filter_map(|route| route.pair.clone().err());
        return Finding::fail(came.collect::<Vec<_>>().join("; "), SERVED);
    };
    let (name, cached) = (route.api.name, warm.of_prompt());
    let detail = format!("one {name} prompt twice: cached tokens {cached}");
    let is_uncounted = served().all(|(_, [_, warm])| warm.cached.is_none());
    match metrics.label("vllm:cache_config_info", "enable_prefix_caching") {
        Some("True" | "true" | "1") => {
            let detail = format!("{detail}; /metrics: enable_prefix_caching is on");
            match is_uncounted {
                true => Finding::ok(detail),
                false => Finding::fail(detail, REPLICAS),
            }
        }
        None if is_uncounted => {
            let nothing = "on every API: no answer shows whether anything is reused";
            Finding::skipped(format!("{detail}, {nothing}"), REPORT)
        }
        _ => Finding::fail(detail, CACHING),
    }
}

/// Checks that responses of `route`'s API state how many prompt tokens were cached. `caching` is the status of the
/// check `caching` (whether the engine caches prompts at all): if it failed, an API that states nothing is no failure.
pub(super) fn cached_tokens(route: &Route, survey: &Survey, caching: Status) -> Finding {
    let warm = match &route.pair {
        Ok([_, warm]) => warm,
        Err(came) => return Finding::unknown(came),
    };
    let (path, cached) = (route.api.path, warm.of_prompt());
    let detail = format!("POST {path}, one prompt twice: cached tokens {cached}");
    match survey.reusing() {
        Some((other, reused)) if route.warm().is_none() => {
            let (name, cached) = (other.api.name, reused.of_prompt());
            Finding::fail(format!("{detail}; {name} says {cached}"), REPORT)
        }
        None if warm.cached.is_none() && caching == Status::Fail => Finding::unknown(format!(
            "{detail}; nothing is cached that could be reported"
        )),
        None if warm.cached.is_none() => Finding::fail(detail, REPORT),
        _ => Finding::ok(detail),
    }
}

/// Checks that short prompts are reused too, by the token counts of beginnings of a cached prompt.
pub(super) fn least_reusable(survey: &Survey, metrics: &Metrics) -> Finding {
    let (Some((route, _)), Some(least)) = (survey.reusing(), survey.least()) else {
        return Finding::unknown("no prompt was reported as reused");
    };
    let counts = survey.beginnings.iter();
    let counts = counts.map(|usage| format!("{} of {}", usage.cached_or_zero(), usage.prompt));
    let (counts, step) = (counts.collect::<Vec<_>>().join(", "), survey.step());
    let block = metrics.label("vllm:cache_config_info", "block_size");
    let block = block.map(|block| format!(", block_size {block} (/metrics)"));
    let block = block.unwrap_or_default();
    let detail = format!(
        "beginnings of one {} prompt: cached {counts}; reused from {least} tokens on, in multiples of {step}{block}",
        route.api.name,
    );
    if least <= MAX_LEAST {
        return Finding::ok(detail);
    }
    let remedy = format!(
        "engine: a smaller --block-size (vLLM) or --page-size (SGLang); gateway: \"engines\": [{{\"name\": \"a\", \
         \"block_tokens\": {step}}}], so that nothing is moved for less"
    );
    Finding::warn(detail, remedy)
}

fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}

/// Returns the number of words that make a prompt of `tokens` tokens, at `per_word` tokens a word.
fn count(tokens: u64, per_word: f64) -> u64 {
    (tokens as f64 / per_word).ceil() as u64
}

/// Tokens per word: an estimate that is used until the engine has counted a prompt.
const WORD_TOKENS: f64 = 1.5;
/// Lengths in tokens of the prompt that is sent twice; a longer one is tried if no API reuses the shorter.
const LENGTHS: [u64; 3] = [400, 2_300, 9_200];
/// Length in tokens of the shortest beginning of the prompt that is sent.
const LEAST: u64 = 24;
/// Longest allowed length in tokens of the shortest prompt that is reused; beyond it, the finding is a warning. It is
/// two blocks of 128 tokens, as vLLM has on CPUs, and some more.
const MAX_LEAST: u64 = 288;

const SERVED: &str = "name the engine itself, and with --model a model that it serves: foreword doctor http://HOST:8000 --model NAME";
const CACHING: &str = "vLLM: --enable-prefix-caching; SGLang: without --disable-radix-cache; foreword serve: without \
                       --no-enable-prefix-caching";
const REPLICAS: &str = "name one engine, not a balancer of several: requests of a pair that different replicas answer share no \
                        cache; or give the cache more room";
const REPORT: &str = "vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report; a gateway believes what it sent \
                      until answers say otherwise";
