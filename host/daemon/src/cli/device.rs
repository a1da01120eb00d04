//! The arguments that choose the device and the size of its steps.

use super::size::size;
use clap::ValueEnum;
use foreword_engine::backend::cpu::Precision;
use foreword_engine::backend::cuda;
use foreword_server::device::{Device, DeviceConfig, KvSize};

#[derive(clap::Args)]
#[group(id = "computing")]
pub(crate) struct Arguments {
    /// Device that computes: cpu, cuda:N, or auto, the first CUDA device if there is one
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Tokens of KV state that fit into the device's pool [default: 65536 on the CPU, --kv-memory-fraction on a CUDA
    /// device]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(16..))]
    kv_tokens: Option<u32>,
    /// Memory for that KV state instead, in bytes or as 4GiB
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "kv_tokens")]
    kv_cache_memory_bytes: Option<u64>,
    /// Fraction of a CUDA device's memory, after the weights, to use for KV state
    #[arg(long, value_name = "PART", default_value_t = 0.9, value_parser = part, conflicts_with_all = ["kv_tokens", "kv_cache_memory_bytes"])]
    kv_memory_fraction: f32,
    /// Tokens in a page of KV state, a multiple of 16; a power of two up to 256 on a CUDA device
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = page_tokens)]
    pub(crate) page_tokens: u32,
    /// Tokens computed in one step; longer prompts are computed in parts [default: 512 on the CPU, 2048 there with AMX while
    /// no answer is generated, 8192 on a CUDA device]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_step_tokens: Option<u32>,
    /// Worker threads for computing on the CPU [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    threads: Option<u32>,
    /// How the CPU multiplies bf16 weights and packed ones
    #[arg(long, value_enum, default_value_t = CpuPrecision::Auto)]
    cpu_precision: CpuPrecision,
    /// Format in which a CUDA device multiplies weights that the checkpoint has in FP8; without effect on the CPU
    #[arg(long, value_enum, default_value_t = CudaPrecision::Bf16)]
    cuda_precision: CudaPrecision,
    /// Use random weights of this seed instead of reading them, to measure a shape; config.json is then enough
    #[arg(long, value_name = "SEED")]
    random_weights: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum CpuPrecision {
    /// Multiply as bf16 where the CPU does that faster, else as f32; packed weights (GGUF) then stay packed
    Auto,
    /// Widen to f32: most accurate
    F32,
    /// Keep packed weights packed on every CPU: a third to half of the memory, activations of 8 bits
    Packed,
    /// Round activations to bf16; an error if the CPU has no instructions for it
    Bf16,
    /// The same in attention, with KV state in bf16: half the memory, long prompts a tenth faster or more, less accurate
    Bf16Kv,
}

#[derive(Clone, Copy, ValueEnum)]
enum CudaPrecision {
    /// Widen them to bf16: most accurate
    Bf16,
    /// Keep FP8 weights with scales by channel or tensor, and quantise activations to FP8 by token (W8A8): half the memory, less
    /// accurate; an error unless the device is a Hopper (9.0) with cuBLASLt 12.9 or later. Tested on an emulator only, not
    /// measured on a card
    Fp8,
}

impl Arguments {
    /// Returns a description of conflicting arguments; `None` if there are none.
    pub(crate) fn conflict(&self) -> Option<String> {
        let (kv, page) = (self.kv_tokens?, self.page_tokens);
        (kv < page)
            .then(|| format!("--kv-tokens {kv} is less than one page: --page-tokens is {page}"))
    }

    pub(crate) fn config(&self, kv_host: KvSize) -> DeviceConfig {
        DeviceConfig {
            device: self.device,
            kv: (self.kv_cache_memory_bytes.map(KvSize::Bytes))
                .or(self.kv_tokens.map(KvSize::Tokens)),
            kv_memory_fraction: self.kv_memory_fraction,
            kv_host,
            page_tokens: self.page_tokens,
            max_step_tokens: self.max_step_tokens,
            threads: self.threads,
            precision: match self.cpu_precision {
                CpuPrecision::Auto => Precision::Auto,
                CpuPrecision::F32 => Precision::F32,
                CpuPrecision::Packed => Precision::Packed,
                CpuPrecision::Bf16 => Precision::Bf16,
                CpuPrecision::Bf16Kv => Precision::Bf16Kv,
            },
            cuda_precision: match self.cuda_precision {
                CudaPrecision::Bf16 => cuda::CudaPrecision::Bf16,
                CudaPrecision::Fp8 => cuda::CudaPrecision::Fp8,
            },
            random_weights: self.random_weights,
        }
    }
}

fn page_tokens(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(tokens) if tokens % 16 == 0 && (16..=1_024).contains(&tokens) => Ok(tokens),
        _ => Err("it must be a multiple of 16 from 16 to 1024".to_owned()),
    }
}

fn part(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(part) if part > 0.0 && part < 1.0 => Ok(part),
        _ => Err("it must be above 0 and below 1".to_owned()),
    }
}
