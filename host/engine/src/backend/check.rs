//! Validation of a step, common to all backends: tokens, positions and pages are in range; page tables are long enough;
//! and no page that the step writes is read or written by another segment of the step, or written at two positions.

use super::{BackendError, BackendShape, HostPageId, Load, Output, PageId, Step, Store};
use fxhash::FxHashSet;

impl BackendShape {
    pub(super) fn check_host_page(&self, page: HostPageId) -> Result<(), BackendError> {
        if page.0 >= self.host_pages {
            return Err(BackendError::no_host_page(page, self.host_pages));
        }
        Ok(())
    }

    pub(super) fn check_stores(&self, stores: &[Store]) -> Result<(), BackendError> {
        let mut targets = FxHashSet::default();
        for store in stores {
            self.check_page(store.from)?;
            self.check_host_page(store.to)?;
            if !targets.insert(store.to) {
                return Err(BackendError::Malformed(format!(
                    "host page {} is stored to twice",
                    store.to.0
                )));
            }
        }
        Ok(())
    }

    /// Checks the step's loads (copies of pages from the host pool to the pool) and replaces the content of `loads`
    /// with them, ascending by the page that is overwritten.
    pub(super) fn check_loads(
        &self,
        step: &Step,
        loads: &mut Vec<Load>,
    ) -> Result<(), BackendError> {
        loads.clone_from(&step.loads);
        loads.sort_unstable_by_key(|load| load.to);
        for load in &*loads {
            self.check_host_page(load.from)?;
            self.check_page(load.to)?;
        }
        match loads.array_windows().find(|[a, b]| a.to == b.to) {
            Some([load, _]) => Err(BackendError::Malformed(format!(
                "page {} is loaded to twice",
                load.to.0
            ))),
            None => Ok(()),
        }
    }

    pub(super) fn check_page(&self, page: PageId) -> Result<(), BackendError> {
        if page.0 >= self.pages {
            return Err(BackendError::Malformed(format!(
                "page {} is not below the pool's {}",
                page.0, self.pages
            )));
        }
        Ok(())
    }

    /// Checks a copy of the KV state of the first `tokens` tokens of page `from` to page `to`: both pages are in the
    /// pool and differ, and a page has room for as many tokens.
    pub(super) fn check_copy(
        &self,
        from: PageId,
        to: PageId,
        tokens: u32,
    ) -> Result<(), BackendError> {
        self.check_page(from)?;
        self.check_page(to)?;
        if tokens > self.page_tokens {
            return Err(BackendError::Malformed(format!(
                "{tokens} slots are more than a page's {}",
                self.page_tokens
            )));
        }
        if from == to {
            return Err(BackendError::Malformed(format!(
                "page {} would be copied to itself",
                from.0
            )));
        }
        Ok(())
    }

    /// Checks the step's segments and replaces the content of `writes` with one [`Write`] for each page to which the
    /// step writes KV state, in the order of the step's rows (one row for each token to compute). `owners` is scratch
    /// memory.
    pub(super) fn check_segments(
        &self,
        step: &Step,
        owners: &mut Owners,
        writes: &mut Vec<Write>,
    ) -> Result<(), BackendError> {
        writes.clear();
        owners.0.resize(self.pages as usize, NOBODY);
        let checked = self.check(step, &mut owners.0, writes);
        for write in &*writes {
            owners.0[write.page.0 as usize] = NOBODY;
        }
        checked.map_err(BackendError::Malformed)
    }

    fn check(
        &self,
        step: &Step,
        owners: &mut [u32],
        writes: &mut Vec<Write>,
    ) -> Result<(), String> {
        let page_tokens = u64::from(self.page_tokens);
        let mut row = 0;
        for (number, segment) in step.segments.iter().enumerate() {
            let wrong = |what: String| Err(format!("segment {number}: {what}"));
            if segment.tokens.is_empty() {
                return wrong("it has no tokens, at least one is needed".into());
            }
            if let Some(token) = segment
                .tokens
                .iter()
                .find(|&&token| token >= self.vocabulary)
            {
                return wrong(format!(
                    "token {token} is not below the vocabulary's {}",
                    self.vocabulary
                ));
            }
            if matches!(segment.output, Output::Token(_)) && !self.draws {
                return wrong("it asks for a token, but this backend returns only logits".into());
            }
            let end = u64::from(segment.start) + segment.tokens.len() as u64;
            if end > u64::from(self.max_positions) {
                return wrong(format!(
                    "it ends at position {end}, the model has {}",
                    self.max_positions
                ));
            }
            let room = segment.pages.len() as u64 * page_tokens;
            if end > room {
                return wrong(format!(
                    "it ends at position {end}, its pages have room for {room}"
                ));
            }
            if let Some(page) = segment.pages.iter().find(|page| page.0 >= self.pages) {
                return wrong(format!(
                    "page {} is not below the pool's {}",
                    page.0, self.pages
                ));
            }
            let mut position = segment.start;
            while u64::from(position) < end {
                let page = segment.pages[(position / self.page_tokens) as usize];
                let next_page = (u64::from(position) / page_tokens + 1) * page_tokens;
                let tokens = (next_page.min(end) - u64::from(position)) as u32;
                let owner = &mut owners[page.0 as usize];
                if *owner != NOBODY {
                    return wrong(format!(
                        "page {} is written by segment {owner} already",
                        page.0
                    ));
                }
                *owner = number as u32;
                writes.push(Write {
                    page,
                    row,
                    tokens,
                    position,
                });
                row += tokens;
                position += tokens;
            }
        }
        // All pages that the step writes are known now. No segment may read one of them as part of its prefix.
        for (number, segment) in step.segments.iter().enumerate() {
            let read = (segment.start / self.page_tokens) as usize;
            for page in &segment.pages[..read] {
                let owner = owners[page.0 as usize];
                if owner != NOBODY {
                    return Err(format!(
                        "segment {number}: it reads page {}, which segment {owner} writes",
                        page.0
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Scratch memory of [`BackendShape::check_segments`]: for each page id, the index of the segment that writes the page
/// in the checked step, or [`NOBODY`]. Between two checks every entry is [`NOBODY`].
#[derive(Default)]
pub(super) struct Owners(Vec<u32>);

const NOBODY: u32 = u32::MAX;

/// Consecutive tokens of one segment whose KV state is written to one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) page: PageId,
    /// Index of the first token among all tokens that the step computes.
    pub(super) row: u32,
    pub(super) tokens: u32,
    /// Position of the first token in its sequence, counted from 0.
    pub(super) position: u32,
}
