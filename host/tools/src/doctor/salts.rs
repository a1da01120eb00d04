//! Whether each route keeps prompts with different `cache_salt`s apart.
//!
//! The surveyed prompt, which is cached without a salt, is sent again with salt a, with b, and with a. An engine that honours the
//! field finds it for the third of these alone; one whose request model lacks it finds it every time.

use super::api::Usage;
use super::finding::{Finding, Status};
use super::survey::{Engine, Route};

/// What came of the three, or of the one that was refused.
pub(super) type Salted = Result<[Usage; 3], String>;

/// Asks a route; `None` where nothing could be told from its answers.
pub(super) fn ask(engine: &Engine<'_>, route: &Route) -> Option<Salted> {
    route.warm()?;
    let ask = |salt: &str| {
        let mut body = route.api.body(engine.model, &route.text);
        body["cache_salt"] = salt.repeat(32).into();
        route.api.ask(engine.client, engine.root, &body)
    };
    let all = || Ok([ask("a")?, ask("b")?, ask("a")?]);
    Some(all())
}

/// Whether a route honours salts.
pub(super) fn honoured(route: &Route, salted: Option<&Salted>, kept: &[&str]) -> Finding {
    let check = format!("salts/{}", route.api.name);
    let path = route.api.path;
    let (Some(warm), Some(salted)) = (route.warm(), salted) else {
        let came = match &route.pair {
            Ok(_) => "reports no reuse, so salts cannot be told apart",
            Err(_) => "does not serve prompts here",
        };
        let detail = format!("POST {path} {came}");
        return Finding::new(check, Status::Skipped, detail, "");
    };
    let [a, b, again] = match salted {
        Ok(answers) => answers,
        Err(came) => {
            let detail = format!("POST {path} with cache_salt: {came}");
            return Finding::new(check, Status::Warn, detail, remedy(kept));
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
    if a.is_cached(warm.cached_or_zero()) || b.is_cached(warm.cached_or_zero()) {
        return Finding::new(check, Status::Fail, detail, remedy(kept));
    }
    if !again.is_cached(warm.cached_or_zero()) {
        let remedy = "the engine reuses nothing of a salted prompt: salt no request of this route";
        return Finding::new(check, Status::Warn, detail, remedy);
    }
    Finding::ok(check, detail)
}

/// Returns whether the answers prove that salts are kept apart.
pub(super) fn is_kept(route: &Route, salted: Option<&Salted>) -> bool {
    honoured(route, salted, &[]).status == Status::Ok
}

/// Returns the line that has the gateway salt only the routes that keep salts.
fn remedy(kept: &[&str]) -> String {
    let kept: Vec<String> = kept.iter().map(|path| format!("{path:?}")).collect();
    format!(
        "\"engines\": [{{\"name\": \"engine\", \"salts\": [{}]}}]: the gateway then refuses tenants' requests elsewhere; vLLM \
         reads cache_salt on /v1/messages since #49498",
        kept.join(", ")
    )
}
