//! Code shared by the tests of several modules.

pub(crate) mod fake;
