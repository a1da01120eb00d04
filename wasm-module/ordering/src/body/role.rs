//! The role of a message's author.

/// The role of a message's author, the same for all APIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// `system` or `developer`; also the system text in a field of its own.
    System,
    /// `user`: the person or program that asks the model.
    User,
    /// `assistant`, `CHATBOT` or `model`; also the author of a call that the model makes.
    Assistant,
    /// `tool` or `function`; also the author of a search's result.
    Tool,
    /// A role that is none of `system`, `user`, `assistant` and `tool` (nor another name of one of these), or no role.
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
