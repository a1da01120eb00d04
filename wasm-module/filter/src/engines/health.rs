//! The health and load of one engine: a value in the proxy's shared data, common to all workers.

use super::DispatchResult;
use crate::host::{Host, HostError};
use crate::swap;

/// The health and load of one engine, as all workers of this proxy share them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct EngineHealth {
    /// Estimated tokens that the engine has yet to compute for this proxy's requests in flight.
    outstanding: u64,
    /// Time of the last change of `outstanding`, in milliseconds.
    changed_ms: u64,
    /// Number of failed requests since the engine's last response.
    failures: u64,
    /// Time in milliseconds until which the engine receives no requests because of a failed one.
    out_until_ms: u64,
    /// Estimated tokens that the engine has yet to compute for requests through other proxies, as these report.
    elsewhere: u64,
    /// Time at which other proxies' reports last set `elsewhere`, in milliseconds.
    elsewhere_ms: u64,
}

impl EngineHealth {
    pub(super) fn read<H: Host>(host: &H, key: &str) -> Result<(Self, u32), HostError> {
        let (fields, number) = swap::numbers(host, key, NO_STATE)?;
        let [
            outstanding,
            changed_ms,
            failures,
            out_until_ms,
            elsewhere,
            elsewhere_ms,
        ] = fields;
        let state = Self {
            outstanding,
            changed_ms,
            failures,
            out_until_ms,
            elsewhere,
            elsewhere_ms,
        };
        Ok((state, number))
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        swap::bytes([
            self.outstanding,
            self.changed_ms,
            self.failures,
            self.out_until_ms,
            self.elsewhere,
            self.elsewhere_ms,
        ])
    }

    /// Returns the tokens that the engine has yet to compute for this proxy's requests. Returns 0 if the number has not
    /// changed for [`STALE_MS`] (60 s): a worker that ended never subtracts its own requests.
    pub(super) fn outstanding(self, now_ms: u64) -> u64 {
        if now_ms.abs_diff(self.changed_ms) > STALE_MS {
            0
        } else {
            self.outstanding
        }
    }

    /// Returns the tokens that the engine has yet to compute for requests through other proxies, as these last
    /// reported. Returns 0 if the number was last set more than [`ELSEWHERE_STALE_MS`] (5 s) ago: the worker that
    /// receives the reports may have ended.
    pub(super) fn elsewhere(self, now_ms: u64) -> u64 {
        if now_ms.abs_diff(self.elsewhere_ms) > ELSEWHERE_STALE_MS {
            0
        } else {
            self.elsewhere
        }
    }

    pub(super) fn set_elsewhere(&mut self, now_ms: u64, tokens: u64) {
        self.elsewhere = tokens;
        self.elsewhere_ms = now_ms;
    }

    /// Returns whether the engine may be chosen: it has responded since the last failed request, or the pause after the
    /// failure is over.
    pub(super) fn is_available(self, now_ms: u64) -> bool {
        self.failures == 0
            || now_ms >= self.out_until_ms
            // The clock was set back.
            || self.out_until_ms.saturating_sub(now_ms) > LONGEST_PAUSE_MS
    }

    pub(super) fn send(&mut self, now_ms: u64, tokens: u64) {
        self.outstanding = self.outstanding(now_ms).saturating_add(tokens);
        self.changed_ms = now_ms;
        if self.failures > 0 {
            // This request probes the engine; others wait for its result, or another pause.
            self.out_until_ms = now_ms.saturating_add(self.pause());
        }
    }

    pub(super) fn settle(&mut self, now_ms: u64, tokens: u64, result: DispatchResult) {
        self.outstanding = self.outstanding(now_ms).saturating_sub(tokens);
        self.changed_ms = now_ms;
        match result {
            DispatchResult::Answered => self.failures = 0,
            DispatchResult::Abandoned => {}
            DispatchResult::Failed => {
                self.out_until_ms = now_ms.saturating_add(self.pause());
                self.failures = self.failures.saturating_add(1);
            }
        }
    }

    /// Returns the time, in milliseconds, for which the engine is not chosen after a failed request, or while a request
    /// probes it: [`FIRST_PAUSE_MS`], doubled for each failure that is recorded since the engine's last response, up to
    /// [`LONGEST_PAUSE_MS`].
    fn pause(self) -> u64 {
        let doublings = u32::try_from(self.failures)
            .unwrap_or(u32::MAX)
            .min(MAX_DOUBLINGS);
        (FIRST_PAUSE_MS << doublings).min(LONGEST_PAUSE_MS)
    }
}

/// Version of the layout of engines' state in shared data. A build with another version uses other keys.
pub(super) const LAYOUT: &str = "2";

const STALE_MS: u64 = 60_000;
const ELSEWHERE_STALE_MS: u64 = 5_000;
const FIRST_PAUSE_MS: u64 = 1_000;
const LONGEST_PAUSE_MS: u64 = 30_000;
const MAX_DOUBLINGS: u32 = 5;
const NO_STATE: u32 = 203;
