//! Fixtures that the tests of several modules share.

/// Returns a plugin's configuration without favoured documents, unless `json` has a `rank`: most tests are not about ranks.
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
