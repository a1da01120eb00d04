//! A wrapper of any backend, with faults on demand.
//!
//! Each call is first shown to a script, which says what goes wrong. A lost device really loses its pages: the wrapper
//! overwrites every one of them with bytes that are not numbers, by loads from a host page that it keeps for itself.
//! Host pages stay unchanged.
//!
//! Included by path in both unit tests and integration tests, hence `pub`.

use foreword_engine::backend::{
    Backend, BackendError, BackendShape, HostPageId, Load, PageId, Step, Store,
};
use std::sync::mpsc::Receiver;

/// The call that the backend receives.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    Run(&'a Step),
    CopySlots,
    Store(&'a [Store]),
    HostPage(HostPageId),
}

/// What goes wrong in a call.
pub enum Fault {
    /// The device fails before it has done anything.
    Device,
    /// The device is lost with its memory. The next call finds it working.
    Lost,
    Panic,
    /// The call blocks until a message comes or the sender is dropped, and then succeeds.
    Stuck(Receiver<()>),
}

type Script = Box<dyn FnMut(Call<'_>) -> Option<Fault> + Send>;

/// A backend with scripted faults. It has one host page less than the backend that it wraps.
pub struct FaultyBackend<B> {
    backend: B,
    script: Script,
}

impl<B: Backend> FaultyBackend<B> {
    /// Wraps `backend`, which must have a host pool.
    pub fn new(backend: B, script: impl FnMut(Call<'_>) -> Option<Fault> + Send + 'static) -> Self {
        assert!(
            backend.shape().host_pages > 0,
            "a device is lost by way of a host page"
        );
        Self {
            backend,
            script: Box::new(script),
        }
    }

    fn consult(&mut self, call: Call<'_>) -> Result<(), BackendError> {
        match (self.script)(call) {
            None => Ok(()),
            Some(Fault::Device) => Err(BackendError::Device("out of luck".to_owned())),
            Some(Fault::Panic) => panic!("out of patience"),
            Some(Fault::Stuck(release)) => {
                let _ = release.recv();
                Ok(())
            }
            Some(Fault::Lost) => {
                let from = HostPageId(self.shape().host_pages);
                self.backend.host_page_mut(from)?.fill(0xff);
                let pages = (0..self.backend.shape().pages).map(PageId);
                let step = Step {
                    loads: pages.map(|to| Load { from, to }).collect(),
                    ..Step::default()
                };
                self.backend.run(&step, &mut Vec::new())?;
                Err(BackendError::Lost("out of this world".to_owned()))
            }
        }
    }

    fn check(&self, page: HostPageId) -> Result<(), BackendError> {
        if page.0 < self.shape().host_pages {
            Ok(())
        } else {
            Err(BackendError::no_host_page(page, self.shape().host_pages))
        }
    }
}

impl<B: Backend> Backend for FaultyBackend<B> {
    fn shape(&self) -> BackendShape {
        let shape = self.backend.shape();
        BackendShape {
            host_pages: shape.host_pages - 1,
            ..shape
        }
    }

    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        step.loads
            .iter()
            .try_for_each(|load| self.check(load.from))?;
        self.consult(Call::Run(step))?;
        self.backend.run(step, logits)
    }

    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError> {
        self.consult(Call::CopySlots)?;
        self.backend.copy_slots(from, to, tokens)
    }

    fn store(&mut self, stores: &[Store]) -> Result<(), BackendError> {
        stores.iter().try_for_each(|store| self.check(store.to))?;
        self.consult(Call::Store(stores))?;
        self.backend.store(stores)
    }

    fn host_page(&mut self, page: HostPageId) -> Result<&[u8], BackendError> {
        self.check(page)?;
        self.consult(Call::HostPage(page))?;
        self.backend.host_page(page)
    }

    fn host_page_mut(&mut self, page: HostPageId) -> Result<&mut [u8], BackendError> {
        self.check(page)?;
        self.consult(Call::HostPage(page))?;
        self.backend.host_page_mut(page)
    }
}
