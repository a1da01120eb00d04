//! The CPU backend.

use super::{Backend, BackendError, PageId, Step};
use crate::models::CheckpointError;
use std::path::Path;

/// Sizes of a CPU backend.
#[derive(Clone, Debug)]
pub struct CpuConfig {
    /// Pages in the pool.
    pub pages: u32,
    /// Tokens in a page: a multiple of 16.
    pub page_tokens: u32,
    /// Worker threads; `None`: one per core.
    pub threads: Option<u32>,
}

/// Computes on the CPU.
pub struct CpuBackend {}

impl CpuBackend {
    /// Loads the checkpoint in `folder`.
    ///
    /// # Errors
    /// [`CheckpointError`] when the checkpoint is incomplete or unsupported.
    pub fn load(folder: &Path, config: &CpuConfig) -> Result<Self, CheckpointError> {
        let _ = (folder, config);
        todo!()
    }

    /// Bytes of KV state in a page, for sizing a pool before loading.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn page_bytes(folder: &Path, page_tokens: u32) -> Result<u64, CheckpointError> {
        let _ = (folder, page_tokens);
        todo!()
    }
}

impl Backend for CpuBackend {
    fn vocabulary(&self) -> u32 {
        todo!()
    }
    fn max_positions(&self) -> u32 {
        todo!()
    }
    fn page_tokens(&self) -> u32 {
        todo!()
    }
    fn pages(&self) -> u32 {
        todo!()
    }
    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        let _ = (step, logits);
        todo!()
    }
    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError> {
        let _ = (from, to, tokens);
        todo!()
    }
}
