//! A clock for a filter's configuration, since Envoy has no timer for it.
//!
//! ```text
//!   thread ── at intervals ──▶ scheduler ──▶ main thread's queue ──▶ `config_scheduled` ──▶ Plugin::on_tick
//!      ▲
//!      └─ request that needs a tick soon
//! ```
//!
//! In Envoy 1.40 a configuration can make HTTP calls and schedule events on the main thread, but only bootstrap
//! extensions and clusters have timers. So a thread waits for the next tick. It accesses neither the plugin nor a
//! request. When Envoy destroys the configuration, it stops and joins the thread.
#![allow(
    unsafe_code,
    reason = "Envoy's scheduler is a pointer that any thread may use"
)]

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use foreword_filter::Plugin;

use crate::abi;

/// A thread that schedules a configuration's ticks until this is dropped.
pub(crate) struct Clock {
    signals: SyncSender<Signal>,
    thread: Option<JoinHandle<()>>,
}

/// A message to the thread.
enum Signal {
    /// A tick is needed before the next one is due.
    Wake,
    /// Envoy destroys the configuration, so the thread must end.
    Stop,
}

impl Clock {
    /// Starts a thread that schedules the `config_scheduled` hook at this interval. `None` if the thread cannot be
    /// started.
    ///
    /// # Safety
    /// `config` must be the running hook's.
    pub(crate) unsafe fn start(
        config: abi::HttpFilterConfigEnvoyPtr,
        interval: Duration,
    ) -> Option<Self> {
        // SAFETY: by the contract.
        let scheduler =
            unsafe { abi::envoy_dynamic_module_callback_http_filter_config_scheduler_new(config) };
        let scheduler = Scheduler(scheduler);
        // Bounded: if the channel is full, a tick is due anyway.
        let (signals, received) = sync_channel(4);
        let wait = move || {
            let mut next = Instant::now() + interval;
            loop {
                let left = next.saturating_duration_since(Instant::now());
                match received.recv_timeout(left) {
                    Err(RecvTimeoutError::Timeout) => next = Instant::now() + interval,
                    // The tick is delayed a little, so that it serves later requests for one too.
                    Ok(Signal::Wake) => thread::sleep(Plugin::WAKE_DELAY),
                    Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                }
                scheduler.commit();
            }
        };
        let thread = thread::Builder::new().name("foreword-clock".to_owned());
        Some(Self {
            thread: Some(thread.spawn(wait).ok()?),
            signals,
        })
    }

    /// Returns a function that requests a tick. It may be called from any thread, and may outlive the clock.
    pub(crate) fn waker(&self) -> impl Fn() + Send + Sync + use<> {
        let signals = self.signals.clone();
        move || {
            // An error means that the thread, and so the configuration, has ended.
            let _ = signals.try_send(Signal::Wake);
        }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let _ = self.signals.send(Signal::Stop);
        if let Some(thread) = self.thread.take() {
            // An error would be the thread's panic, and it does not panic.
            let _ = thread.join();
        }
    }
}

/// Envoy's scheduler, owned by the thread that uses it.
struct Scheduler(abi::ConfigSchedulerPtr);

// SAFETY: any thread may post an event to the main thread's queue; Envoy drops the event if the configuration has been
// destroyed by then.
unsafe impl Send for Scheduler {}

impl Scheduler {
    fn commit(&self) {
        // SAFETY: the pointer is deleted when this is dropped, not before.
        unsafe {
            abi::envoy_dynamic_module_callback_http_filter_config_scheduler_commit(self.0, 0);
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // SAFETY: from `scheduler_new`, and dropped once.
        unsafe {
            abi::envoy_dynamic_module_callback_http_filter_config_scheduler_delete(self.0);
        }
    }
}
