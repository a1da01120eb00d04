//! The CPU backend: the project's own kernels on packed weights.
//!
//! ```text
//!  Step ─▶ batch    checks it, lists the work          model     the layers, in order
//!          pages    layout of keys and values          matrix    weights in panels, products in parallel
//!          heads, attention, rows, left_operand        kernels   the instructions
//!                                                      dense     matrix and kernels, for other models
//! ```
//!
//! Weights keep the checkpoint's type in memory, so that decode streams half the bytes of f32, or less if they are
//! packed. Sums and activations are f32; for packed weights, activations are rounded to 8 bits. For bf16 weights,
//! [`Precision`] decides once: either weights are widened in registers and everything is f32, or activations are
//! rounded to bf16 for the CPU's bf16 instructions. Attention then multiplies f32 or, with AMX, two bf16 for each
//! number, which is as exact; or, on request, one bf16, which halves KV state. Results do not depend on batch, chunks,
//! page size or number of threads, bit for bit. They do depend on the precision, and may differ in the last bits
//! between instruction sets.
//!
//! The backend owns the layout of weights and pages, the threads and the arithmetic. It does not know requests,
//! prefixes or sampling.

mod aligned;
mod attention;
mod batch;
mod dense;
mod heads;
mod host;
mod kernels;
mod left_operand;
mod matrix;
mod model;
mod pages;
mod precision;
mod rows;

pub use dense::{Dense, Workspace};
pub use precision::Precision;

use super::{Backend, BackendError, BackendShape, HostPageId, PageId, Step, Store};
use crate::models::{Checkpoint, CheckpointError};
use batch::Batch;
use host::HostPool;
use kernels::{Kernels, LANES};
use model::{Model, Scratch};
use pages::{Layout, Pool};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// Sizes and options of a CPU backend.
#[derive(Clone, Debug)]
pub struct CpuConfig {
    /// Number of KV pages in the pool that the backend computes on, at least one.
    pub pages: u32,
    /// Number of KV pages in the host pool, which nothing computes on; 0 for none.
    pub host_pages: u32,
    /// Tokens in a KV page: a multiple of 16, at most 65,536.
    pub page_tokens: u32,
    /// Number of worker threads; `None` for one per core that the system makes available.
    pub threads: Option<u32>,
    /// The number format in which bf16 and packed weights are multiplied.
    pub precision: Precision,
}

/// A backend that computes on the CPU.
pub struct CpuBackend {
    model: Model,
    pool: Pool,
    host: HostPool,
    threads: ThreadPool,
    batch: Batch,
    scratch: Scratch,
    shape: BackendShape,
    warning: Option<String>,
    identity: u128,
}

impl CpuBackend {
    /// Loads the checkpoint in `folder` and returns a backend that computes its model.
    ///
    /// # Errors
    /// Returns a [`CheckpointError`] when the checkpoint is incomplete or unsupported, or `config` is unusable.
    pub fn load(folder: &Path, config: &CpuConfig) -> Result<Self, CheckpointError> {
        let checkpoint = Checkpoint::open(folder)?;
        Self::new(&checkpoint, config).map_err(|error| match error.file.as_str() {
            "" => CheckpointError::new(folder, error.reason),
            _ => error,
        })
    }

    /// Builds a backend from `checkpoint`, which need not come from files ([`Checkpoint::random`]).
    ///
    /// # Errors
    /// Returns a [`CheckpointError`] when the checkpoint is incomplete or `config` is unusable.
    pub fn new(checkpoint: &Checkpoint, config: &CpuConfig) -> Result<Self, CheckpointError> {
        let (kernels, warning) = detect(config.precision)?;
        let mut backend = Self::build(checkpoint, config, kernels)?;
        backend.warning = warning;
        Ok(backend)
    }

    /// Returns the number of bytes of KV state in a page of `page_tokens` tokens, so that a pool can be sized before
    /// the weights are loaded.
    ///
    /// # Errors
    /// Returns a [`CheckpointError`] when the checkpoint is incomplete, or `page_tokens` or `precision` unsupported.
    pub fn page_bytes(
        checkpoint: &Checkpoint,
        page_tokens: u32,
        precision: Precision,
    ) -> Result<u64, CheckpointError> {
        let (kernels, _) = detect(precision)?;
        Ok(layout(checkpoint, page_tokens, kernels)?.page_bytes() as u64)
    }

    /// Returns the name of the instruction set in use, for logs and to tell apart the times of other instructions.
    pub fn instruction_set(&self) -> &'static str {
        if self.model.is_packed() {
            self.model.kernels().packed_name()
        } else {
            self.model.kernels().name()
        }
    }

    /// Returns whether attention uses the CPU's matrix tiles (AMX). Products with bf16 weights then use them too. They
    /// are several times as fast as vector instructions.
    pub fn multiplies_tiles(&self) -> bool {
        self.model.multiplies_tiles()
    }

    /// Returns a warning for the operator if the CPU has AMX that cannot be used: the reason. Returns `None` otherwise.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Returns a hash of everything that a KV page's bytes depend on besides its tokens: the model, the page layout,
    /// and the instructions, whose results differ in the last bits. A page written under another identity must not be
    /// loaded.
    pub fn identity(&self) -> u128 {
        self.identity
    }

    /// Returns the number of worker threads that compute steps.
    pub fn threads(&self) -> u32 {
        self.threads.current_num_threads() as u32
    }

    fn build(
        checkpoint: &Checkpoint,
        config: &CpuConfig,
        kernels: Kernels,
    ) -> Result<Self, CheckpointError> {
        let wrong = |reason: String| CheckpointError::new(Path::new(""), reason);
        let layout = layout(checkpoint, config.page_tokens, kernels)?;
        let positions = u64::from(config.pages) * u64::from(config.page_tokens);
        if config.pages == 0 || positions > u64::from(u32::MAX) {
            return Err(wrong(format!(
                "pages is {}, supported: 1 to {} pages of {} tokens",
                config.pages,
                u32::MAX / config.page_tokens,
                config.page_tokens
            )));
        }
        let model_positions = checkpoint.config().max_positions;
        for (name, pages) in [("pages", config.pages), ("host_pages", config.host_pages)] {
            let bytes = (layout.page_bytes() as u64).checked_mul(u64::from(pages));
            if bytes.is_none_or(|bytes| bytes > isize::MAX as u64 / 2) {
                return Err(wrong(format!(
                    "{name} is {pages}: they exceed the address space at {} bytes a page",
                    layout.page_bytes()
                )));
            }
        }
        if config.threads == Some(0) {
            return Err(wrong("threads is 0, supported: at least 1".into()));
        }
        let threads = match config.threads {
            Some(threads) => threads as usize,
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let threads = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|number| format!("cpu-{number}"))
            .build()
            .map_err(|error| wrong(format!("no worker threads: {error}")))?;
        let positions = (positions as u32).min(model_positions);
        let model = threads.install(|| Model::load(checkpoint, kernels, positions))?;
        let identity = format!(
            "{:032x} {PAGE_LAYOUT} {}{} {:?} {}",
            checkpoint.fingerprint(),
            kernels.name(),
            if model.is_packed() { " packed" } else { "" },
            layout.kv_type,
            config.page_tokens,
        );
        Ok(Self {
            identity: xxh3_128(identity.as_bytes()),
            shape: BackendShape {
                vocabulary: model.config().vocabulary as u32,
                max_positions: model_positions,
                page_tokens: config.page_tokens,
                pages: config.pages,
                host_pages: config.host_pages,
                page_bytes: layout.page_bytes(),
                draws: false,
            },
            pool: threads.install(|| Pool::new(layout, config.pages)),
            host: HostPool::new(layout.page_bytes(), config.host_pages),
            model,
            threads,
            batch: Batch::default(),
            scratch: Scratch::default(),
            warning: None,
        })
    }
}

/// Chooses the kernels for `precision` by the CPU's instructions, with a warning for the operator if there is one.
/// Fails if the CPU lacks the instructions that `precision` demands.
fn detect(precision: Precision) -> Result<(Kernels, Option<String>), CheckpointError> {
    Kernels::detect(precision).ok_or_else(|| {
        let reason = "precision is bf16, this CPU has neither AMX-BF16 nor AVX512-BF16";
        CheckpointError::new(Path::new(""), reason)
    })
}

/// Returns the layout of a KV page for the model of `checkpoint`; fails if `page_tokens` is not supported.
fn layout(
    checkpoint: &Checkpoint,
    page_tokens: u32,
    kernels: Kernels,
) -> Result<Layout, CheckpointError> {
    check_page_tokens(page_tokens).map_err(|reason| CheckpointError::new(Path::new(""), reason))?;
    let (_, kv_type) = model::attention_pairs(checkpoint, kernels)?;
    Ok(Layout::new(checkpoint.config(), page_tokens, kv_type))
}

/// Version of the format of host pages. Changed whenever their bytes change their meaning or their values, so that
/// pages that an earlier program stored on disk are not used.
const PAGE_LAYOUT: &str = "cpu-3";

impl Backend for CpuBackend {
    fn shape(&self) -> BackendShape {
        self.shape
    }

    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        logits.clear();
        self.batch.plan(step, &self.shape, self.model.cut())?;
        let Self {
            model,
            pool,
            host,
            batch,
            scratch,
            ..
        } = self;
        let layers = pool.layers_mut();
        if !batch.all.rows.is_empty() {
            self.threads
                .install(|| model.forward(step, batch, host, layers, scratch, logits));
        } else if !batch.loads.is_empty() {
            self.threads.install(|| {
                for layer in layers {
                    layer.load(&batch.loads, host);
                }
            });
        }
        Ok(())
    }

    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError> {
        self.shape.check_copy(from, to, tokens)?;
        self.pool.copy_slots(from, to, tokens as usize);
        Ok(())
    }

    fn store(&mut self, stores: &[Store]) -> Result<(), BackendError> {
        self.shape.check_stores(stores)?;
        for store in stores {
            self.pool.store(store.from, self.host.page_mut(store.to));
        }
        Ok(())
    }

    fn host_page(&mut self, page: HostPageId) -> Result<&[u8], BackendError> {
        self.shape.check_host_page(page)?;
        Ok(self.host.page(page))
    }

    fn host_page_mut(&mut self, page: HostPageId) -> Result<&mut [u8], BackendError> {
        self.shape.check_host_page(page)?;
        Ok(self.host.page_mut(page))
    }
}

/// Returns an error for a `page_tokens` that is not a multiple of 16 (the tokens that the key layout groups) from 16 to
/// 65,536.
fn check_page_tokens(page_tokens: u32) -> Result<(), String> {
    if page_tokens == 0 || !page_tokens.is_multiple_of(LANES as u32) || page_tokens > 1 << 16 {
        return Err(format!(
            "page_tokens is {page_tokens}, supported: multiples of {LANES} up to {}",
            1 << 16
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
