//! Requests the likelihoods of right answers from the endpoint, and stores them in the run's `scores.jsonl`.

use super::kept::ResultFile;
use super::likelihood::{Forced, Likelihood};
use crate::client::{Client, Fault};
use anyhow::{Result, anyhow};
use indicatif::ProgressBar;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests the likelihood of one right answer.
///
/// # Errors
/// Returns a fault if there is no response, or if the log-probabilities in it do not cover the answer.
fn ask(forced: &Forced, client: &Client) -> Result<Likelihood, Fault> {
    let prompt = client.score(&forced.url, &forced.body)?.read;
    prompt.likelihood(&forced.answer).ok_or_else(|| {
        Fault::Refused(format!(
            "{}: the tokens that it reports do not end with the answer",
            forced.url
        ))
    })
}

/// Returns the reason why the endpoint at `url` does not report the log-probabilities of a prompt's tokens, tested with
/// the chat in `body`; `None` if it reports them.
///
/// # Errors
/// Returns an error if the endpoint does not answer.
pub(super) fn reason_unscored(client: &Client, body: &[u8], url: &str) -> Result<Option<String>> {
    match ask(&Forced::new(body, "Four.", url)?, client) {
        Ok(_) => Ok(None),
        Err(Fault::Refused(reason)) => Ok(Some(reason)),
        Err(fault) => Err(anyhow!(fault)),
    }
}

/// Returns the likelihoods of all right answers, in the order of `forced`; `None` for those that the endpoint refuses
/// to score. Requests only those that the `scores.jsonl` in `folder` does not contain, and adds them to it.
///
/// # Errors
/// Returns an error if the endpoint fails, or the file cannot be used. Likelihoods received before stay in the file.
pub(super) fn likelihoods(
    forced: Vec<Forced>,
    client: &Client,
    folder: &Path,
    concurrency: usize,
    bar: &ProgressBar,
) -> Result<Vec<Option<Likelihood>>> {
    let mut kept = ResultFile::<Likelihood>::open(&folder.join("scores.jsonl"))?;
    // The URL belongs to the key, since a gateway may change the body.
    let key = |forced: &Forced| super::kept::key(&[forced.url.as_bytes(), &forced.body].concat());
    let keys: Vec<String> = forced.iter().map(key).collect();
    let open = keys.iter().cloned().zip(forced).collect();
    let refused = AtomicU64::new(0);
    kept.ask(open, concurrency, bar, |forced| match ask(forced, client) {
        Ok(likelihood) => Ok(Some(likelihood)),
        Err(Fault::Refused(reason)) => {
            if refused.fetch_add(1, Ordering::Relaxed) == 0 {
                bar.suspend(|| eprintln!("not scored: {reason}"));
            }
            Ok(None)
        }
        Err(fault) => Err(anyhow!(fault).context(
            "the endpoint does not score answers; what it scored is kept, and the same command goes on from there",
        )),
    })?;
    let refused = refused.into_inner();
    if refused > 0 {
        eprintln!("warning: {refused} answers could not be scored; their questions do not count");
    }
    Ok(keys.iter().map(|key| kept.get(key).copied()).collect())
}
