//! Opens the device that computes the model, with its pools of pages for KV state, before the engine starts.
//!
//! ```text
//!   auto    the first CUDA device, if it is usable and supports the model; otherwise the CPU
//!   cpu     the CPU
//!   cuda:N  this CUDA device, or an error with the reason; `cuda` is `cuda:0`
//! ```

use anyhow::{Context, bail};
use foreword_engine::backend::Backend;
use foreword_engine::backend::cpu::{CpuBackend, CpuConfig, Precision};
use foreword_engine::backend::cuda::{
    self, CudaBackend, CudaConfig, CudaPrecision, PoolSize, Unavailable,
};
use foreword_engine::models::{Checkpoint, Element, ModelConfig};
use foreword_report::progress::bar;
use std::path::Path;
use std::str::FromStr;

/// The device on which the operator wants the model to be computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The first CUDA device if it is usable and supports the model, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device of this number.
    Cuda(u32),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.strip_prefix("cuda:")?.parse().ok();
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => number(text)
                .map(Self::Cuda)
                .ok_or_else(|| "it must be auto, cpu or cuda:N, one device".to_owned()),
        }
    }
}

/// The size of a pool of pages for KV state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSize {
    /// Room for KV state of this many tokens.
    Tokens(u32),
    /// This many bytes of memory.
    Bytes(u64),
}

impl KvSize {
    /// Returns the number of whole pages, each for `page_tokens` tokens and of `page_bytes` bytes, that fit into this
    /// size.
    fn pages(self, page_tokens: u32, page_bytes: u64) -> u32 {
        match self {
            Self::Tokens(tokens) => tokens / page_tokens,
            Self::Bytes(bytes) => u32::try_from(bytes / page_bytes.max(1)).unwrap_or(u32::MAX),
        }
    }

    /// Returns the number of whole pages that fit into this size; an error if it is in bytes and smaller than one page.
    fn some_pages(self, page_tokens: u32, page_bytes: u64) -> anyhow::Result<u32> {
        match (self.pages(page_tokens, page_bytes), self) {
            (0, Self::Bytes(bytes)) => bail!(
                "{bytes} bytes have no room for a page of KV state: {page_tokens} tokens take {page_bytes} bytes"
            ),
            (pages, _) => Ok(pages),
        }
    }
}

/// The requested device and the sizes of its page pools for KV state. A field that is `None` has its default.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The device on which the model is computed.
    pub device: Device,
    /// Size of the page pool in device memory; by default 65,536 tokens on the CPU, and the fraction
    /// `kv_memory_fraction` of the memory on a CUDA device.
    pub kv: Option<KvSize>,
    /// Fraction of a CUDA device's memory, after the weights are loaded, for the page pool. Used only if `kv` is
    /// `None`.
    pub kv_memory_fraction: f32,
    /// Size of the page pool in host memory, which holds pages evicted from the device.
    pub kv_host: KvSize,
    /// Number of tokens in a page.
    pub page_tokens: u32,
    /// Maximum number of tokens that one step of the engine computes; by default 512 on the CPU (2,048 with AMX in
    /// steps that only prefill), and 8,192 on a CUDA device.
    pub max_step_tokens: Option<u32>,
    /// Number of worker threads on the CPU; by default chosen by the backend.
    pub threads: Option<u32>,
    /// The number format in which the CPU multiplies weights.
    pub precision: Precision,
    /// The number format in which a CUDA device multiplies weights.
    pub cuda_precision: CudaPrecision,
    /// Seed of random weights; `None` to read the checkpoint's weights.
    pub random_weights: Option<u64>,
}

/// A device with the model loaded on it.
pub struct Opened {
    /// The backend that computes the model on the device.
    pub backend: Box<dyn Backend>,
    /// Hash of everything on which the bytes of a page of KV state depend, except the page's tokens. Pages can be
    /// exchanged between equal identities.
    pub identity: u128,
    /// Description of the hardware. Measured costs of computing are valid only for the same description.
    pub machine: String,
    /// Maximum number of tokens that one step of the engine computes.
    pub max_step_tokens: u32,
    /// Maximum number of tokens of a step of the engine that only prefills prompts.
    pub max_prefill_step_tokens: u32,
}

const CPU_KV_TOKENS: u32 = 65_536;
const CPU_STEP_TOKENS: u32 = 512;
/// Default of [`Opened::max_prefill_step_tokens`] on a CPU with AMX (matrix instructions of Intel's): a step of so many
/// tokens takes about as long as one of 512 tokens on a CPU without AMX.
const CPU_TILES_PREFILL_STEP_TOKENS: u32 = 2_048;
const CUDA_STEP_TOKENS: u32 = 8_192;

impl DeviceConfig {
    /// Returns the number of the CUDA device to use; `None` for the CPU.
    ///
    /// # Errors
    /// Returns an error if the requested CUDA device is not available.
    pub fn ordinal(&self) -> anyhow::Result<Option<u32>> {
        match self.device {
            Device::Cpu => Ok(None),
            Device::Cuda(ordinal) => match cuda::unavailable(ordinal) {
                None => Ok(Some(ordinal)),
                Some(absent) => bail!("--device cuda:{ordinal}: {}", absent.reason),
            },
            Device::Auto => Ok(match cuda::unavailable(0) {
                None => Some(0),
                Some(Unavailable { has_driver, reason }) => {
                    if has_driver {
                        tracing::warn!(
                            reason,
                            "computing on the CPU, though there is a CUDA driver"
                        );
                    } else {
                        tracing::info!(reason, "computing on the CPU");
                    }
                    None
                }
            }),
        }
    }

    /// Returns `ordinal` if the CUDA device with this number supports `model`; `None`, for the CPU, if `ordinal` is
    /// `None`, or if the device does not support the model and the configured device is `auto`.
    ///
    /// # Errors
    /// Returns an error if the CUDA device does not support the model and the configuration requires that device.
    pub fn suited(&self, ordinal: Option<u32>, model: &ModelConfig) -> anyhow::Result<Option<u32>> {
        match (ordinal, cuda::refuses(model)) {
            (Some(ordinal), Some(reason)) if self.device == Device::Auto => {
                tracing::warn!(
                    reason,
                    "computing on the CPU, though there is cuda:{ordinal}"
                );
                Ok(None)
            }
            (Some(ordinal), Some(reason)) => bail!("--device cuda:{ordinal}: {reason}"),
            (ordinal, _) => Ok(ordinal),
        }
    }

    /// Loads the model in `folder` onto the device. Slow, since it reads the weights.
    ///
    /// # Errors
    /// Returns an error if the device is missing or too small, or a file of the checkpoint is missing, malformed or not
    /// supported.
    pub fn open(&self, folder: &Path) -> anyhow::Result<Opened> {
        let ordinal = self.ordinal()?;
        let context = || format!("cannot load the model in {}", folder.display());
        let checkpoint = match self.random_weights {
            None => Checkpoint::open(folder),
            Some(seed) => ModelConfig::load(folder)
                .map(|config| Checkpoint::random(config, Element::Bf16, seed)),
        }
        .with_context(context)?;
        if checkpoint.config().ignores_vision {
            tracing::warn!("the model's vision tower is not loaded: it reads text only");
        }
        match self.suited(ordinal, checkpoint.config())? {
            None => self.open_cpu(&checkpoint),
            Some(ordinal) => self.open_cuda(&checkpoint, folder, ordinal),
        }
        .with_context(context)
    }

    fn open_cpu(&self, checkpoint: &Checkpoint) -> anyhow::Result<Opened> {
        let page_bytes = CpuBackend::page_bytes(checkpoint, self.page_tokens, self.precision)?;
        let kv = self.kv.unwrap_or(KvSize::Tokens(CPU_KV_TOKENS));
        let pages = kv.some_pages(self.page_tokens, page_bytes)?;
        let config = CpuConfig {
            pages,
            host_pages: self.kv_host.pages(self.page_tokens, page_bytes),
            page_tokens: self.page_tokens,
            threads: self.threads,
            precision: self.precision,
        };
        tracing::info!(
            pages,
            page_tokens = config.page_tokens,
            pool_mib = (page_bytes.saturating_mul(u64::from(pages))) >> 20,
            host_mib = (page_bytes.saturating_mul(u64::from(config.host_pages))) >> 20,
            "loading"
        );
        let backend = CpuBackend::new(checkpoint, &config)?;
        tracing::info!(instructions = backend.instruction_set(), "loaded");
        if let Some(warning) = backend.warning() {
            tracing::warn!("{warning}");
        }
        Ok(Opened {
            identity: backend.identity(),
            machine: format!(
                "{}, {} threads",
                backend.instruction_set(),
                backend.threads()
            ),
            max_step_tokens: self.max_step_tokens.unwrap_or(CPU_STEP_TOKENS),
            max_prefill_step_tokens: self.max_step_tokens.unwrap_or(
                match backend.multiplies_tiles() {
                    true => CPU_TILES_PREFILL_STEP_TOKENS,
                    false => CPU_STEP_TOKENS,
                },
            ),
            backend: Box::new(backend),
        })
    }

    fn open_cuda(
        &self,
        checkpoint: &Checkpoint,
        folder: &Path,
        ordinal: u32,
    ) -> anyhow::Result<Opened> {
        let page_bytes = CudaBackend::page_bytes_of(folder, self.page_tokens)?;
        let max_step_tokens = self.max_step_tokens.unwrap_or(CUDA_STEP_TOKENS);
        let config = CudaConfig {
            ordinal,
            pages: match self.kv {
                Some(kv) => PoolSize::Pages(kv.some_pages(self.page_tokens, page_bytes)?),
                None => PoolSize::Fraction(self.kv_memory_fraction),
            },
            host_pages: self.kv_host.pages(self.page_tokens, page_bytes),
            page_tokens: self.page_tokens,
            max_step_tokens,
            precision: self.cuda_precision,
        };
        let mut shown = None;
        let backend = CudaBackend::new(checkpoint, &config, &mut |done, total| {
            let mebibytes = |bytes: u64| (bytes >> 20) as usize;
            let bar = shown.get_or_insert_with(|| bar("weights", mebibytes(total)).ok());
            if let Some(bar) = bar {
                bar.set_position(mebibytes(done) as u64);
                bar.set_message(format!("{} MiB", mebibytes(done)));
            }
        });
        if let Some(bar) = shown.flatten() {
            bar.finish_and_clear();
        }
        let backend = backend?;
        let shape = backend.shape();
        let (pages, page_bytes) = (shape.pages, shape.page_bytes as u64);
        tracing::info!(
            device = backend.device_name(),
            pages,
            page_tokens = self.page_tokens,
            pool_mib = (page_bytes * u64::from(pages)) >> 20,
            host_mib = (page_bytes * u64::from(config.host_pages)) >> 20,
            "loaded"
        );
        Ok(Opened {
            identity: backend.identity(),
            machine: backend.device_name().to_owned(),
            backend: Box::new(backend),
            max_step_tokens,
            max_prefill_step_tokens: max_step_tokens,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_for_the_cpu_alone_is_refused_on_cuda_and_moved_by_auto() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/fixtures");
        let suited = |device, ordinal, name: &str| {
            let config = DeviceConfig {
                device,
                kv: None,
                kv_memory_fraction: 0.5,
                kv_host: KvSize::Tokens(0),
                page_tokens: 16,
                max_step_tokens: None,
                threads: None,
                precision: Precision::Auto,
                cuda_precision: CudaPrecision::Bf16,
                random_weights: None,
            };
            config.suited(ordinal, &ModelConfig::load(&fixtures.join(name)).unwrap())
        };
        assert_eq!(suited(Device::Auto, Some(0), "gemma3").unwrap(), None);
        assert_eq!(suited(Device::Cpu, None, "gemma3").unwrap(), None);
        assert_eq!(suited(Device::Auto, Some(0), "qwen3").unwrap(), Some(0));
        let error = suited(Device::Cuda(1), Some(1), "gemma3").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("--device cuda:1: Gemma 3 is computed on the CPU only"),
            "{error}"
        );
    }

    #[test]
    fn devices_are_read_by_their_names() {
        let read = str::parse::<Device>;
        assert_eq!(
            [read("auto"), read("cpu")],
            [Ok(Device::Auto), Ok(Device::Cpu)]
        );
        assert_eq!(
            [read("cuda"), read("cuda:3")],
            [Ok(Device::Cuda(0)), Ok(Device::Cuda(3))]
        );
        for wrong in ["", "cuda:", "cuda:-1", "cuda:0,1", "gpu", "CPU"] {
            assert_eq!(
                read(wrong),
                Err("it must be auto, cpu or cuda:N, one device".to_owned())
            );
        }
    }
}
