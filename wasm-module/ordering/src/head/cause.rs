//! The reasons why a prompt does not share a longer prefix with an earlier one, for reports and metrics.

crate::named! {
    /// The reason why a prompt does not share a longer prefix with an earlier one. JSON and metrics use these names.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Cause {
        /// There is no miss: nothing differs before the part that is new in this request, such as the new question.
        #[default]
        None = "none",
        /// No recent request has a significant part of its prompt in common with this one.
        FirstSeen = "first-seen",
        /// The tools are the same, in another order.
        ToolOrder = "tool-order",
        /// The set of tools differs.
        ToolSet = "tool-set",
        /// A tool of the same name has another description or parameters.
        ToolSchema = "tool-schema",
        /// The keys of a JSON object, or the elements of an array whose order has no meaning (such as `required` in a
        /// tool), are in another order.
        KeyOrder = "key-order",
        /// The system text differs, in more than a volatile value (such as a date or an id).
        SystemText = "system-text",
        /// A clock, an id, a number or a name differs between requests that are otherwise alike.
        VolatileValue = "volatile-value",
        /// Only white space differs.
        Whitespace = "whitespace",
        /// An earlier message of the chat was changed, or a message was inserted before it.
        HistoryEdited = "history-edited",
        /// Earlier messages of the chat are missing, because of a sliding window or a summary in their place.
        HistoryDropped = "history-dropped",
        /// Contexts (retrieved documents) that were sent with one turn are missing, or replaced, when the chat
        /// continues.
        ContextMoved = "context-moved",
        /// A system message between the chat's messages differs, and the chat template renders it before all of them.
        HoistedSystem = "hoisted-system",
        /// Another set of documents was retrieved.
        DocumentSet = "document-set",
        /// The documents are the same, in another order.
        DocumentOrder = "document-order",
        /// A document has another score, rank, id or wording in its block (the document with its tags).
        DocumentText = "document-text",
        /// The question differs and precedes the documents.
        QuestionFirst = "question-first",
        /// The prompt is the same, with another `cache_salt` or tenant, which share no KV state.
        TenantSalt = "tenant-salt",
        /// The prompt is the same, but the request went to another engine.
        OtherEngine = "other-engine",
        /// The prompt is the same, but the request is for another model.
        ModelChanged = "model-changed",
        /// A field of the body differs that a chat template renders into the prompt, or that makes an engine use
        /// another cache.
        Parameters = "parameters",
        /// The engine evicted tokens of an earlier prompt from its cache, and computed them again.
        Evicted = "evicted",
        /// The shared prefix is shorter than a page, the unit of the engine's cache.
        BelowPage = "below-page",
        /// The prompt was not diagnosed, because it has more tools, documents and texts than the gateway compares.
        Unread = "unread",
    }
}

impl Cause {
    /// Returns whether there is no miss to report: [`Cause::None`] or [`Cause::FirstSeen`].
    #[must_use]
    pub fn is_none(self) -> bool {
        matches!(self, Self::None | Self::FirstSeen)
    }
}

crate::named! {
    /// The kind of a volatile value, one that changes between requests that are otherwise alike.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Volatile {
        /// A date or a time of day.
        DateTime = "date-time",
        /// A random or counted id: a UUID, hexadecimal digits, `session-…`.
        Id = "id",
        /// A number that is neither a date, a time nor an id.
        Number = "number",
        /// A person's name, a location or another short value.
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
