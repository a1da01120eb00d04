//! The KV pools: the device's pool, and the host's pool in pinned memory.
//!
//! ```text
//!   device   a buffer per layer    [page][keys, values][kv_head][slot][head_dim] bf16
//!   host     one buffer            [page][layer][keys, values][kv_head][slot][head_dim] bf16
//! ```
//!
//! Pages are moved by one of the project's kernels, with a launch per layer in the copy queue. The device reads and
//! writes pinned memory directly, and a layer waits only for its own pages. A list of page pairs is sent before the
//! launches.

use super::device::{Array, Bf16, Device, Fault, Part, PartMut, Queue};
use super::kernels::{self, Heads, Runs};
use crate::backend::{HostPageId, Load, PageId, Store};

/// The KV pages on the device and those in pinned host memory, with the lists of copies between them.
pub(super) struct Pools {
    heads: Heads,
    layers: Vec<Array<Bf16>>,
    /// The pages in host memory; `None` if none are configured.
    host: Option<Array<u8>>,
    /// Page ids (from, to) of the step's copies from host memory to the device; `pairs` has those of all other copies.
    load_pairs: Array<u32>,
    pairs: Array<u32>,
    loads: Vec<Load>,
    /// True if the copy queue holds work that the compute queue has not been made to wait for.
    busy: bool,
}

impl Pools {
    pub(super) fn new(
        device: &mut dyn Device,
        heads: Heads,
        layers: usize,
        pages: u32,
        host_pages: u32,
    ) -> Result<Self, Fault> {
        let pool = |_| Array::new(device, heads.page() * pages as usize);
        let pools: Vec<_> = (0..layers).map(pool).collect::<Result<_, _>>()?;
        let page_bytes = heads.page() * layers * size_of::<Bf16>();
        let host = match host_pages {
            0 => None,
            pages => Some(Array::pinned(device, page_bytes * pages as usize)?),
        };
        Ok(Self {
            heads,
            layers: pools,
            host,
            load_pairs: Array::new(device, 2 * pages as usize)?,
            pairs: Array::new(device, 2 * host_pages.max(1) as usize)?,
            loads: Vec::new(),
            busy: false,
        })
    }

    /// Returns the number of bytes of KV state in a page, over all layers.
    pub(super) fn page_bytes(&self) -> usize {
        self.layer_bytes() * self.layers.len()
    }

    fn layer_bytes(&self) -> usize {
        self.heads.page() * size_of::<Bf16>()
    }

    pub(super) fn layer(&self, layer: usize) -> Part<'_, Bf16> {
        self.layers[layer].all()
    }

    pub(super) fn layer_mut(&mut self, layer: usize) -> PartMut<'_, Bf16> {
        self.layers[layer].all_mut()
    }

    /// Returns the list of the next step's copies from host memory to the device. The caller fills it with checked
    /// copies, each target page once.
    pub(super) fn loads(&mut self) -> &mut Vec<Load> {
        &mut self.loads
    }

    /// Begins a step: sends the list of its copies from host memory to the device. Makes computation wait for earlier
    /// copies, and these copies wait for earlier computation, because either may overwrite pages that the other reads.
    pub(super) fn begin_step(&mut self, device: &mut dyn Device) -> Result<(), Fault> {
        if self.busy {
            device.after(Queue::Copy, Queue::Compute)?;
            self.busy = false;
        }
        if !self.loads.is_empty() {
            let pairs: Vec<u32> = self
                .loads
                .iter()
                .flat_map(|load| [load.from.0, load.to.0])
                .collect();
            self.load_pairs.write(device, 0, &pairs)?;
            device.after(Queue::Compute, Queue::Copy)?;
        }
        Ok(())
    }

    /// Queues the step's copies from host memory to the device, for one layer, in the copy queue.
    pub(super) fn load(&mut self, device: &mut dyn Device, layer: usize) -> Result<(), Fault> {
        let (Some(host), false) = (&self.host, self.loads.is_empty()) else {
            return Ok(());
        };
        let bytes = self.layer_bytes();
        let runs = Runs {
            strides: [bytes * self.layers.len(), bytes],
            runs: 1,
            run: bytes,
            pitch: bytes,
        };
        let from = host.part(layer * bytes..host.len()).address();
        let to = self.layers[layer].all().address();
        let pairs = self.load_pairs.part(0..2 * self.loads.len());
        kernels::copy_pages(device, Queue::Copy, from, to, pairs, &runs)
    }

    /// Makes later work in the compute queue wait for the copies from host memory that have been queued so far.
    pub(super) fn loaded(&mut self, device: &mut dyn Device) -> Result<(), Fault> {
        if self.loads.is_empty() {
            return Ok(());
        }
        device.after(Queue::Copy, Queue::Compute)
    }

    pub(super) fn load_all(&mut self, device: &mut dyn Device) -> Result<(), Fault> {
        for layer in 0..self.layers.len() {
            self.load(device, layer)?;
        }
        self.loaded(device)
    }

    /// Queues copies of pages to host memory; each target page must occur once.
    pub(super) fn store(&mut self, device: &mut dyn Device, stores: &[Store]) -> Result<(), Fault> {
        let (Some(host), false) = (&self.host, stores.is_empty()) else {
            return Ok(());
        };
        if self.busy {
            // An earlier store may still be reading its list.
            device.after(Queue::Copy, Queue::Compute)?;
        }
        let pairs: Vec<u32> = stores
            .iter()
            .flat_map(|store| [store.from.0, store.to.0])
            .collect();
        self.pairs.write(device, 0, &pairs)?;
        device.after(Queue::Compute, Queue::Copy)?;
        let bytes = self.layer_bytes();
        let runs = Runs {
            strides: [bytes, bytes * self.layers.len()],
            runs: 1,
            run: bytes,
            pitch: bytes,
        };
        for (number, layer) in self.layers.iter().enumerate() {
            let to = host.part(number * bytes..host.len()).address();
            let pairs = self.pairs.part(0..pairs.len());
            kernels::copy_pages(device, Queue::Copy, layer.all().address(), to, pairs, &runs)?;
        }
        self.busy = true;
        Ok(())
    }

    /// Queues a copy of the KV state of the first `tokens` tokens of page `from` to page `to`, both on the device.
    pub(super) fn copy_slots(
        &mut self,
        device: &mut dyn Device,
        from: PageId,
        to: PageId,
        tokens: usize,
    ) -> Result<(), Fault> {
        if tokens == 0 {
            return Ok(());
        }
        if self.busy {
            device.after(Queue::Copy, Queue::Compute)?;
            self.busy = false;
        }
        self.pairs.write(device, 0, &[from.0, to.0])?;
        let slot = self.heads.head_dim * size_of::<Bf16>();
        let runs = Runs {
            strides: [self.layer_bytes(); 2],
            runs: 2 * self.heads.kv_heads,
            run: tokens * slot,
            pitch: self.heads.page_tokens * slot,
        };
        for layer in &self.layers {
            let pool = layer.all().address();
            kernels::copy_pages(
                device,
                Queue::Compute,
                pool,
                pool,
                self.pairs.part(0..2),
                &runs,
            )?;
        }
        Ok(())
    }

    /// Waits until the copy queue is empty and returns the bytes of a page in host memory.
    pub(super) fn host_page(
        &mut self,
        device: &mut dyn Device,
        page: HostPageId,
    ) -> Result<&mut [u8], Fault> {
        device.wait(Queue::Copy)?;
        self.busy = false;
        let bytes = self.page_bytes();
        let at = page.0 as usize * bytes;
        let host = self
            .host
            .as_mut()
            .ok_or_else(|| Fault::Refused("there is no host pool".to_owned()))?;
        // SAFETY: `pinned` made it, the device is alive, and only the copy queue, which is empty, uses the host pool.
        Ok(unsafe { host.host(at..at + bytes) })
    }
}
