//! The survey: a new prompt twice on each API, then shorter beginnings of it. Three checks read it: `caching`,
//! `cached-tokens/<api>` and `least-reusable`.
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

/// What every API answered.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) routes: Vec<Route>,
    /// Beginnings of the prompt that was sent whole, the shortest first.
    beginnings: Vec<Usage>,
}

/// One API's answers.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) api: &'static Api,
    pub(super) text: String,
    /// The same prompt for the first and the second time, or what came instead.
    pub(super) pair: Result<[Usage; 2], String>,
}

/// The engine, as every probe needs it.
pub(super) struct Engine<'a> {
    pub(super) client: &'a Client,
    pub(super) root: &'a str,
    pub(super) model: &'a str,
    /// Most tokens of a prompt, where the engine says it.
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

    /// Returns the second answer's report if it found cached tokens.
    pub(super) fn warm(&self) -> Option<&Usage> {
        let [_, warm] = self.pair.as_ref().ok()?;
        Some(warm).filter(|warm| warm.cached_or_zero() > 0 && warm.is_cached(warm.prompt))
    }

    /// Returns the tokens of a word in this engine's vocabulary.
    fn tokens_per_word(&self) -> Option<f64> {
        let [first, _] = self.pair.as_ref().ok()?;
        let words = self.text.split(' ').count();
        (first.prompt > 0).then(|| first.prompt as f64 / words as f64)
    }
}

impl Survey {
    pub(super) fn take(engine: &Engine<'_>, words: &mut Words) -> Self {
        let mut survey = Self::default();
        let mut rate = None;
        for api in &APIS {
            let count = words_of(LENGTHS[0], rate);
            let route = Route::ask(engine, api, words.text(count));
            rate = rate.or_else(|| route.tokens_per_word());
            survey.routes.push(route);
        }
        let served = (survey.routes.iter()).position(|route| route.pair.is_ok());
        for length in &LENGTHS[1..] {
            let Some(first) = served.filter(|_| survey.reusing().is_none()) else {
                break;
            };
            if engine.max_tokens.is_some_and(|most| *length + 64 > most) {
                break;
            }
            let count = words_of(*length, rate);
            let longer = |api| Route::ask(engine, api, words.text(count));
            let mut longer = longer;
            let route = longer(survey.routes[first].api);
            if route.warm().is_none() {
                continue;
            }
            survey.routes[first] = route;
            let others = survey.routes.iter_mut().skip(first + 1);
            for other in others.filter(|route| route.pair.is_ok()) {
                *other = longer(other.api);
            }
        }
        survey.beginnings = survey.ask_beginnings(engine);
        survey
    }

    fn ask_beginnings(&self, engine: &Engine<'_>) -> Vec<Usage> {
        let Some((route, warm)) = self.reusing() else {
            return Vec::new();
        };
        let per_word = route.tokens_per_word().unwrap_or(1.0);
        let words: Vec<&str> = route.text.split(' ').collect();
        let lengths = (0..).map(|power| LEAST << power);
        let lengths = lengths.take_while(|length| *length < warm.prompt);
        let beginning = |length: u64| {
            let count = (length as f64 / per_word).ceil() as usize;
            let text = words.get(..count)?.join(" ");
            engine.ask(route.api, &text).ok()
        };
        lengths.filter_map(beginning).collect()
    }

    /// Returns a route that found its second prompt cached.
    pub(super) fn reusing(&self) -> Option<(&Route, &Usage)> {
        (self.routes.iter()).find_map(|route| Some((route, route.warm()?)))
    }

    pub(super) fn route(&self, api: &Api) -> Option<&Route> {
        (self.routes.iter()).find(|route| route.api.name == api.name)
    }

    /// Returns the tokens of the shortest prompt that was reused in part.
    pub(super) fn least(&self) -> Option<u64> {
        let reused = self.beginnings.iter().chain(self.reusing().map(|of| of.1));
        let reused = reused.filter(|usage| usage.cached_or_zero() > 0);
        reused.map(|usage| usage.prompt).min()
    }

    /// Returns what all counts of cached tokens are multiples of.
    fn step(&self) -> u64 {
        let counts = (self.beginnings.iter()).chain(self.reusing().map(|of| of.1));
        counts.fold(0, |step, usage| common(step, usage.cached_or_zero()))
    }
}

/// Whether the second time finds the first.
pub(super) fn caching(survey: &Survey, metrics: &Metrics) -> Finding {
    const CHECK: &str = "caching";
    if let Some((route, warm)) = survey.reusing() {
        let (name, cached) = (route.api.name, warm.shown());
        let detail = format!(
            "one {name} prompt twice: {cached} of {} tokens cached",
            warm.prompt
        );
        return Finding::ok(CHECK, detail);
    }
    let asked: Vec<_> = (survey.routes.iter())
        .filter_map(|route| Some((route.api.name, route.pair.as_ref().ok()?)))
        .collect();
    let Some((name, [_, warm])) = asked.first() else {
        let came: Vec<String> = (survey.routes.iter())
            .filter_map(|route| {
                Some(format!(
                    "{}: {}",
                    route.api.path,
                    route.pair.as_ref().err()?
                ))
            })
            .collect();
        return Finding::new(CHECK, Status::Fail, came.join("; "), SERVED);
    };
    let detail = format!(
        "one {name} prompt twice: cached tokens {} of {}",
        warm.shown(),
        warm.prompt
    );
    let said = metrics.label("vllm:cache_config_info", "enable_prefix_caching");
    match said {
        Some("True" | "true" | "1") => Finding::ok(
            CHECK,
            format!("{detail}; /metrics: enable_prefix_caching is on"),
        ),
        None if asked.iter().all(|(_, [_, warm])| warm.cached.is_none()) => Finding::new(
            CHECK,
            Status::Skipped,
            format!("{detail}, on every API: it cannot be told whether anything is reused"),
            REPORT,
        ),
        _ => Finding::new(CHECK, Status::Fail, detail, CACHING),
    }
}

/// Whether an API reports what was reused.
pub(super) fn cached_tokens(route: &Route, survey: &Survey, caching: Status) -> Finding {
    let check = format!("cached-tokens/{}", route.api.name);
    let path = route.api.path;
    let [_, warm] = match &route.pair {
        Ok(pair) => pair,
        Err(came) => {
            let detail = format!("POST {path}: {came}");
            return Finding::new(check, Status::Skipped, detail, "");
        }
    };
    let detail = format!(
        "POST {path}, one prompt twice: cached tokens {} of {}",
        warm.shown(),
        warm.prompt
    );
    match (warm.cached, survey.reusing()) {
        (Some(_), None) => Finding::ok(check, detail),
        (Some(_), Some(_)) if route.warm().is_some() => Finding::ok(check, detail),
        (None, None) if caching == Status::Fail => {
            let detail = format!("{detail}; nothing is cached that could be reported");
            Finding::new(check, Status::Skipped, detail, "")
        }
        (_, Some((other, cached))) => {
            let other = other.api.name;
            let detail = format!(
                "{detail}; {other} says {} of {}",
                cached.shown(),
                cached.prompt
            );
            Finding::new(check, Status::Fail, detail, REPORT)
        }
        (None, None) => Finding::new(check, Status::Fail, detail, REPORT),
    }
}

/// How short a prompt may be and still be reused.
pub(super) fn least_reusable(survey: &Survey, metrics: &Metrics) -> Finding {
    const CHECK: &str = "least-reusable";
    let (Some((route, _)), Some(least)) = (survey.reusing(), survey.least()) else {
        let detail = "no prompt was reported as reused";
        return Finding::new(CHECK, Status::Skipped, detail, "");
    };
    let counts: Vec<String> = (survey.beginnings.iter())
        .map(|usage| format!("{} of {}", usage.cached_or_zero(), usage.prompt))
        .collect();
    let block = metrics.label("vllm:cache_config_info", "block_size");
    let block = block.map_or_else(String::new, |block| {
        format!(", block_size {block} (/metrics)")
    });
    let detail = format!(
        "beginnings of one {} prompt: cached {}; reused from {least} tokens on, in multiples of {}{block}",
        route.api.name,
        counts.join(", "),
        survey.step(),
    );
    if least <= MAX_LEAST {
        return Finding::ok(CHECK, detail);
    }
    let remedy = format!(
        "engine: a smaller --block-size (vLLM) or --page-size (SGLang); gateway: \"engines\": [{{\"name\": \"a\", \
         \"block_tokens\": {}}}], so that nothing is moved for less",
        survey.step()
    );
    Finding::new(CHECK, Status::Warn, detail, remedy)
}

fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}

/// Returns the words of a prompt of `tokens` tokens; at first as if a word were one and a half.
fn words_of(tokens: u64, per_word: Option<f64>) -> u64 {
    (tokens as f64 / per_word.unwrap_or(1.5)).ceil() as u64
}

/// Tokens of the prompt that is sent twice.
const LENGTHS: [u64; 3] = [400, 2_300, 9_200];
/// Tokens of its shortest beginning.
const LEAST: u64 = 24;
/// Longest least reusable length that is usual: two blocks of 128 tokens, as vLLM has on CPUs.
const MAX_LEAST: u64 = 288;

const SERVED: &str = "name the engine itself, and with --model a model that it serves: foreword doctor http://HOST:8000 --model NAME";
const CACHING: &str = "vLLM: --enable-prefix-caching; SGLang: without --disable-radix-cache; foreword serve: without \
                       --no-enable-prefix-caching";
const REPORT: &str = "vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report; a gateway believes what it sent \
                      until answers say otherwise";
