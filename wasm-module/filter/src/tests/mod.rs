//! What the tests of several modules stand on.

/// Returns a plugin's configuration in which every document may stand anywhere, unless `json` says otherwise: most tests
/// are not about ranks.
pub(crate) fn placed_freely(json: &str) -> String {
    let mut config: serde_json::Value =
        serde_json::from_str(if json.is_empty() { "{}" } else { json }).unwrap();
    let ordering = &mut config["ordering"];
    if ordering.get("rank").is_none() {
        ordering["rank"] = serde_json::json!({"place": "free"});
    }
    config.to_string()
}

pub(crate) mod quiet;
pub(crate) mod scripted;
