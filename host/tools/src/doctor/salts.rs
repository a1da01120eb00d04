//! The check that the engine does not share cached prompts between different `cache_salt`s, on each route.
//!
//! The surveyed prompt, which is cached without a salt, is sent again with salt a, with b, and with a. An engine that
//! honours the field finds the prompt cached only the third time; one that ignores the field, every time.

use super::api::Usage;
use super::finding::Finding;
use super::survey::{Engine, Route};

/// Token counts of a prompt sent with salt a, with b, and again with a; or the error of one of these requests.
pub(super) type Salted = Result<[Usage; 3], String>;

/// Sends the prompt that the survey sent twice to `route` three more times, with the `cache_salt` a, then b, then a;
/// `None` if the survey's second request, which has no salt, did not find at least half of the prompt cached.
pub(super) fn ask(engine: &Engine<'_>, route: &Route) -> Option<Salted> {
    route.warm()?;
    let ask = |salt| {
        let body = route.api.salted(engine.model, &route.text, salt);
        route.api.ask(engine.client, engine.root, &body)
    };
    let all = || Ok([ask("a")?, ask("b")?, ask("a")?]);
    Some(all())
}

/// Checks that the engine honours salts on a route: it does not share cached prompts between different `cache_salt`s.
/// `kept` are the paths of the routes on which it does, for the remedy.
pub(super) fn honoured(route: &Route, salted: Option<&Salted>, kept: &[&str]) -> Finding {
    let path = route.api.path;
    let (warm, [a, b, again]) = match (route.warm(), salted) {
        (Some(warm), Some(Ok(answers))) => (warm, answers),
        (Some(_), Some(Err(came))) => {
            return Finding::warn(format!("with cache_salt, {came}"), remedy(kept));
        }
        _ => {
            return Finding::unknown(format!(
                "POST {path} reports no reuse that a salt could end"
            ));
        }
    };
    let cached = [warm, a, b, again].map(Usage::shown).join(", ");
    let detail = format!(
        "POST {path}, one prompt without salt, with a, b, a: cached {cached} of {}",
        warm.prompt
    );
    let sees = |usage: &Usage| usage.is_cached(warm.cached_or_zero());
    match (sees(a) || sees(b), sees(again)) {
        (true, _) => Finding::fail(detail, remedy(kept)),
        (false, true) => Finding::ok(detail),
        (false, false) => Finding::warn(detail, UNSALTED),
    }
}

const UNSALTED: &str = "salt no request of this route: the engine reuses nothing of it";

/// Returns the configuration with which the gateway writes salts only on the routes with the paths `kept`.
fn remedy(kept: &[&str]) -> String {
    format!(
        "\"engines\": [{{\"name\": \"engine\", \"salts\": {kept:?}}}]: the gateway then refuses tenants' requests elsewhere; vLLM \
         reads cache_salt on /v1/messages since #49498"
    )
}
