//! The host pool: pages as bytes, which nothing computes on.
//!
//! A page is one contiguous piece, laid out as [pages](super::pages) says: what a disk holds is what stands here.

use super::aligned::Aligned;
use super::pages::Layout;
use crate::backend::HostPageId;

/// All host pages. Memory that was never written costs address space only.
pub(super) struct HostPool {
    page_bytes: usize,
    data: Aligned<u8>,
}

impl HostPool {
    pub(super) fn new(layout: Layout, pages: u32) -> Self {
        let page_bytes = layout.page_bytes();
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
