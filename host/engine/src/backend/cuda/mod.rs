//! The CUDA backend: the project's kernels and NVIDIA's matrix products, on a device that is located at run time.
//!
//! ```text
//!  Step ─▶ check     as for every backend           kernels     one safe function per kernel of `kernels/*.cu`
//!          plan      the step as words and items    device      the interface to a device: memory, launches, queues
//!          forward   the layers, in order           driver      a real one: CUDA's driver, cuBLASLt
//!          weights, pools   the content of its memory
//! ```
//!
//! Weights, activations and the KV state are bf16. With [`CudaPrecision::Fp8`], layers' matrices and the rows that they
//! multiply are FP8 where the checkpoint's matrices are. Sums, norms, the softmax and the residual stream are f32.
//! Everything except matrix products of more than four rows is the project's own code, so an emulator can run the same
//! sources where there is no device, and does so in tests.
//!
//! **Weaker guarantees than on the CPU.** Logits depend on the other segments of a step, and on how a prefix was cut,
//! through rounding only: the library chooses a different kernel for a different number of rows, and attention is split
//! more finely where a step has little of it. So bits may differ where the CPU's do not.

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
pub use driver::{Unavailable, unavailable};

use super::check::Owners;
use super::{Backend, BackendError, BackendShape, HostPageId, PageId, Step, Store, TokenId};
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

/// Sizes and options of a CUDA backend.
#[derive(Clone, Debug)]
pub struct CudaConfig {
    /// Index of the device, as CUDA counts devices on this machine.
    pub ordinal: u32,
    /// Size of the pool of KV pages that the device computes on.
    pub pages: PoolSize,
    /// Number of KV pages in pinned host memory, on which nothing computes; 0 for none.
    pub host_pages: u32,
    /// Tokens in a KV page: a power of two from 16 to 256.
    pub page_tokens: u32,
    /// Maximum number of tokens in a step, over all its segments.
    pub max_step_tokens: u32,
    /// Number format of matrix products.
    pub precision: CudaPrecision,
}

/// The number format in which matrices are kept and multiplied on a CUDA device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CudaPrecision {
    /// bf16; matrices in FP8 are widened.
    #[default]
    Bf16,
    /// FP8 (E4M3) for a layer's matrices that the checkpoint has in FP8 with a scale for each row or for the matrix;
    /// the rows that they multiply are quantised to FP8. Other matrices are bf16. Needs compute capability 9.0 and cuBLASLt 12.9.
    Fp8,
}

/// The size of the pool of KV pages in the device's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PoolSize {
    /// Exactly this number of KV pages.
    Pages(u32),
    /// As many pages as fit into this fraction, above 0 and below 1, of the memory that weights and scratch buffers
    /// leave free.
    Fraction(f32),
}

/// The reason that a CUDA backend cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// CUDA is not installed, there is no such device, or it lacks the precision; contains what was found and what is
    /// needed.
    #[error("{0}")]
    Unavailable(String),
    /// The checkpoint or the configuration cannot be used by this backend.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device failed, for instance for lack of memory; contains its message.
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

/// A callback that reports progress of loading: bytes of weights on the device so far, and bytes in total. Numbers in FP8
/// count as two bytes.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A backend that computes on a CUDA device.
pub struct CudaBackend {
    model: Model,
    pools: Pools,
    scratch: Scratch,
    plan: Plan,
    owners: Owners,
    writes: Vec<super::check::Write>,
    shape: BackendShape,
    capacity: Capacity,
    max_step_tokens: u32,
    /// Results of the last step's segments that wanted a token: the token that the device sampled, or an error.
    drawn: Vec<Result<TokenId, SamplingError>>,
    /// Number of consecutive steps, up to the last one, that the device refused.
    refused: u32,
    identity: u128,
    /// The last field, so that the device is dropped after everything in its memory.
    device: Box<dyn Device>,
}

/// Returns the reason why the CUDA backend does not support this kind of model; `None` if it supports the kind.
pub fn refuses(model: &ModelConfig) -> Option<&'static str> {
    let reason = "Gemma 3 is computed on the CPU only, its sliding windows have no kernels";
    model.sliding.is_some().then_some(reason)
}

impl CudaBackend {
    /// Opens a device and loads the weights of `checkpoint` onto it.
    ///
    /// # Errors
    /// Returns a [`CudaError`] when CUDA or the device is missing, the checkpoint is incomplete or unsupported, or
    /// memory is short.
    pub fn new(
        checkpoint: &Checkpoint,
        config: &CudaConfig,
        progress: Progress<'_>,
    ) -> Result<Self, CudaError> {
        check(checkpoint.config(), config)?;
        let device = Driver::open(config.ordinal)?;
        Self::build(checkpoint, config, Box::new(device), progress)
    }

    /// Returns the number of bytes of KV state in a page of `page_tokens` tokens, so that a pool can be sized before
    /// the weights are loaded.
    ///
    /// # Errors
    /// Returns a [`CheckpointError`] when the model's configuration cannot be loaded.
    pub fn page_bytes_of(folder: &Path, page_tokens: u32) -> Result<u64, CheckpointError> {
        let model = ModelConfig::load(folder)?;
        Ok((heads(&model, page_tokens).page() * model.layers * 2) as u64)
    }

    /// Returns the device's name and compute capability, for logs and to tell apart the KV state of different devices.
    pub fn device_name(&self) -> &str {
        self.device.name()
    }

    /// Returns a hash of everything that a KV page's bytes depend on besides its tokens: model, device, precision, page
    /// layout and page size. A page written under another identity must not be loaded.
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
        if config.precision == CudaPrecision::Fp8 {
            let c = checkpoint.config();
            let [inputs, outputs] = [c.hidden, 2 * c.intermediate].map(|n| n.next_multiple_of(16));
            if let Some(reason) = device.refuses_fp8(inputs, outputs)? {
                let reason = format!("products in FP8 are not available: {reason}");
                return Err(CudaError::Unavailable(reason));
            }
        }
        let mut model = Model::load(&mut *device, checkpoint, heads, config.precision, progress)?;
        if config.precision == CudaPrecision::Fp8 && !model.has_fp8() {
            let reason = "precision is FP8, and no matrix of the checkpoint can be multiplied in it: needed is FP8 (E4M3) \
                          with a scale for each row or for the matrix, and sizes divisible by 16";
            return Err(CheckpointError::new(Path::new(""), reason).into());
        }
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
                // The table of positions, at most as long as the model's positions, is allocated after the pool.
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
            "{:032x} {PAGE_LAYOUT} {} {} {}{}",
            checkpoint.fingerprint(),
            device.name(),
            config.page_tokens,
            pools.page_bytes(),
            match config.precision {
                CudaPrecision::Bf16 => "",
                CudaPrecision::Fp8 => " fp8",
            }
        );
        device.wait(Queue::Compute)?;
        Ok(Self {
            model,
            scratch,
            plan: Plan::default(),
            owners: Owners::default(),
            writes: Vec::new(),
            shape: BackendShape {
                vocabulary: checkpoint.config().vocabulary as u32,
                max_positions,
                page_tokens: config.page_tokens,
                pages,
                host_pages: config.host_pages,
                page_bytes: pools.page_bytes(),
                draws: true,
            },
            capacity,
            max_step_tokens: config.max_step_tokens,
            drawn: Vec::new(),
            refused: 0,
            identity: xxh3_128(identity.as_bytes()),
            pools,
            device,
        })
    }

    /// Runs a step as [`Backend::run`] does, but without counting refused steps.
    fn compute(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        logits.clear();
        self.drawn.clear();
        let device = &mut *self.device;
        self.shape.check_loads(step, self.pools.loads())?;
        self.shape
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
}

/// Number of consecutive refused steps at which a device counts as lost ([`BackendError::Lost`]), so that the engine
/// replaces it.
const MAX_REFUSED: u32 = 5;

/// Maximum number of tokens of a step whose attention the decode kernel computes (sequences that need one token); the
/// prefill kernel computes the attention of all others.
const DECODE_ROWS: usize = 256;

/// Version of the format of host pages. Changed whenever their bytes change their meaning or their values, so that
/// pages that an earlier program stored on disk are not used.
const PAGE_LAYOUT: &str = "cuda-1";

fn heads(model: &ModelConfig, page_tokens: u32) -> Heads {
    Heads {
        heads: model.heads,
        kv_heads: model.kv_heads,
        head_dim: model.head_dim,
        page_tokens: page_tokens as usize,
    }
}

/// Returns an error if the kernels or buffers do not support this model or this configuration.
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
    if let Some(reason) = refuses(model) {
        return wrong(reason.to_owned());
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
    fn shape(&self) -> BackendShape {
        self.shape
    }

    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        let result = self.compute(step, logits);
        match result {
            Ok(()) => self.refused = 0,
            Err(BackendError::Device(reason)) => {
                self.refused += 1;
                return Err(if self.refused < MAX_REFUSED {
                    BackendError::Device(reason)
                } else {
                    let steps = self.refused;
                    BackendError::Lost(format!("it refused {steps} steps in a row: {reason}"))
                });
            }
            Err(_) => {}
        }
        result
    }

    fn drawn(&mut self) -> Vec<Result<TokenId, SamplingError>> {
        std::mem::take(&mut self.drawn)
    }

    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError> {
        self.shape.check_copy(from, to, tokens)?;
        self.pools
            .copy_slots(&mut *self.device, from, to, tokens as usize)?;
        Ok(())
    }

    fn store(&mut self, stores: &[Store]) -> Result<(), BackendError> {
        self.shape.check_stores(stores)?;
        self.pools.store(&mut *self.device, stores)?;
        Ok(())
    }

    fn host_page(&mut self, page: HostPageId) -> Result<&[u8], BackendError> {
        self.host_page_mut(page).map(|bytes| &*bytes)
    }

    fn host_page_mut(&mut self, page: HostPageId) -> Result<&mut [u8], BackendError> {
        self.shape.check_host_page(page)?;
        Ok(self.pools.host_page(&mut *self.device, page)?)
    }
}
