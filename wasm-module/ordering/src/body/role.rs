//! The role of a message's author.

/// The role of a message's author, across APIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// `system`, `developer`, and the system text in a field of its own.
    System,
    /// `user`.
    User,
    /// `assistant`, `CHATBOT`, `model`; also for a call that the model makes.
    Assistant,
    /// `tool`, `function`; also for the result of a search.
    Tool,
    /// Any other role, or none.
    #[default]
    Other,
}

impl Role {
    pub(super) fn of(role: &str) -> Self {
        match role {
            "system" | "developer" => Self::System,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" | "function" => Self::Tool,
            _ => Self::Other,
        }
    }
}
