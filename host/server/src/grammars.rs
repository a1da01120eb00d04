//! Prepares grammars for constrained answers under limits of their own, so that expensive grammars delay only other
//! requests with grammars.
//!
//! A limited number of grammars is prepared at once, each until its work ends, which the bounds of grammars ensure
//! (`host/engine/src/text/{grammar,schema}.rs`). If the request ends first, at its deadline or because its client
//! disconnected, the work is cancelled at its next check. A limited number of requests waits to begin; others are
//! refused with 429. `/readyz` does not depend on this, since chats without a grammar are still served;
//! `foreword_grammars_total` counts the outcomes.

use crate::failure::{Failure, SOON};
use crate::metrics::Outcomes;
use crate::model::{Model, UnpreparedGrammar};
use foreword_engine::sampling::Constraint;
use foreword_engine::text::Cancel;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Limits the number of grammars that the server prepares at once, and the number of requests that wait for that.
#[derive(Debug)]
pub struct Admission {
    places: Arc<Semaphore>,
    /// Permits for requests whose grammar is being prepared or waits for it.
    entered: Arc<Semaphore>,
    limit: u32,
    counts: Outcomes,
}

impl Admission {
    /// Returns an admission that prepares one grammar at once for every four cores, rounded up. `counts` counts the
    /// outcomes.
    pub(crate) fn new(cores: usize, counts: Outcomes) -> Self {
        Self::with(cores.div_ceil(4), WAITING, counts)
    }

    fn with(places: usize, waiting: u32, counts: Outcomes) -> Self {
        let entered = places + waiting as usize;
        Self {
            places: Arc::new(Semaphore::new(places)),
            entered: Arc::new(Semaphore::new(entered)),
            limit: u32::try_from(entered).unwrap_or(u32::MAX),
            counts,
        }
    }

    /// Waits until fewer than the permitted number of grammars are being prepared, and prepares this one. Dropping the
    /// future cancels the work. Returns [`Failure::QueueFull`] if too many requests wait.
    pub(super) async fn prepare(
        &self,
        model: Arc<Model>,
        wanted: UnpreparedGrammar,
    ) -> Result<Constraint, Failure> {
        self.run(move |cancel| model.constraint(&wanted, cancel))
            .await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cancel) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let mut ending = Ending {
            counts: &self.counts,
            cancel: Cancel::default(),
            outcome: "cancelled",
        };
        let Ok(_entered) = self.entered.try_acquire() else {
            ending.outcome = "busy";
            return Err(Failure::QueueFull {
                limit: self.limit,
                retry_after: SOON,
            });
        };
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.map_err(Failure::internal)?;
        let cancel = ending.cancel.clone();
        let outcome = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(&cancel)
        })
        .await
        .map_err(Failure::internal)
        .and_then(|outcome| outcome);
        ending.outcome = match &outcome {
            Ok(_) => "prepared",
            Err(Failure::Internal { .. }) => "failed",
            Err(_) => "refused",
        };
        outcome
    }
}

/// Ends a request's preparation of a grammar: on drop, counts the outcome and cancels the work if it still runs.
struct Ending<'a> {
    counts: &'a Outcomes,
    cancel: Cancel,
    outcome: &'static str,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.counts.count(self.outcome);
    }
}

/// Maximum number of requests that wait until their grammar can be prepared.
const WAITING: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn who_is_not_admitted_is_told_to_come_back() {
        let admission = Admission::with(1, 1, Outcomes::default());
        let (done, wait) = mpsc::channel::<()>();
        let first = admission.run(move |_| {
            let _ = wait.recv();
            Ok(1)
        });
        let second = admission.run(|_| Ok(2));
        let third = async {
            let failure = admission.run(|_| Ok(3)).await.unwrap_err();
            assert!(
                matches!(failure, Failure::QueueFull { limit: 2, .. }),
                "{failure}"
            );
            drop(done);
        };
        let (first, second, ()) = tokio::join!(first, second, third);
        assert_eq!((first.unwrap(), second.unwrap()), (1, 2));
    }

    #[tokio::test]
    async fn who_leaves_cancels_the_work_and_frees_the_place() {
        let admission = Admission::with(1, 1, Outcomes::default());
        let (started, begun) = tokio::sync::oneshot::channel();
        let (ended, end) = tokio::sync::oneshot::channel();
        let work = admission.run(move |cancel| {
            let _ = started.send(());
            while !cancel.is_cancelled() {
                std::thread::yield_now();
            }
            let _ = ended.send(());
            Ok(())
        });
        tokio::select! {
            _ = work => panic!("nothing cancelled it"),
            _ = begun => {}
        }
        end.await.unwrap();
        admission.run(|_| Ok(())).await.unwrap();
    }
}
