//! What a reading costs, in bytes that are looked at: counted in tests and with the feature `count-work`, and compiled to
//! nothing everywhere else.
//!
//! A body is somebody else's. Whatever its bytes are, reading it takes time in proportion to their number, and a clock
//! cannot assert that: a quadratic corner is fast on the inputs that a test can afford. So everything that looks at a
//! body's bytes goes through `body::search` or `body::scan`, which count here; the lint `disallowed_methods` refuses the
//! standard library's own searches in that module.

/// Bytes that one reading looked at.
#[cfg(any(test, feature = "count-work"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// By scanners; a byte counts each time that one passes over it.
    pub looked: u64,
    /// By hashes.
    pub hashed: u64,
}

/// Looks at each byte of a body, at most, by everything that one reading of it does.
#[cfg(any(test, feature = "count-work"))]
pub const MAX_LOOKS: u64 = 12;

/// Hashes of each byte of a body, at most.
#[cfg(any(test, feature = "count-work"))]
pub const MAX_HASHES: u64 = 6;

#[cfg(any(test, feature = "count-work"))]
impl Work {
    /// What reading of `bytes` bytes may cost: beside the bytes themselves, a few looks for the reading as such.
    ///
    /// # Errors
    /// The work, if it is more.
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

/// What `read` returns, and what it cost on this thread.
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

/// So many bytes were looked at.
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

/// So many bytes were hashed.
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
