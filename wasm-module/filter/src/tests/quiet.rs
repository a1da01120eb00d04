//! Panics that a model is expected to end with, without a word.
//!
//! A modelled thread has a small stack. A backtrace that is printed there overflows it, and the locks of the printing thread,
//! which all tests share, stay locked for ever.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `model`, whose panic the test expects and says nothing of.
pub(crate) fn quietly(model: impl FnOnce()) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                loud(info);
            }
        }));
    });
    struct Quiet;
    impl Drop for Quiet {
        fn drop(&mut self) {
            IS_QUIET.set(false);
        }
    }
    IS_QUIET.set(true);
    let _quiet = Quiet;
    model();
}
