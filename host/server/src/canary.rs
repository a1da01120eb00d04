//! Runs blocking work with a semaphore's permit, and detects when permits are no longer given back.

use crate::failure::Failure;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Detects that a semaphore's permits are no longer given back. While none is free, a probe (at most one) waits for
/// one; the time that it has waited tells for how long none has been given back.
#[derive(Debug, Default)]
pub struct Canary(Arc<Mutex<Option<Instant>>>);

impl Canary {
    /// Returns how long the pending probe has waited for a permit; zero if there is no pending probe. Starts a probe if
    /// there is none and no permit is free.
    pub fn waits(&self, permits: &Arc<Semaphore>) -> Duration {
        let mut since = self.0.lock();
        if let Some(since) = *since {
            return since.elapsed();
        }
        if permits.available_permits() == 0 {
            *since = Some(Instant::now());
            let (since, permits) = (Arc::clone(&self.0), Arc::clone(permits));
            // It ends with a permit, since every holder gives its permit back, or with the runtime.
            tokio::spawn(async move {
                let _permit = permits.acquire().await;
                *since.lock() = None;
            });
        }
        Duration::ZERO
    }
}

/// Runs `work` on a blocking thread, after waiting for one of `permits`. If the caller is dropped meanwhile, running
/// work continues and keeps its permit until it ends.
pub(crate) async fn blocking<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let permit = Arc::clone(permits).acquire_owned().await;
    let permit = permit.map_err(Failure::internal)?;
    let work = move || {
        let _permit = permit;
        work()
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(Failure::internal)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn workers_are_missed_when_none_of_them_comes_back() {
        let canary = Canary::default();
        let permits = Arc::new(Semaphore::new(1));
        assert_eq!(canary.waits(&permits), Duration::ZERO);
        let held = Arc::clone(&permits).acquire_owned().await.unwrap();
        for seconds in [0, 5, 10] {
            assert_eq!(canary.waits(&permits), Duration::from_secs(seconds));
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        drop(held);
        // The canary gets the permit and gives it back.
        let _held = permits.acquire().await.unwrap();
        assert_eq!(canary.waits(&permits), Duration::ZERO);
    }
}
