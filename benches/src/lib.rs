//! What the benches share.

pub mod xquad;
