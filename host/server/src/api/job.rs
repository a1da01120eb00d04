//! A submitted request with everything needed to deliver its answer, complete or streamed.

use super::shape::Shape;
use crate::answer::{Answer, Reading, Record, TimeLimit};
use crate::gate::Pass;
use crate::model::Model;
use foreword_engine::engine::{Generation, Request};
use std::sync::Arc;

/// A submitted generation with everything that its answer needs.
pub(super) struct Job {
    pub(super) model: Arc<Model>,
    pub(super) shape: Shape,
    pub(super) generation: Generation,
    /// Requests of the other choices.
    pub(super) waiting: Vec<Request>,
    pub(super) reading: Reading,
    pub(super) passes: Vec<Pass>,
    pub(super) time: TimeLimit,
    pub(super) record: Record,
}

impl Job {
    /// Starts the answer; returns it with its shape.
    pub(super) fn start(self, model: &Model) -> (Answer<'_>, Shape) {
        let answer = Answer::new(
            model,
            self.generation,
            self.waiting,
            &self.reading,
            self.passes,
            self.time,
            self.record,
        );
        (answer, self.shape)
    }
}
