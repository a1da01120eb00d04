//! The configuration of the head in a build without the feature: there is none.

use serde::Deserialize;
use serde::de::{Deserializer, Error};

/// The configuration of the head as written (`ordering.head`): in this build it has no fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawHead {}

impl<'de> Deserialize<'de> for RawHead {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("`head` is not in this build"))
    }
}

/// How a head is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadMode {
    /// The head is not looked at.
    #[default]
    Off,
    /// Changes are decided, counted and reported, but the body is sent as it came.
    Report,
    /// Changes are made.
    Apply,
}

/// The configuration of the head, checked.
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
