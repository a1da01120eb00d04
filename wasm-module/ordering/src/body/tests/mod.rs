//! Fixtures that the tests of several modules share.

pub(crate) mod hostile;
