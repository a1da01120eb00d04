//! Who computes what next.
