//! Tests against the fixtures' logits as `transformers` computes them in f32, for every family: the same references as
//! for the CPU backend.
//!
//! Tolerance, as where the CPU backend rounds activations to bf16: 2e-2 of a row's deviation as the root mean square,
//! and five times that for a single logit. Both double where the weights, f16 or f32 in their files, are rounded too.
//! Prompts that only a card computes are hundreds of tokens long: there it is what `transformers` itself, in bf16 on an
//! H200, strays by for Llama, 3.3e-2 (3.6e-2 to 4.5e-2 for Mistral, Qwen2 and Qwen3, 1.4e-2 with YaRN; `gpu_peer.py`
//! prints it).

use super::fixtures::{deviation, families, json, prompts, strays};
use super::{devices, is_emulated};
use crate::backend::Output;
use crate::backend::cuda::{CudaBackend, CudaConfig, CudaPrecision, PoolSize, refuses};
use crate::backend::tests::{run, segment};
use crate::models::Checkpoint;
use std::path::Path;

const TOLERANCE: f32 = 2e-2;
const LONG_TOLERANCE: f32 = 3.3e-2;
const PAGE_TOKENS: u32 = 16;
/// Tokens in a step, fewer than the longest prompt has.
const STEP: u32 = 700;
/// The longest prompt that the emulator computes; it takes a second for about ten tokens.
const EMULATED: usize = 16;

#[test]
fn logits_agree_with_transformers() {
    for folder in families() {
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let rounded = if is_bf16(&folder) { 1.0 } else { 2.0 };
        let config = CudaConfig {
            ordinal: 0,
            pages: PoolSize::Pages(100),
            host_pages: 0,
            page_tokens: PAGE_TOKENS,
            max_step_tokens: STEP,
            precision: CudaPrecision::Bf16,
        };
        if let Some(reason) = refuses(checkpoint.config()) {
            let opened = CudaBackend::new(&checkpoint, &config, &mut |_, _| {});
            let error = opened.err().unwrap().to_string();
            assert!(error.contains(reason), "{error}");
            continue;
        }
        for device in devices() {
            let name = format!("{} on {}", folder.display(), device.name());
            let longest = if is_emulated(&*device) {
                EMULATED
            } else {
                usize::MAX
            };
            let mut backend =
                CudaBackend::build(&checkpoint, &config, device, &mut |_, _| {}).unwrap();
            let mut compared = 0;
            for prompt in prompts(&folder) {
                if prompt.tokens.len() > longest {
                    continue;
                }
                compared += 1;
                let tolerance = match prompt.tokens.len() > EMULATED {
                    true => rounded * LONG_TOLERANCE,
                    false => rounded * TOLERANCE,
                };
                let rows = logits(&mut backend, &prompt.tokens);
                let width = prompt.last.len();
                let last = &rows[rows.len() - width..];
                let error = strays(last, &prompt.last);
                println!(
                    "{name}, {} tokens: {error:e} of a deviation",
                    prompt.tokens.len()
                );
                assert!(error <= tolerance, "{name}: {error} exceeds {tolerance}");
                for (position, expected) in &prompt.top {
                    let row = &rows[position * width..][..width];
                    let allowed = 5.0 * tolerance * deviation(row);
                    for (token, logit) in expected {
                        let error = (row[*token as usize] - logit).abs();
                        assert!(
                            error <= allowed,
                            "{name} at {position}: {error} exceeds {allowed}"
                        );
                    }
                }
            }
            assert!(compared > 0, "{name}: no prompt is short enough");
        }
    }
}

/// Returns the logits of every position, computed in steps.
fn logits(backend: &mut CudaBackend, tokens: &[u32]) -> Vec<f32> {
    let mut rows = Vec::new();
    for (number, part) in tokens.chunks(STEP as usize).enumerate() {
        let start = number as u32 * STEP;
        let pages = (start + part.len() as u32).div_ceil(PAGE_TOKENS);
        let segment = segment(part, start as usize, 0..pages, Output::All);
        rows.extend(run(backend, vec![segment]));
    }
    rows
}

/// Returns whether the weights are stored as bf16, so that a bf16 backend does not round them.
fn is_bf16(folder: &Path) -> bool {
    let config = json(&folder.join("config.json"));
    ["dtype", "torch_dtype"]
        .into_iter()
        .any(|key| config[key] == "bfloat16")
}
