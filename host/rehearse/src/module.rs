//! A compiled module, and the clock for its callbacks' time limits.

use crate::calls;
use crate::limits::Limits;
use crate::state::State;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use wasmtime::{Config, Engine, InstancePre, Linker};

/// The reason for which a module cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The file cannot be read.
    #[error("cannot read it")]
    Read(#[from] std::io::Error),
    /// The file is not valid WebAssembly.
    #[error("it is no WebAssembly module: {0}")]
    Wasm(String),
    /// The module does not export the marker of a supported ABI version.
    #[error(
        "it does not say that it is written for proxy-wasm ABI 0.2.0 or 0.2.1; it says {found}"
    )]
    Abi {
        /// The ABI versions that the module exports, or `nothing`.
        found: String,
    },
    /// The module imports functions that the proxy does not have.
    #[error("it cannot be linked: {0}")]
    Link(String),
}

/// A proxy-wasm module, compiled for this machine.
pub struct Module {
    pub(crate) engine: Engine,
    pub(crate) instance: InstancePre<State>,
    pub(crate) limits: Limits,
    _ticker: Ticker,
}

impl Module {
    /// Reads and compiles a `.wasm` file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or as [`Module::compile`] does.
    pub fn read(file: &Path, limits: Limits) -> Result<Self, ModuleError> {
        Self::compile(&std::fs::read(file)?, limits)
    }

    /// Compiles a module's bytes.
    ///
    /// # Errors
    /// Returns an error if the bytes are not valid WebAssembly, or the module has another ABI or unknown imports.
    pub fn compile(bytes: &[u8], limits: Limits) -> Result<Self, ModuleError> {
        let mut config = Config::new();
        config.consume_fuel(true).epoch_interruption(true);
        let engine = Engine::new(&config).map_err(|error| ModuleError::Wasm(error.to_string()))?;
        let module = wasmtime::Module::new(&engine, bytes)
            .map_err(|error| ModuleError::Wasm(format!("{error:#}")))?;
        let versions: Vec<&str> = (module.exports())
            .map(|export| export.name())
            .filter(|name| name.starts_with("proxy_abi_version_"))
            .collect();
        if !versions.iter().any(|version| VERSIONS.contains(version)) {
            let found = match &*versions {
                [] => "nothing".to_owned(),
                versions => versions.join(", "),
            };
            return Err(ModuleError::Abi { found });
        }
        let linked = || {
            let mut linker = Linker::new(&engine);
            calls::define(&mut linker)?;
            linker.instantiate_pre(&module)
        };
        let instance = linked().map_err(|error| ModuleError::Link(format!("{error:#}")))?;
        let ticker = Ticker::start(engine.clone());
        Ok(Self {
            engine,
            instance,
            limits,
            _ticker: ticker,
        })
    }

    /// Returns the time limit of a callback in ticks of the engine's epoch, plus one for the tick in progress.
    pub(crate) fn deadline_ticks(&self) -> u64 {
        let ticks = self.limits.deadline.as_millis().div_ceil(TICK.as_millis());
        u64::try_from(ticks).unwrap_or(u64::MAX).saturating_add(1)
    }
}

const VERSIONS: [&str; 2] = ["proxy_abi_version_0_2_0", "proxy_abi_version_0_2_1"];
const TICK: Duration = Duration::from_millis(50);

/// A thread that advances wasmtime's epoch at every tick, until this is dropped.
struct Ticker {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    fn start(engine: Engine) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                thread::park_timeout(TICK);
                engine.increment_epoch();
            }
        });
        Self {
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread cannot panic.
            let _ = thread.join();
        }
    }
}
