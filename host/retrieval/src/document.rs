//! What is kept and found: the document.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A piece of text that is found as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Its name in the collection.
    pub id: String,
    /// What it is headed with; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// What it says.
    pub text: String,
    /// What it can be filtered by.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl Document {
    /// What its vector and its words are taken from.
    pub(crate) fn searched_text(&self) -> String {
        format!("{}\n{}", self.title, self.text)
    }
}
