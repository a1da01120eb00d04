//! The core in JavaScript: the npm package `foreword-browser`, made by `cargo xtask browser`.
//!
//! ```text
//!   JavaScript ──▶ values ──▶ Orderer      bodies or documents in, the same in a better order out
//!                    │   ├──▶ Trace        a log, read line by line
//!                    │   ├──▶ Replay       a trace under a policy: what would be reused
//!                    │   └──▶ SimilarityCache, embed
//!                    ▼
//!                  Error, TypeError, RangeError: what was given, what is allowed
//! ```
//!
//! This crate decides nothing. A class holds a value of `foreword-ordering`; a method reads its arguments (`values`),
//! calls the core, and returns the result as plain objects. The hand-written `types.d.ts` describes these objects, and
//! the package's tests compare it with real results.
//!
//! A panic would abort the module, so arguments have any JavaScript type and are checked here, not in the generated
//! glue. Objects are passed as JSON: a getter that throws in the middle of a call would leave the called object locked.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod explainer;
mod head;
mod orderer;
mod replay;
mod similarity;
mod trace;
mod values;

pub use explainer::Explainer;
pub use orderer::Orderer;
pub use replay::Replay;
pub use similarity::{SimilarityCache, embed};
pub use trace::Trace;

use foreword_ordering::policy::PolicyKind;
use wasm_bindgen::prelude::*;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = include_str!("types.d.ts");

/// Replaces std's allocator, which would make the package 3 KB larger.
#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ALLOCATOR: talc::wasm::WasmDynamicTalc = talc::wasm::new_wasm_dynamic_allocator();

/// Returns the policies' names, in the order used in tables.
///
/// # Errors
/// Throws only on a fault of the package itself.
#[wasm_bindgen(unchecked_return_type = "Policy[]")]
pub fn policies() -> Result<JsValue, JsValue> {
    values::plain(&PolicyKind::ALL.map(PolicyKind::name))
}

/// Returns the version of the package.
#[wasm_bindgen]
#[must_use]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").into()
}
