//! Finds fields of a body with which a client could name KV state, a session or a transfer in the engine and so bypass
//! the gateway's salt.
//!
//! The fields come from vLLM's and SGLang's request models (`entrypoints/openai/*/protocol.py` of vllm 0.32 and of
//! sglang's main branch): transfers between engines, sessions, cache keys, ranks that hold a cache, ids of a transfer
//! or a stored response, and objects whose fields an engine or a router reads as the body's own.

use crate::body::scan::Scan;

/// Returns the name or pattern of the first field of a JSON body through which a client could reach KV state of others
/// in the engine (see `CACHE_FIELDS`). `None` if there is none or the body is not a JSON object. A `null` field counts
/// as absent.
#[must_use]
pub fn cache_field(body: &[u8]) -> Option<&'static str> {
    let mut scan = Scan::new(str::from_utf8(body).ok()?);
    let mut found = None;
    let read = scan.object(|scan, name| {
        let field = CACHE_FIELDS
            .iter()
            .find(|field| match field.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => **field == name,
            });
        if scan.value()? != "null" {
            found = found.or(field.copied());
        }
        Ok(())
    });
    read.ok().and(found)
}

/// The names of the fields that [`cache_field`] reports; `*` at the end matches any suffix.
const CACHE_FIELDS: [&str; 13] = [
    "bootstrap_*",
    "data_parallel_rank",
    "disagg_*",
    "ec_transfer_*",
    "extra_body",
    "extra_key",
    "kv_*",
    "nvext",
    "request_id",
    "rid",
    "routed_dp_rank",
    "session_*",
    "vllm_xargs",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_names_kv_state_is_found_however_it_is_written() {
        for (body, field) in [
            (
                r#"{"kv_transfer_params": {"do_remote_prefill": true}}"#,
                Some("kv_*"),
            ),
            (r#"{"a": 1, "k\u0076_transfer_params": {}}"#, Some("kv_*")),
            (r#" {"bootstrap_room": 7}"#, Some("bootstrap_*")),
            (r#"{"session_params": {"id": "a"}}"#, Some("session_*")),
            (
                r#"{"vllm_xargs": {"kv_transfer_params": 1}}"#,
                Some("vllm_xargs"),
            ),
            (r#"{"rid": "a", "extra_key": "b"}"#, Some("rid")),
            (r#"{"session_id": null, "kv_transfer_params": null}"#, None),
            (
                r#"{"messages": [{"kv_transfer_params": 1}], "ridge": 1}"#,
                None,
            ),
            (
                r#"{"cache_salt": "a", "prompt_cache_key": "b", "user": "c"}"#,
                None,
            ),
            (r#"{"kv_transfer_params": 1"#, None),
            ("[]", None),
        ] {
            assert_eq!(cache_field(body.as_bytes()), field, "{body}");
        }
    }
}
