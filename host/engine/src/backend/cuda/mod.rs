//! The CUDA backend: our kernels and NVIDIA's matrix products, on a device that is found at run time.
//!
//! ```text
//!  Step ─▶ check     as for every backend           kernels     one safe function per kernel of `kernels/*.cu`
//!          plan      the step as words and items    device      what is asked of a device: memory, launches, queues
//!          forward   the layers, in order           driver      a real one: CUDA's driver, cuBLASLt
//!          weights, pools   what stands on it
//! ```
//!
//! Weights, activations and the KV state are bf16; sums, norms, the softmax and the residual stream are f32. Everything but
//! matrix products of more than four rows is ours, so that the same sources can be run by an emulator where there is no
//! device, and are, in tests.
//!
//! **What is promised less than on the CPU.** Logits do not depend on their companions in a step, nor on how a prefix was
//! cut, but for rounding: the library chooses another kernel for another number of rows, and attention is cut finer where
//! a step has little of it. Bits may differ where the CPU's do not.

#![expect(
    unsafe_code,
    reason = "memory of a device has addresses, and kernels are given them: `device` names them, `kernels` checks them"
)]

mod ceilings;
mod device;
mod driver;
mod forward;
mod kernels;
mod plan;
mod pools;
#[cfg(test)]
mod tests;
mod weights;

pub use ceilings::{Ceilings, ceilings};
pub use driver::unavailable;

use super::check::{Limits, Owners};
use super::{Backend, BackendError, HostPageId, PageId, Step, Store, TokenId};
use crate::models::{Checkpoint, CheckpointError, ModelConfig};
use crate::sampling::SamplingError;
use device::{Device, Fault, Queue};
use driver::Driver;
use forward::{Pass, Scratch};
use kernels::{Heads, MAX_HEAD, PREFILL_ROWS};
use plan::{Capacity, Plan, decode_results};
use pools::Pools;
use std::path::Path;
use weights::Model;
use xxhash_rust::xxh3::xxh3_128;

/// Sizes of a CUDA backend.
#[derive(Clone, Debug)]
pub struct CudaConfig {
    /// Which device, as CUDA counts them.
    pub ordinal: u32,
    /// Pages in the pool.
    pub pages: PoolSize,
    /// Pages in pinned memory, which nothing is computed on: 0 for none.
    pub host_pages: u32,
    /// Tokens in a page: a power of two from 16 to 256.
    pub page_tokens: u32,
    /// Tokens of a step at most.
    pub max_step_tokens: u32,
}

/// How the pool is sized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PoolSize {
    /// As many pages.
    Pages(u32),
    /// As many as fit into this part of the memory that weights and scratch leave, above 0 and below 1.
    Fraction(f32),
}

/// Why there is no CUDA backend.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no CUDA, or no such device.
    #[error("{0}")]
    Unavailable(String),
    /// The checkpoint, or what was asked for.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device: too little memory, say.
    #[error("device: {0}")]
    Device(String),
}

impl From<Fault> for CudaError {
    fn from(fault: Fault) -> Self {
        Self::Device(fault.to_string())
    }
}

impl From<Fault> for BackendError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(reason) => Self::Device(reason),
            Fault::Lost(reason) => Self::Lost(reason),
        }
    }
}

/// How far loading is: bytes on the device, of how many.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Computes on a device.
pub struct CudaBackend {
    model: Model,
    pools: Pools,
    scratch: Scratch,
    plan: Plan,
    owners: Owners,
    writes: Vec<super::check::Write>,
    limits: Limits,
    capacity: Capacity,
    max_step_tokens: u32,
    /// What the last step chose.
    drawn: Vec<Result<TokenId, SamplingError>>,
    identity: u128,
    /// Last, so that what stands on it goes first.
    device: Box<dyn Device>,
}

impl CudaBackend {
    /// Opens a device and puts the weights of `checkpoint` on it.
    ///
    /// # Errors
    /// [`CudaError`] when CUDA or the device is missing, the checkpoint is incomplete or not supported, or memory is short.
    pub fn new(
        checkpoint: &Checkpoint,
        config: &CudaConfig,
        progress: Progress<'_>,
    ) -> Result<Self, CudaError> {
        check(checkpoint.config(), config)?;
        let device = Driver::open(config.ordinal)?;
        Self::build(checkpoint, config, Box::new(device), progress)
    }

    /// Bytes of KV state in a page, for sizing a pool before loading.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn page_bytes_of(folder: &Path, page_tokens: u32) -> Result<u64, CheckpointError> {
        let model = ModelConfig::load(folder)?;
        Ok((heads(&model, page_tokens).page() * model.layers * 2) as u64)
    }

    /// The device's name and architecture, for logs and to tell apart states that were computed otherwise.
    pub fn device_name(&self) -> &str {
        self.device.name()
    }

    /// As of the CPU backend: of all that a page's bytes depend on beside its tokens.
    pub fn identity(&self) -> u128 {
        self.identity
    }

    fn build(
        checkpoint: &Checkpoint,
        config: &CudaConfig,
        mut device: Box<dyn Device>,
        progress: Progress<'_>,
    ) -> Result<Self, CudaError> {
        check(checkpoint.config(), config)?;
        let heads = heads(checkpoint.config(), config.page_tokens);
        let decode_rows = DECODE_ROWS.min(config.max_step_tokens as usize);
        let capacity = Capacity {
            decode_rows,
            results: decode_results(decode_rows, &heads),
            blocks: device.processors() as usize,
        };
        let mut model = Model::load(&mut *device, checkpoint, heads, progress)?;
        let scratch = Scratch::new(
            &mut *device,
            &model,
            &capacity,
            config.max_step_tokens as usize,
        )?;
        let layers = checkpoint.config().layers;
        let pages = match config.pages {
            PoolSize::Pages(pages) => pages,
            PoolSize::Fraction(fraction) => {
                let bytes = device.free_bytes()? as f64 * f64::from(fraction);
                let page = (heads.page() * layers * 2) as f64;
                // The table of positions, as long as the model's positions, comes after.
                (bytes / page).min(f64::from(u32::MAX / config.page_tokens)) as u32
            }
        };
        if pages == 0 {
            return Err(CudaError::Device(
                "there is no memory left for a single page".to_owned(),
            ));
        }
        let pools = Pools::new(&mut *device, heads, layers, pages, config.host_pages)?;
        let max_positions = checkpoint.config().max_positions;
        let positions =
            (u64::from(pages) * u64::from(config.page_tokens)).min(max_positions.into());
        model.tabulate(&mut *device, checkpoint.config(), positions as u32)?;
        let identity = format!(
            "{:032x} {PAGE_LAYOUT} {} {} {}",
            checkpoint.fingerprint(),
            device.name(),
            config.page_tokens,
            pools.page_bytes()
        );
        device.wait(Queue::Compute)?;
        Ok(Self {
            model,
            scratch,
            plan: Plan::default(),
            owners: Owners::default(),
            writes: Vec::new(),
            limits: Limits {
                vocabulary: checkpoint.config().vocabulary as u32,
                max_positions,
                page_tokens: config.page_tokens,
                pages,
                host_pages: config.host_pages,
                draws: true,
            },
            capacity,
            max_step_tokens: config.max_step_tokens,
            drawn: Vec::new(),
            identity: xxh3_128(identity.as_bytes()),
            pools,
            device,
        })
    }
}

/// Rows of one token that decode in one step, at most; more attend as prompts do.
const DECODE_ROWS: usize = 256;

/// Changed whenever the bytes of a host page mean something else or come out differently.
const PAGE_LAYOUT: &str = "cuda-1";

fn heads(model: &ModelConfig, page_tokens: u32) -> Heads {
    Heads {
        heads: model.heads,
        kv_heads: model.kv_heads,
        head_dim: model.head_dim,
        page_tokens: page_tokens as usize,
    }
}

/// Whether kernels and buffers can be made for this.
fn check(model: &ModelConfig, config: &CudaConfig) -> Result<(), CheckpointError> {
    let wrong = |reason: String| Err(CheckpointError::new(Path::new(""), reason));
    let CudaConfig {
        page_tokens,
        max_step_tokens,
        ..
    } = *config;
    if !page_tokens.is_power_of_two() || !(16..=256).contains(&page_tokens) {
        return wrong(format!(
            "page_tokens is {page_tokens}, supported on CUDA: 16, 32, 64, 128, 256"
        ));
    }
    if max_step_tokens == 0 || max_step_tokens > 1 << 16 {
        return wrong(format!(
            "max_step_tokens is {max_step_tokens}, supported: 1 to 65536"
        ));
    }
    let most = u32::MAX / page_tokens;
    match config.pages {
        PoolSize::Pages(pages) if !(1..=most).contains(&pages) => {
            return wrong(format!(
                "pages is {pages}, supported: 1 to {most} pages of {page_tokens} tokens"
            ));
        }
        PoolSize::Fraction(part) if !(part > 0.0 && part < 1.0) => {
            return wrong(format!(
                "the pool's part of the memory is {part}, supported: above 0 and below 1"
            ));
        }
        PoolSize::Pages(_) | PoolSize::Fraction(_) => {}
    }
    if !model.head_dim.is_multiple_of(8) || model.head_dim > MAX_HEAD {
        return wrong(format!(
            "head_dim is {}, supported on CUDA: multiples of 8 up to {MAX_HEAD}",
            model.head_dim
        ));
    }
    if model.group() > PREFILL_ROWS {
        return wrong(format!(
            "{} query heads share a key and value head, supported on CUDA: up to {PREFILL_ROWS}",
            model.group()
        ));
    }
    for (name, value) in [
        ("hidden_size", model.hidden),
        ("intermediate_size", model.intermediate),
    ] {
        if !value.is_multiple_of(8) {
            return wrong(format!(
                "{name} is {value}, supported on CUDA: multiples of 8"
            ));
        }
    }
    Ok(())
}

impl Backend for CudaBackend {
    fn vocabulary(&self) -> u32 {
        self.limits.vocabulary
    }

    fn max_positions(&self) -> u32 {
        self.limits.max_positions
    }

    fn page_tokens(&self) -> u32 {
        self.limits.page_tokens
    }

    fn pages(&self) -> u32 {
        self.limits.pages
    }

    fn host_pages(&self) -> u32 {
        self.limits.host_pages
    }

    fn page_bytes(&self) -> usize {
        self.pools.page_bytes()
    }

    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        logits.clear();
        self.drawn.clear();
        let device = &mut *self.device;
        self.limits.check_loads(step, self.pools.loads())?;
        self.limits
            .check_segments(step, &mut self.owners, &mut self.writes)?;
        let tokens: usize = step
            .segments
            .iter()
            .map(|segment| segment.tokens.len())
            .sum();
        if tokens > self.max_step_tokens as usize {
            return Err(BackendError::Malformed(format!(
                "the step has {tokens} tokens, this backend was made for {}",
                self.max_step_tokens
            )));
        }
        self.pools.begin_step(device)?;
        if tokens == 0 {
            self.pools.load_all(device)?;
            return Ok(());
        }
        let pad = device.can_record() && step.loads.is_empty();
        self.plan
            .make(step, self.model.heads(), &self.capacity, pad);
        let mut pass = Pass {
            device,
            model: &self.model,
            pools: &mut self.pools,
            plan: &self.plan,
        };
        self.scratch.compute(&mut pass, logits, &mut self.drawn)?;
        Ok(())
    }

    fn draws(&self) -> bool {
        true
    }

    fn drawn(&mut self) -> Vec<Result<TokenId, SamplingError>> {
        std::mem::take(&mut self.drawn)
    }

    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError> {
        self.limits.check_copy(from, to, tokens)?;
        self.pools
            .copy_slots(&mut *self.device, from, to, tokens as usize)?;
        Ok(())
    }

    fn store(&mut self, stores: &[Store]) -> Result<(), BackendError> {
        self.limits.check_stores(stores)?;
        self.pools.store(&mut *self.device, stores)?;
        Ok(())
    }

    fn host_page(&mut self, page: HostPageId) -> Result<&[u8], BackendError> {
        self.host_page_mut(page).map(|bytes| &*bytes)
    }

    fn host_page_mut(&mut self, page: HostPageId) -> Result<&mut [u8], BackendError> {
        self.limits.check_host_page(page)?;
        Ok(self.pools.host_page(&mut *self.device, page)?)
    }
}
