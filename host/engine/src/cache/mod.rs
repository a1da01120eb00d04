//! Which pages hold which prefix.
