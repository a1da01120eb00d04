//! The check that each route keeps prompts with different `cache_salt`s apart.
//!
//! The surveyed prompt, which is cached without a salt, is sent again with salt a, with b, and with a. An engine that honours the
//! field finds it for the third of these alone; one whose request model lacks it finds it every time.

use super::api::Usage;
use super::finding::Finding;
use super::survey::{Engine, Route};

/// The counts of the three requests, or the error of one that was refused.
pub(super) type Salted = Result<[Usage; 3], String>;

/// Asks a route; `None` if it reports no reuse, which a salt could end.
pub(super) fn ask(engine: &Engine<'_>, route: &Route) -> Option<Salted> {
    route.warm()?;
    let ask = |salt| {
        let body = route.api.salted(engine.model, &route.text, salt);
        route.api.ask(engine.client, engine.root, &body)
    };
    let all = || Ok([ask("a")?, ask("b")?, ask("a")?]);
    Some(all())
}

/// Checks that a route honours salts. `kept` are the paths of the routes that do.
pub(super) fn honoured(route: &Route, salted: Option<&Salted>, kept: &[&str]) -> Finding {
    let path = route.api.path;
    let (warm, [a, b, again]) = match (route.warm(), salted) {
        (Some(warm), Some(Ok(answers))) => (warm, answers),
        (Some(_), Some(Err(came))) => {
            return Finding::warn(format!("with cache_salt, {came}"), remedy(kept));
        }
        _ => {
            return Finding::skipped(
                format!("POST {path} reports no reuse that a salt could end"),
                "",
            );
        }
    };
    let detail = format!(
        "POST {path}, one prompt without salt, with a, b, a: cached {}, {}, {}, {} of {}",
        warm.shown(),
        a.shown(),
        b.shown(),
        again.shown(),
        warm.prompt,
    );
    let sees = |usage: &Usage| usage.is_cached(warm.cached_or_zero());
    match (sees(a) || sees(b), sees(again)) {
        (true, _) => Finding::fail(detail, remedy(kept)),
        (false, true) => Finding::ok(detail),
        (false, false) => Finding::warn(
            detail,
            "salt no request of this route: the engine reuses nothing of it",
        ),
    }
}

/// Returns the line that has the gateway salt only the routes that keep salts.
fn remedy(kept: &[&str]) -> String {
    format!(
        "\"engines\": [{{\"name\": \"engine\", \"salts\": {kept:?}}}]: the gateway then refuses tenants' requests elsewhere; vLLM \
         reads cache_salt on /v1/messages since #49498"
    )
}
