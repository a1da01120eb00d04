//! Runs models whose panic is expected, without printing it.
//!
//! A modelled thread has a small stack. Printing a backtrace there overflows it, and the locks of the printing thread,
//! which all tests share, stay locked.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `model` without printing its panic, which the test expects.
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
