//! The causes for which a prompt shares no longer prefix with an earlier one, as named in reports, metrics and tables.

crate::named! {
    /// The cause of a miss. Names are public: they are used in JSON, in metrics and in the documentation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Cause {
        /// Nothing differs before the new part.
        #[default]
        None = "none",
        /// No earlier request shares anything significant.
        FirstSeen = "first-seen",
        /// The same tools in another order.
        ToolOrder = "tool-order",
        /// Another set of tools.
        ToolSet = "tool-set",
        /// A tool of the same name has another description or parameters.
        ToolSchema = "tool-schema",
        /// The same object with its keys, or a set's elements, in another order.
        KeyOrder = "key-order",
        /// The system text has other words.
        SystemText = "system-text",
        /// A clock, an id, a number or a name that differs between requests which are otherwise alike.
        VolatileValue = "volatile-value",
        /// Only white space differs.
        Whitespace = "whitespace",
        /// An earlier message was changed, or another one was put before it.
        HistoryEdited = "history-edited",
        /// Earlier messages are missing: a sliding window, or a summary in their place.
        HistoryDropped = "history-dropped",
        /// Contexts that were sent with one turn are missing, or replaced, when the chat continues.
        ContextMoved = "context-moved",
        /// A system message inside the history, which a template renders before it.
        HoistedSystem = "hoisted-system",
        /// Other documents were retrieved.
        DocumentSet = "document-set",
        /// The same documents in another order.
        DocumentOrder = "document-order",
        /// The same document with another score, rank, id or wording inside its block.
        DocumentText = "document-text",
        /// The question precedes the documents.
        QuestionFirst = "question-first",
        /// The same prompt under another `cache_salt` or tenant.
        TenantSalt = "tenant-salt",
        /// The same prompt on another engine.
        OtherEngine = "other-engine",
        /// The same prompt for another model.
        ModelChanged = "model-changed",
        /// A field that a chat template renders, or by which an engine separates caches.
        Parameters = "parameters",
        /// The engine evicted tokens that an earlier prompt held, and computed them again.
        Evicted = "evicted",
        /// The shared prefix is shorter than a page of the engine's cache.
        BelowPage = "below-page",
        /// The prompt has more segments than are compared.
        Unread = "unread",
    }
}

impl Cause {
    /// Returns whether the request broke no prefix: [`Cause::None`] or [`Cause::FirstSeen`].
    #[must_use]
    pub fn is_none(self) -> bool {
        matches!(self, Self::None | Self::FirstSeen)
    }
}

crate::named! {
    /// The kind of a volatile value.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Volatile {
        /// A date or a time.
        DateTime = "date-time",
        /// A random or counted id: a UUID, hexadecimal digits, `session-…`.
        Id = "id",
        /// A number that is neither a date, a time nor an id.
        Number = "number",
        /// A name, a place or another short value.
        Value = "value",
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
