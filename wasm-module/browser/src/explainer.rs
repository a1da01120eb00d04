//! The class `Explainer`: why a prompt does not begin like an earlier one, as `foreword explain` reports for a log.

use crate::values::{self, refused};
use foreword_ordering::Config;
use foreword_ordering::head::{Diagnosis, Index, Limits, SegmentKind, Volatile};
use serde::Serialize;
use wasm_bindgen::prelude::*;

/// An index of recent requests. It keeps no texts.
#[wasm_bindgen]
pub struct Explainer {
    core: Index,
    config: Config,
}

#[wasm_bindgen]
impl Explainer {
    /// Returns an explainer that has seen no requests. `config` is the gateway's `ordering`. A shared beginning shorter
    /// than `page_tokens` (16 by default) does not count as reusable.
    ///
    /// # Errors
    /// Throws if `config` has an unknown field, or a value is out of its range.
    #[wasm_bindgen(constructor)]
    pub fn new(
        #[wasm_bindgen(unchecked_optional_param_type = "Config | null")] config: &JsValue,
        #[wasm_bindgen(
            js_name = pageTokens,
            unchecked_optional_param_type = "number | null"
        )]
        page_tokens: &JsValue,
    ) -> Result<Self, JsValue> {
        let config = values::config(config)?;
        let default = Limits::LOG.page_tokens.into();
        let range = (1, MAX_PAGE_TOKENS);
        let page_tokens = values::whole("pageTokens", page_tokens, Some(default), range)?;
        let limits = Limits {
            page_tokens: u32::try_from(page_tokens).unwrap_or(Limits::LOG.page_tokens),
            ..Limits::LOG
        };
        Ok(Self {
            core: Index::new(limits),
            config,
        })
    }

    /// Compares the prompt of an OpenAI chat body with those of earlier calls, and records it.
    ///
    /// # Errors
    /// Throws if the body cannot be read; the message gives the reason.
    #[wasm_bindgen(unchecked_return_type = "Diagnosis")]
    pub fn explain(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "string")] body: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "string | null")] tenant: &JsValue,
    ) -> Result<JsValue, JsValue> {
        let body = values::text("body", body)?;
        let tenant = values::tenant(tenant)?;
        let explained = (self.core).explain_body(body.as_bytes(), &self.config, &tenant, "");
        values::plain(&Explained::from(explained.map_err(refused)?))
    }
}

/// Most tokens per page, more than any engine's page has.
const MAX_PAGE_TOKENS: u64 = 1 << 20;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Explained {
    request: u64,
    earlier: Option<u64>,
    cause: &'static str,
    volatile: Option<&'static str>,
    segment: Option<&'static str>,
    name: String,
    index: u32,
    offset: u32,
    shape: String,
    prompt_tokens: u64,
    shared_tokens: u64,
    reused_tokens: u64,
    lost_tokens: u64,
}

impl From<Diagnosis> for Explained {
    fn from(diagnosis: Diagnosis) -> Self {
        let broke = !diagnosis.cause.is_none();
        Self {
            request: diagnosis.request,
            earlier: diagnosis.earlier,
            cause: diagnosis.cause.name(),
            volatile: diagnosis.volatile.map(Volatile::name),
            segment: diagnosis.segment.filter(|_| broke).map(SegmentKind::name),
            name: diagnosis.name,
            index: diagnosis.index,
            offset: diagnosis.offset,
            shape: diagnosis.shape,
            prompt_tokens: diagnosis.prompt_tokens,
            shared_tokens: diagnosis.shared_tokens,
            reused_tokens: diagnosis.reused_tokens,
            lost_tokens: diagnosis.lost_tokens,
        }
    }
}
