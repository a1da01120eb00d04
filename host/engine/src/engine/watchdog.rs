//! The watchdog: notices that a step is stuck or a device is lost for good, and continues on another device.
//!
//! ```text
//!   engine's thread    prepare ▶ park core ▶ step …………… stuck …………………………▶ finds no core, ends
//!   watchdog                                   ▲ takes the core
//!                                              └▶ a fresh device ▶ requests are queued again ▶ a fresh thread
//!
//!   engine's thread    … step ▶ lost ▶ step ▶ lost again ▶ drops its device, gives up the core, ends
//! ```
//!
//! A device that CUDA has lost is lost to the whole process: only a new process, started after the engine has ended,
//! can use it again. Waiting requests are kept. Running requests are treated as after any loss of the device
//! (`core/faults.rs`), and those in the stuck step get one more fault. Without a fresh device every request fails at
//! once, and the engine has [ended](super::Health::Ended).

use super::Failure;
use super::core::Core;
use super::worker::{self, Shared};
use crate::backend::Backend;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// A function that returns a replacement device with the same dimensions, or a message that says why there is none. A
/// stuck device still has its memory when this is called.
pub type BackendFactory = Box<dyn FnMut() -> Result<Box<dyn Backend>, String> + Send>;

/// Maximum number of replacement devices in a row without a computed step between them; at the next failure the engine
/// ends. Every stuck device still holds memory.
const MAX_RESTARTS: u32 = 3;

/// Starts the watchdog's thread, which replaces a device that was given up. A step counts as stuck after `patience`,
/// never for `None`. If the thread cannot start, the engine ends.
pub(super) fn start(
    shared: &Arc<Shared>,
    patience: Option<Duration>,
    factory: Option<BackendFactory>,
) {
    let watchdog = Watchdog {
        shared: shared.clone(),
        patience,
        factory,
        restarts: 0,
        steps: 0,
    };
    let thread = std::thread::Builder::new()
        .name("engine watchdog".to_owned())
        .spawn(move || watchdog.run());
    if let Err(error) = thread {
        shared.end(&format!(
            "no thread could be started to watch the engine: {error}"
        ));
    }
}

struct Watchdog {
    shared: Arc<Shared>,
    patience: Option<Duration>,
    factory: Option<BackendFactory>,
    /// Number of replacement devices since the last computed step.
    restarts: u32,
    /// Number of computed steps ([`Stats::steps`](super::Stats::steps)) when the last replacement was made.
    steps: u64,
}

impl Watchdog {
    fn run(mut self) {
        while let Some((mut core, failure)) = self.shared.take_given_up(self.patience) {
            match self.fresh_device(&mut core, &failure) {
                Ok(backend) => {
                    self.shared.publish(&mut core);
                    worker::start(&self.shared, core, backend);
                }
                Err(reason) => {
                    core.enqueue(self.shared.close());
                    core.fail_all(&failure);
                    self.shared.publish(&mut core);
                    self.shared.end(&format!("{failure}; {reason}"));
                }
            }
        }
    }

    fn fresh_device(
        &mut self,
        core: &mut Core,
        failure: &Failure,
    ) -> Result<Box<dyn Backend>, String> {
        let steps = core.stats().steps;
        if std::mem::replace(&mut self.steps, steps) != steps {
            self.restarts = 0;
        }
        self.restarts += 1;
        if self.restarts > MAX_RESTARTS {
            return Err(format!("{MAX_RESTARTS} replacement devices failed too"));
        }
        let Some(factory) = &mut self.factory else {
            return Err("there is no other device".to_owned());
        };
        let backend = catch_unwind(AssertUnwindSafe(factory))
            .unwrap_or_else(|_| Err("making a replacement device panicked".to_owned()))?;
        core.replace_device(&*backend, failure)?;
        Ok(backend)
    }
}
