//! What the tests of several modules stand on.

pub(crate) mod hostile;
