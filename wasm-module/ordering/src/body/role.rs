//! Who speaks in a message.

/// Who speaks in a message, whatever the API calls them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// `system`, `developer`, and the system text that a body holds beside its messages.
    System,
    /// `user`.
    User,
    /// `assistant`, `CHATBOT`, `model`; a call that the model made.
    Assistant,
    /// `tool`, `function`; what a tool or a search gave.
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
