//! The class `Replay`: replays a trace under a policy, some requests per call, so that a worker can report progress.

use crate::trace::Trace;
use crate::values::{self, refused};
use foreword_ordering::object;
use foreword_ordering::policy::{PolicyKind, PolicyOptions};
use foreword_simulation::Capacity;
use serde::Serialize;
use wasm_bindgen::prelude::*;

/// A policy in front of a simulated engine cache, and its position in a trace.
#[wasm_bindgen]
pub struct Replay {
    core: foreword_simulation::Replay,
    policy: PolicyKind,
    /// Number of requests served.
    served: usize,
}

#[wasm_bindgen]
impl Replay {
    /// Returns a replay with an empty cache and a policy without history.
    ///
    /// # Errors
    /// Throws if an option is unknown, has the wrong type or is out of its range.
    #[wasm_bindgen(constructor)]
    pub fn new(
        #[wasm_bindgen(unchecked_optional_param_type = "ReplayOptions | null")] options: &JsValue,
    ) -> Result<Self, JsValue> {
        let options: Options = values::options("options", options)?;
        let Some(policy) = PolicyKind::by_name(&options.policy) else {
            let names = PolicyKind::ALL.map(PolicyKind::name).join(", ");
            return Err(refused(format_args!(
                "options.policy: `{}` is not one of {names}",
                options.policy
            )));
        };
        if !(1..=MAX_PAGE_TOKENS).contains(&options.page_tokens) {
            return Err(refused(format_args!(
                "options.pageTokens: {} is out of range, it must be 1 to {MAX_PAGE_TOKENS}",
                options.page_tokens
            )));
        }
        let policy_options = PolicyOptions {
            seed: options.seed.into(),
            ..PolicyOptions::default()
        };
        let capacity = Capacity {
            tokens: options.cache_tokens,
            page_tokens: options.page_tokens,
        };
        Ok(Self {
            core: foreword_simulation::Replay::new(policy, &policy_options, capacity),
            policy,
            served: 0,
        })
    }

    /// Replays up to `requests` further requests of `trace`, and returns the reuse so far. The trace may have grown
    /// since the last call.
    ///
    /// # Errors
    /// Throws if `requests` is not a whole number.
    #[wasm_bindgen(unchecked_return_type = "Reuse")]
    pub fn advance(
        &mut self,
        trace: &Trace,
        #[wasm_bindgen(unchecked_param_type = "number")] requests: &JsValue,
    ) -> Result<JsValue, JsValue> {
        let requests = values::whole("requests", requests, None, (0, u32::MAX.into()))?;
        let requests = usize::try_from(requests).unwrap_or(usize::MAX);
        let end = trace.requests.requests();
        let end = end.min(self.served.saturating_add(requests));
        while self.served < end {
            for part in trace.requests.request(self.served) {
                let order = self.core.decide(&part);
                self.core.serve(&part, &order);
            }
            self.served += 1;
        }
        let reuse = self.core.reuse();
        values::plain(&Reuse {
            policy: self.policy.name(),
            requests: self.served,
            document_tokens: reuse.document_tokens,
            reused_tokens: reuse.reused_tokens,
        })
    }
}

/// Most tokens per page, more than any engine's page has.
const MAX_PAGE_TOKENS: u32 = 1 << 20;

object! {

    struct Options in "options." {
        policy: String = "foresight".into(),
        cache_tokens as "cacheTokens": Option<u64> = None,
        page_tokens as "pageTokens": u32 = 16,
        seed: u32 = 0,
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reuse {
    policy: &'static str,
    requests: usize,
    document_tokens: u64,
    reused_tokens: u64,
}
