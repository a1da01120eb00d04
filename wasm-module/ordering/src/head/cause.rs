//! The reasons why a prompt does not share a longer prefix with an earlier one, for reports and metrics.

crate::named! {
    /// The reason why a prompt does not share a longer prefix with an earlier one. JSON and metrics use these names.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Cause {
        /// There is no miss: the prompts are equal up to the part that is new in this request, such as the new
        /// question.
        #[default]
        None = "none",
        /// No recent request has a significant part of its prompt in common with this one.
        FirstSeen = "first-seen",
        /// This request and the earlier one have the same tools by name, in different orders.
        ToolOrder = "tool-order",
        /// This request has a tool, by name, that the earlier one lacks, or lacks one that the earlier one has.
        ToolSet = "tool-set",
        /// A tool has another description or other parameters in this request than in the earlier one.
        ToolSchema = "tool-schema",
        /// A tool's definition is the same as in the earlier request, except for the order of its JSON keys or of the
        /// elements of an array whose order has no meaning (such as `required`). Or a sentence of the system text has
        /// the same words as in the earlier request, in another order.
        KeyOrder = "key-order",
        /// The system text differs from the earlier request's, in more than a volatile value (such as a date or an id).
        SystemText = "system-text",
        /// A clock, an id, a number or a name differs from the earlier request's; the rest of the text is the same.
        VolatileValue = "volatile-value",
        /// This prompt differs from the earlier one only in white space.
        Whitespace = "whitespace",
        /// An earlier message of the chat was changed since the earlier request, or a message was inserted before it.
        HistoryEdited = "history-edited",
        /// This request lacks messages of the chat that the earlier request had, because the client keeps a sliding
        /// window of messages or wrote a summary in their place.
        HistoryDropped = "history-dropped",
        /// A user message of the chat had contexts (retrieved documents) in the earlier request, and has none, or other
        /// ones, in this one. Or the documents in the system text differ between two turns of a chat.
        ContextMoved = "context-moved",
        /// A system message between the chat's messages differs from the earlier request's. Some chat templates render
        /// such messages before all others, so everything after them moves.
        HoistedSystem = "hoisted-system",
        /// The request has another set of documents than the earlier one.
        DocumentSet = "document-set",
        /// The request has the same documents as the earlier one, in another order.
        DocumentOrder = "document-order",
        /// A document has another score, rank, id or wording in its block (the document with its tags) than in the
        /// earlier request.
        DocumentText = "document-text",
        /// The question differs from the earlier request's and precedes the documents, so these are not reused.
        QuestionFirst = "question-first",
        /// The prompt is the same as an earlier one, but has another `cache_salt` or tenant, which share no KV state.
        TenantSalt = "tenant-salt",
        /// The prompt is the same as an earlier one, but the request went to another engine.
        OtherEngine = "other-engine",
        /// The prompt is the same as an earlier one, but the request is for another model.
        ModelChanged = "model-changed",
        /// A field of the body that a chat template renders into the prompt, or that makes an engine use another cache,
        /// differs from the earlier request's.
        Parameters = "parameters",
        /// The engine had evicted tokens that this prompt shares with an earlier one from its cache, and computed them
        /// again.
        Evicted = "evicted",
        /// The prefix shared with an earlier prompt is shorter than a page, the unit of the engine's cache.
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
        /// A person's name, a location, or another short value that is neither a date, an id nor a number.
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
