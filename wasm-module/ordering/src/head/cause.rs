//! The causes for which a prompt shares no longer prefix with an earlier one, as named in reports, metrics and tables.

/// The cause of a miss. Names are public: they are used in JSON, in metrics and in the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// Nothing differs before the new part.
    None,
    /// No earlier request shares anything significant.
    FirstSeen,
    /// The same tools in another order.
    ToolOrder,
    /// Another set of tools.
    ToolSet,
    /// A tool of the same name has another description or parameters.
    ToolSchema,
    /// The same object with its keys, or a set's elements, in another order.
    KeyOrder,
    /// The system text has other words.
    SystemText,
    /// A clock, an id, a number or a name that differs between requests which are otherwise alike.
    VolatileValue,
    /// Only white space differs.
    Whitespace,
    /// An earlier message was changed, or another one was put before it.
    HistoryEdited,
    /// Earlier messages are missing: a sliding window, or a summary in their place.
    HistoryDropped,
    /// Contexts that were sent with one turn are missing, or replaced, when the chat continues.
    ContextMoved,
    /// A system message inside the history, which a template renders before it.
    HoistedSystem,
    /// Other documents were retrieved.
    DocumentSet,
    /// The same documents in another order.
    DocumentOrder,
    /// The same document with another score, rank, id or wording inside its block.
    DocumentText,
    /// The question precedes the documents.
    QuestionFirst,
    /// The same prompt under another `cache_salt` or tenant.
    TenantSalt,
    /// The same prompt on another engine.
    OtherEngine,
    /// The same prompt for another model.
    ModelChanged,
    /// A field that a chat template renders, or by which an engine separates caches.
    Parameters,
    /// The engine evicted tokens that an earlier prompt held, and computed them again.
    Evicted,
    /// The shared prefix is shorter than a page of the engine's cache.
    BelowPage,
    /// The prompt has more segments than are compared.
    Unread,
}

impl Cause {
    /// All causes, in the order of their declaration.
    pub const ALL: [Self; 24] = [
        Self::None,
        Self::FirstSeen,
        Self::ToolOrder,
        Self::ToolSet,
        Self::ToolSchema,
        Self::KeyOrder,
        Self::SystemText,
        Self::VolatileValue,
        Self::Whitespace,
        Self::HistoryEdited,
        Self::HistoryDropped,
        Self::ContextMoved,
        Self::HoistedSystem,
        Self::DocumentSet,
        Self::DocumentOrder,
        Self::DocumentText,
        Self::QuestionFirst,
        Self::TenantSalt,
        Self::OtherEngine,
        Self::ModelChanged,
        Self::Parameters,
        Self::Evicted,
        Self::BelowPage,
        Self::Unread,
    ];

    /// Returns the name in kebab case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::FirstSeen => "first-seen",
            Self::ToolOrder => "tool-order",
            Self::ToolSet => "tool-set",
            Self::ToolSchema => "tool-schema",
            Self::KeyOrder => "key-order",
            Self::SystemText => "system-text",
            Self::VolatileValue => "volatile-value",
            Self::Whitespace => "whitespace",
            Self::HistoryEdited => "history-edited",
            Self::HistoryDropped => "history-dropped",
            Self::ContextMoved => "context-moved",
            Self::HoistedSystem => "hoisted-system",
            Self::DocumentSet => "document-set",
            Self::DocumentOrder => "document-order",
            Self::DocumentText => "document-text",
            Self::QuestionFirst => "question-first",
            Self::TenantSalt => "tenant-salt",
            Self::OtherEngine => "other-engine",
            Self::ModelChanged => "model-changed",
            Self::Parameters => "parameters",
            Self::Evicted => "evicted",
            Self::BelowPage => "below-page",
            Self::Unread => "unread",
        }
    }

    /// Returns whether the request broke no prefix: [`Cause::None`] or [`Cause::FirstSeen`].
    #[must_use]
    pub fn is_none(self) -> bool {
        matches!(self, Self::None | Self::FirstSeen)
    }
}

/// The kind of a volatile value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Volatile {
    /// A date or a time.
    DateTime,
    /// A random or counted id: a UUID, hexadecimal digits, `session-…`.
    Id,
    /// A number that is neither a date, a time nor an id.
    Number,
    /// A name, a place or another short value.
    Value,
}

impl Volatile {
    /// Returns the name in kebab case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DateTime => "date-time",
            Self::Id => "id",
            Self::Number => "number",
            Self::Value => "value",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_name_of_its_own_in_the_order_of_the_list() {
        let mut names: Vec<_> = Cause::ALL.iter().map(|cause| cause.name()).collect();
        assert!(Cause::ALL.is_sorted());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::ALL.len());
    }
}
