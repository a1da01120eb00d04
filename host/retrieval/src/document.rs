//! The document: the unit that is stored and found.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A text with an id: the unit that a search returns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Identifies the document in its collection.
    pub id: String,
    /// Heading of the text; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The text itself.
    pub text: String,
    /// Fields that searches can filter by.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl Document {
    /// Returns the text that the vector and the words are computed from.
    pub(crate) fn searched_text(&self) -> String {
        format!("{}\n{}", self.title, self.text)
    }
}
