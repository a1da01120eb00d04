//! A backend for tests that has no model but tracks pages exactly.
//!
//! The "KV state" of a position is a hash of the token and of the states of all earlier positions *as read back from
//! the pages of its page table*, and logits are a hash of the last state. So a wrong page, a slot that was never
//! written or was written for another prefix, a missed copy or an eviction too early changes every token from there on.
//! [`expected`] is the same arithmetic on a plain sequence, without pages, steps or batches.
//!
//! Included by path in both unit tests and integration tests, hence `pub`.

use foreword_engine::TokenId;
use foreword_engine::backend::{
    Backend, BackendError, BackendShape, HostPageId, Load, Output, PageId, Step, Store,
};
use foreword_engine::sampling::Sampling;
use std::sync::mpsc::Receiver;

pub const VOCABULARY: u32 = 24;

/// The state that makes all later states invalid.
const NOT_A_NUMBER: u64 = u64::MAX;

/// The state that a failed device leaves behind.
const GARBAGE: u64 = 0xdead;

/// The value of a slot without state on a host page.
const NEVER_WRITTEN: u64 = 0;

/// What goes wrong in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The device fails and leaves garbage in the pages that it was to write.
    Device,
    /// The device is lost: every page is garbage, except host pages.
    Lost,
    /// The device panics, and leaves what `Device` leaves.
    Panic,
    /// The step computes no valid numbers, and neither does anything that reads its KV state.
    NotNumbers,
}

type Faults = Box<dyn FnMut(&Step) -> Fault + Send>;

pub struct FakeBackend {
    page_tokens: u32,
    max_positions: u32,
    /// States by page and slot; `None` if never written.
    slots: Vec<Vec<Option<u64>>>,
    /// Bytes by host page; a slot takes eight bytes.
    host: Vec<Vec<u8>>,
    faults: Faults,
    /// Whether the next copy fails.
    copies: Box<dyn FnMut() -> bool + Send>,
    /// Each message lets one step run.
    gate: Option<Receiver<()>>,
}

impl FakeBackend {
    pub fn new(pages: u32, page_tokens: u32) -> Self {
        Self {
            page_tokens,
            max_positions: u32::MAX,
            slots: vec![vec![None; page_tokens as usize]; pages as usize],
            host: Vec::new(),
            faults: Box::new(|_| Fault::None),
            copies: Box::new(|| false),
            gate: None,
        }
    }

    pub fn max_positions(self, max_positions: u32) -> Self {
        Self {
            max_positions,
            ..self
        }
    }

    /// Adds a host pool.
    pub fn host_pages(self, host_pages: u32) -> Self {
        let page = vec![0; self.shape().page_bytes];
        Self {
            host: vec![page; host_pages as usize],
            ..self
        }
    }

    pub fn faults(self, faults: impl FnMut(&Step) -> Fault + Send + 'static) -> Self {
        Self {
            faults: Box::new(faults),
            ..self
        }
    }

    pub fn copy_faults(self, fails: impl FnMut() -> bool + Send + 'static) -> Self {
        Self {
            copies: Box::new(fails),
            ..self
        }
    }

    pub fn gate(self, gate: Receiver<()>) -> Self {
        Self {
            gate: Some(gate),
            ..self
        }
    }

    fn check_host_page(&self, page: HostPageId) -> Result<(), BackendError> {
        if page.0 < self.shape().host_pages {
            Ok(())
        } else {
            Err(BackendError::no_host_page(page, self.shape().host_pages))
        }
    }

    fn load(&mut self, loads: &[Load]) -> Result<(), BackendError> {
        for load in loads {
            self.check_host_page(load.from)?;
            for slot in 0..self.page_tokens {
                let bytes = self.host[load.from.0 as usize].as_chunks().0;
                let state = u64::from_le_bytes(bytes[slot as usize]);
                *self.slot(load.to, slot)? = (state != NEVER_WRITTEN).then_some(state);
            }
        }
        Ok(())
    }

    fn slot(&mut self, page: PageId, slot: u32) -> Result<&mut Option<u64>, BackendError> {
        let pages = self.slots.len();
        let page_slots = self.slots.get_mut(page.0 as usize);
        page_slots
            .and_then(|slots| slots.get_mut(slot as usize))
            .ok_or_else(|| {
                BackendError::Malformed(format!("slot {slot} of page {} of {pages}", page.0))
            })
    }
}

impl Backend for FakeBackend {
    fn shape(&self) -> BackendShape {
        BackendShape {
            vocabulary: VOCABULARY,
            max_positions: self.max_positions,
            page_tokens: self.page_tokens,
            pages: self.slots.len() as u32,
            host_pages: self.host.len() as u32,
            page_bytes: self.page_tokens as usize * size_of::<u64>(),
            draws: false,
        }
    }

    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        if let Some(gate) = &self.gate {
            // Dropping the sender opens the gate for good.
            let _ = gate.recv();
        }
        logits.clear();
        let fault = (self.faults)(step);
        if fault == Fault::Lost {
            self.slots
                .iter_mut()
                .flatten()
                .for_each(|slot| *slot = Some(GARBAGE));
            return Err(BackendError::Lost("out of this world".to_owned()));
        }
        self.load(&step.loads)?;
        let mut written: Vec<PageId> = Vec::new();
        for segment in &step.segments {
            let end = segment.start + segment.tokens.len() as u32;
            if segment.tokens.is_empty() || end > self.max_positions {
                return Err(BackendError::Malformed(format!(
                    "positions {}..{end}",
                    segment.start
                )));
            }
            let first = (segment.start / self.page_tokens) as usize;
            let pages = segment
                .pages
                .get(first..end.div_ceil(self.page_tokens) as usize);
            for page in pages.unwrap_or_default() {
                if written.contains(page) {
                    return Err(BackendError::Malformed(format!(
                        "page {} is written twice",
                        page.0
                    )));
                }
                written.push(*page);
            }
        }
        for segment in &step.segments {
            let mut state = 0;
            for position in 0..segment.start + segment.tokens.len() as u32 {
                let Some(&page) = segment.pages.get((position / self.page_tokens) as usize) else {
                    return Err(BackendError::Malformed(format!(
                        "position {position} has no page"
                    )));
                };
                let slot = self.slot(page, position % self.page_tokens)?;
                if position >= segment.start {
                    let token = segment.tokens[(position - segment.start) as usize];
                    *slot = Some(match fault {
                        Fault::None if state == NOT_A_NUMBER => NOT_A_NUMBER,
                        Fault::None => kv(state, token),
                        Fault::NotNumbers => NOT_A_NUMBER,
                        Fault::Device | Fault::Lost | Fault::Panic => GARBAGE,
                    });
                }
                let kv = slot.ok_or_else(|| {
                    BackendError::Malformed(format!(
                        "slot {position} of page {} was never written",
                        page.0
                    ))
                })?;
                let numbers = state != NOT_A_NUMBER && kv != NOT_A_NUMBER;
                state = if numbers {
                    mix(state ^ kv)
                } else {
                    NOT_A_NUMBER
                };
                let is_last = position + 1 == segment.start + segment.tokens.len() as u32;
                if match segment.output {
                    Output::Last => is_last,
                    Output::All => position >= segment.start,
                    Output::None | Output::Token(_) => false,
                } {
                    logits.extend(row(state).map(|logit| {
                        if state == NOT_A_NUMBER {
                            f32::NAN
                        } else {
                            logit
                        }
                    }));
                }
            }
        }
        match fault {
            Fault::Device => Err(BackendError::Device("out of luck".to_owned())),
            Fault::Panic => panic!("out of patience"),
            Fault::None | Fault::NotNumbers | Fault::Lost => Ok(()),
        }
    }

    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError> {
        if (self.copies)() {
            return Err(BackendError::Device("no copies today".to_owned()));
        }
        assert!(from != to && tokens > 0 && tokens <= self.page_tokens);
        for slot in 0..tokens {
            *self.slot(to, slot)? = *self.slot(from, slot)?;
        }
        Ok(())
    }

    fn store(&mut self, stores: &[Store]) -> Result<(), BackendError> {
        for store in stores {
            self.check_host_page(store.to)?;
            for slot in 0..self.page_tokens {
                let state = self.slot(store.from, slot)?.unwrap_or(NEVER_WRITTEN);
                let bytes = self.host[store.to.0 as usize].as_chunks_mut().0;
                bytes[slot as usize] = state.to_le_bytes();
            }
        }
        Ok(())
    }

    fn host_page(&mut self, page: HostPageId) -> Result<&[u8], BackendError> {
        self.check_host_page(page)?;
        Ok(&self.host[page.0 as usize])
    }

    fn host_page_mut(&mut self, page: HostPageId) -> Result<&mut [u8], BackendError> {
        self.check_host_page(page)?;
        Ok(&mut self.host[page.0 as usize])
    }
}

/// Returns what a request must yield, however it is batched, cut, cached or preempted: its tokens, and whether a stop
/// token ended it.
pub fn expected(
    prompt: &[TokenId],
    max_tokens: u32,
    capacity: u32,
    sampling: &Sampling,
    stop_tokens: &[TokenId],
) -> (Vec<TokenId>, bool) {
    let mut state = prompt
        .iter()
        .fold(0, |state, &token| mix(state ^ kv(state, token)));
    let mut generated = Vec::new();
    let mut length = prompt.len() as u32;
    while (generated.len() as u32) < max_tokens && length < capacity {
        let token = sampling
            .choose(&row(state).collect::<Vec<_>>(), length)
            .unwrap();
        if stop_tokens.contains(&token) {
            return (generated, true);
        }
        generated.push(token);
        length += 1;
        state = mix(state ^ kv(state, token));
    }
    (generated, false)
}

/// Returns the row of logits behind each token of a sequence.
pub fn prompt_rows(tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let mut state = 0;
    let rows = tokens.iter().map(|&token| {
        state = mix(state ^ kv(state, token));
        row(state).collect()
    });
    rows.collect()
}

fn kv(before: u64, token: TokenId) -> u64 {
    mix(before.rotate_left(17) ^ u64::from(token))
}

fn row(state: u64) -> impl Iterator<Item = f32> {
    (0..VOCABULARY).map(move |token| (mix(state ^ mix(u64::from(token))) >> 40) as f32 / 4e6)
}

fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}
