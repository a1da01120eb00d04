//! The host pool: KV pages as bytes in host memory, on which nothing computes.
//!
//! A page is one contiguous piece, and a disk stores exactly these bytes. Only the writer and reader of a page know
//! what the bytes mean ([pages](super::pages)).

use super::aligned::Aligned;
use crate::backend::HostPageId;

/// The bytes of all pages in host memory, on which nothing computes. Memory that was never written takes only address
/// space.
pub(super) struct HostPool {
    page_bytes: usize,
    data: Aligned<u8>,
}

impl HostPool {
    pub(super) fn new(page_bytes: usize, pages: u32) -> Self {
        Self {
            page_bytes,
            data: Aligned::new(page_bytes * pages as usize),
        }
    }

    pub(super) fn page(&self, page: HostPageId) -> &[u8] {
        &self.data[page.0 as usize * self.page_bytes..][..self.page_bytes]
    }

    pub(super) fn page_mut(&mut self, page: HostPageId) -> &mut [u8] {
        &mut self.data[page.0 as usize * self.page_bytes..][..self.page_bytes]
    }
}
