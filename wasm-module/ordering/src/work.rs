//! Counts the bytes that a parser looks at, in tests and with the feature `count-work`. Elsewhere it does nothing.
//!
//! A body comes from a client. Whatever its bytes, parsing it must take time proportional to their number. Measured
//! times cannot prove that, since a quadratic case is fast on inputs that a test can afford. So all code that looks at
//! a body's bytes uses `body::search` or `body::scan`, which count here; the lint `disallowed_methods` forbids the
//! standard library's own searches in that module.

/// Numbers of bytes of a body that parsing has looked at and hashed.
#[cfg(any(test, feature = "count-work"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of bytes looked at by scanners and searches; a byte counts each time one of them passes over it.
    pub looked: u64,
    /// Number of bytes hashed; a byte counts each time.
    pub hashed: u64,
}

/// The maximum average number of times that each byte of a body is looked at, by all steps of parsing together.
#[cfg(any(test, feature = "count-work"))]
pub const MAX_LOOKS: u64 = 12;

/// The maximum average number of times that each byte of a body is hashed, by all steps of parsing together.
#[cfg(any(test, feature = "count-work"))]
pub const MAX_HASHES: u64 = 6;

#[cfg(any(test, feature = "count-work"))]
impl Work {
    /// Checks that the bytes looked at and hashed while parsing a body of `bytes` bytes are within [`MAX_LOOKS`] and
    /// [`MAX_HASHES`] times that number; a small constant is allowed in addition.
    ///
    /// # Errors
    /// Returns these counts if they exceed the bounds.
    pub fn within(self, bytes: usize) -> Result<(), Self> {
        const ONCE: u64 = 64;
        let bytes = bytes as u64;
        if self.looked <= MAX_LOOKS * bytes + ONCE && self.hashed <= MAX_HASHES * bytes + ONCE {
            Ok(())
        } else {
            Err(self)
        }
    }
}

#[cfg(any(test, feature = "count-work"))]
thread_local! {
    static SO_FAR: std::cell::Cell<Work> = const { std::cell::Cell::new(Work { looked: 0, hashed: 0 }) };
}

/// Returns the result of `read`, and the numbers of bytes that it looked at and hashed on this thread.
#[cfg(any(test, feature = "count-work"))]
pub fn counted<T>(read: impl FnOnce() -> T) -> (T, Work) {
    let before = SO_FAR.get();
    let value = read();
    let after = SO_FAR.get();
    let work = Work {
        looked: after.looked - before.looked,
        hashed: after.hashed - before.hashed,
    };
    (value, work)
}

/// Adds `bytes` to the number of bytes looked at on this thread.
#[inline(always)]
pub(crate) fn looked(bytes: usize) {
    #[cfg(any(test, feature = "count-work"))]
    SO_FAR.set(Work {
        looked: SO_FAR.get().looked + bytes as u64,
        ..SO_FAR.get()
    });
    #[cfg(not(any(test, feature = "count-work")))]
    let _ = bytes;
}

/// Adds `bytes` to the number of bytes hashed on this thread.
#[inline(always)]
pub(crate) fn hashed(bytes: usize) {
    #[cfg(any(test, feature = "count-work"))]
    SO_FAR.set(Work {
        hashed: SO_FAR.get().hashed + bytes as u64,
        ..SO_FAR.get()
    });
    #[cfg(not(any(test, feature = "count-work")))]
    let _ = bytes;
}
