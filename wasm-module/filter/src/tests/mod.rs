//! What the tests of several modules stand on.

pub(crate) mod quiet;
pub(crate) mod scripted;
