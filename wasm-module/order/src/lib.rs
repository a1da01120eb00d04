//! A learned order of documents as a WebAssembly module, for hosts that give each request a fresh instance.
//!
//! ```text
//!   foreword compile-order ──table──▶ [room] ──▶ reordered ──▶ body, or none: pass it as it came
//!                                                    ▲
//!        wasm32-unknown-unknown: component  ─────────┤    middleware of smg and vllm-router
//!        wasm32-wasip1:          proxy      ─────────┘    a proxy-wasm filter
//! ```
//!
//! The module is built once, with an empty room. `foreword compile-order` writes a table into that room as data, so making
//! a module of a log takes no compiler. What a body means and what becomes of it is decided by `foreword-ordering`
//! alone. The module keeps nothing from one request to the next, reads no clock, and asks its host for nothing.

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
mod component;
#[cfg(target_os = "wasi")]
mod proxy;
mod room;

use foreword_ordering::order_table::OrderTable;
use foreword_ordering::{Config, rewrite_stateless};

/// Returns the body with its documents in the order of the module's table; `None`: it is sent as it came, since it has
/// nothing to order, is no chat, or the module has no table.
#[must_use]
pub fn reordered(body: &[u8]) -> Option<Vec<u8>> {
    reordered_by(room::bytes(), body)
}

/// Returns the same as [`reordered`] under the table in `room`.
fn reordered_by(room: &[u8], body: &[u8]) -> Option<Vec<u8>> {
    let mut table = OrderTable::read(room).ok()?;
    let config = Config::from_json(table.settings()).ok()?;
    rewrite_stateless(&config, &mut table, body).ok()?.body
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::document::Fingerprint;
    use foreword_ordering::order_table::Identity;

    const BODY: &str = r#"{"messages":[{"role":"user","content":"<document id=\"a\">x</document><document id=\"b\">y</document>?"}]}"#;

    fn room(settings: &str) -> Vec<u8> {
        let documents = ["b", "a"].map(|id| Identity::Id.key(id, Fingerprint(0)));
        OrderTable::encode(Identity::Id, &documents, settings.as_bytes()).unwrap()
    }

    #[test]
    fn a_body_is_ordered_under_the_tables_settings() {
        let body = |settings: &str| {
            let body = reordered_by(&room(settings), BODY.as_bytes()).unwrap();
            String::from_utf8(body).unwrap()
        };
        let plain = body(r#"{"hint":{"enabled":false}}"#);
        let expected = BODY
            .replace(r#"\"a\">x"#, "1")
            .replace(r#"\"b\">y"#, r#"\"a\">x"#);
        assert_eq!(plain, expected.replacen('1', r#"\"b\">y"#, 1));
        assert!(body("").contains("a>b"));
    }

    #[test]
    fn without_a_table_or_anything_to_order_a_body_passes() {
        assert_eq!(reordered(BODY.as_bytes()), None);
        for body in [&b"{}"[..], b"", b"\xff", br#"{"messages":[]}"#] {
            assert_eq!(reordered_by(&room(""), body), None);
        }
        assert_eq!(reordered_by(&room("{"), BODY.as_bytes()), None);
    }
}
