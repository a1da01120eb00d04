//! The configuration of the head in a build without it: there is none.

use serde::Deserialize;
use serde::de::{Deserializer, Error};

/// What is done with the head, as written (`ordering.head`): nothing can be, in this build.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawHead {}

impl<'de> Deserialize<'de> for RawHead {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("`head` is not in this build"))
    }
}

/// Whether the head is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadMode {
    /// Nothing is looked at.
    #[default]
    Off,
    /// What would be done is decided, counted and told; the body goes as it came.
    Report,
    /// It is done.
    Apply,
}

/// What is done with the head, checked.
#[derive(Clone, Debug)]
pub struct Head;

impl Head {
    #[allow(clippy::unnecessary_wraps, reason = "its twin may fail")]
    pub(crate) fn new(_: &RawHead) -> Result<Self, (&'static str, String)> {
        Ok(Self)
    }

    #[allow(clippy::unused_self, reason = "its twin uses it")]
    pub(crate) fn keeps_contexts(&self) -> bool {
        false
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> HeadMode {
        HeadMode::Off
    }
}
