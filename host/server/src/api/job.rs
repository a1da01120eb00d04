//! What stands between a submitted request and its answer, whole or streamed.

use super::shape::Shape;
use crate::answer::{Answer, Reading, Record, TimeLimit};
use crate::gate::Pass;
use crate::model::Model;
use foreword_engine::engine::{Generation, Request};
use std::sync::Arc;

/// A submitted generation with all that its answer needs.
pub(super) struct Job {
    pub(super) model: Arc<Model>,
    pub(super) shape: Shape,
    pub(super) generation: Generation,
    /// The other choices.
    pub(super) waiting: Vec<Request>,
    pub(super) reading: Reading,
    pub(super) passes: Vec<Pass>,
    pub(super) time: TimeLimit,
    pub(super) record: Record,
}

impl Job {
    /// The answer, and the shape that it takes.
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
