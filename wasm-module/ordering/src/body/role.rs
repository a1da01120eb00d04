//! The role of a message's speaker.

/// The role of a message's speaker, across APIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// `system`, `developer`, and the system text in a field of its own.
    System,
    /// `user`.
    User,
    /// `assistant`, `CHATBOT`, `model`; a call by the model.
    Assistant,
    /// `tool`, `function`; the result of a tool or a search.
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
