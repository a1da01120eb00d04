//! The result of one of doctor's checks: a status, what was observed, and a remedy.

use foreword_report::words::grouped;
use serde::Serialize;
use std::fmt::Write;

foreword_ordering::named! {
    /// The status of a [`Finding`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Status {
        /// Nothing was found that prevents reuse of cached prompt prefixes.
        Ok = "ok",
        /// Cached prompt prefixes are reused less than they could be, or only under a condition.
        Warn = "warn",
        /// Cached prompt prefixes are not reused, or the engine or gateway does not behave as Foreword assumes.
        Fail = "fail",
        /// The check could not run; the detail says why.
        Skipped = "skipped",
    }
}

/// The result of one check of `foreword doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check; a check that runs once for each API has `/` and the API's name appended.
    pub check: String,
    /// The result of the check: it passed, found a problem, or could not run.
    pub status: Status,
    /// A sentence about the requests that were sent and what was observed.
    pub detail: String,
    /// The change that mends the problem, such as a line of configuration; empty if there is nothing to change.
    pub remedy: String,
}

impl Finding {
    pub(super) fn ok(detail: impl Into<String>) -> Self {
        Self::new(Status::Ok, detail, "")
    }

    pub(super) fn warn(detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Status::Warn, detail, remedy)
    }

    pub(super) fn fail(detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Status::Fail, detail, remedy)
    }

    pub(super) fn skipped(detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Status::Skipped, detail, remedy)
    }

    /// Returns a finding with the status [`Status::Skipped`], for a check that could not run and has no remedy.
    pub(super) fn unknown(detail: impl Into<String>) -> Self {
        Self::skipped(detail, "")
    }

    /// Returns a finding whose check has no name yet; [`Finding::named`] adds it.
    fn new(status: Status, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            check: String::new(),
            status,
            detail: detail.into(),
            remedy: remedy.into(),
        }
    }

    pub(super) fn named(self, check: impl Into<String>) -> Self {
        let check = check.into();
        Self { check, ..self }
    }
}

/// All findings of one run of `foreword doctor`, and what it cost.
#[derive(Clone, Debug, Serialize)]
pub struct Examination {
    /// The engine's URL.
    pub url: String,
    /// The model that was examined.
    pub model: String,
    /// Number of requests sent.
    pub requests: u64,
    /// Number of tokens of all prompts sent, as the engine counts them.
    pub prompt_tokens: u64,
    /// Seconds from the first request to the last answer, rounded to milliseconds.
    pub seconds: f64,
    /// One finding for each check. A check comes after the checks on which it depends.
    pub findings: Vec<Finding>,
}

impl Examination {
    /// Returns whether any check has the status [`Status::Fail`].
    #[must_use]
    pub fn has_failure(&self) -> bool {
        (self.findings.iter()).any(|finding| finding.status == Status::Fail)
    }

    pub(super) fn to_table(&self) -> String {
        let width = self.findings.iter().map(|finding| finding.check.len());
        let width = width.max().unwrap_or_default();
        let mut table = String::new();
        for finding in &self.findings {
            let (check, status) = (&finding.check, finding.status.name());
            let _ = writeln!(table, "{status:<7}  {check:<width$}  {}", finding.detail);
            if !finding.remedy.is_empty() {
                let _ = writeln!(table, "{:<7}  {:<width$}  -> {}", "", "", finding.remedy);
            }
        }
        let statuses = || self.findings.iter().map(|finding| finding.status);
        let count = |status| statuses().filter(|one| *one == status).count();
        let _ = writeln!(
            table,
            "\n{} ok, {} to look at, {} failed, {} skipped; {} requests, {} prompt tokens, {:.1} s",
            count(Status::Ok),
            count(Status::Warn),
            count(Status::Fail),
            count(Status::Skipped),
            grouped(self.requests),
            grouped(self.prompt_tokens),
            self.seconds,
        );
        table
    }
}
