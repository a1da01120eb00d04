//! Counters and histograms: their names, and what each request outcome adds to them.
//!
//! ```text
//! requests = ordered + unchanged + dry_run + sum of passed_<reason> + refused
//! ```
//!
//! Envoy shows them as `wasmcustom.<name>`, delayed at most until the VM's next tick (periodic timer callback). Errors
//! in defining or writing a metric are ignored, since counting must not fail a request.
//!
//! Metrics are sums over all tenants, so tenants must not be able to read them.

use foreword_ordering::cuts::Cut;
use foreword_ordering::head::{Diagnosis, HeadReport};
use foreword_ordering::{Arm, Entry, Release, Skip};

use crate::counter::{Counter, Histogram, metrics};
use crate::exchange::listed::Unlisted;
use crate::host::Host;
use crate::misses;
use crate::outcome::{HEAD_COUNTS, RequestOutcome, cut_counts, head_counts, reason};
use crate::usage::PromptUsage;

metrics! {
    |host|
    #[derive(Debug)]
    pub(crate) struct Metrics {
        /// Counter of all requests. Defined before all other counters, so that it is written after them: see
        /// `metric_buffer`.
        requests: Counter = "foreword_requests_total",
        ordered: Counter = "foreword_ordered_total",
        unchanged: Counter = "foreword_unchanged_total",
        dry_run: Counter = "foreword_dry_run_total",
        refused: Counter = "foreword_refused_total",
        /// With cache salts on: refused requests whose method and path are not on the configured lists of paths that
        /// are forwarded.
        unlisted_requests: Counter = "foreword_unlisted_requests_total",
        documents: Counter = "foreword_documents_total",
        matched_documents: Counter = "foreword_matched_documents_total",
        dropped_documents: Counter = "foreword_dropped_documents_total",
        deduplicated_documents: Counter = "foreword_deduplicated_documents_total",
        pinned_documents: Counter = "foreword_pinned_documents_total",
        numbered_hints: Counter = "foreword_numbered_hints_total",
        document_tokens: Counter = "foreword_document_tokens_total",
        matched_tokens: Counter = "foreword_matched_tokens_total",
        /// Requests in which the gateway changed the prompt's head (tools, system text, history). `heads_reported`
        /// counts those for which it only reports the changes that it would make.
        heads_applied: Counter = "foreword_heads_applied_total",
        heads_reported: Counter = "foreword_heads_reported_total",
        /// Sums of the counts in reports on changes to prompts' heads (tools, system text, history), in the order of
        /// [`head_counts`].
        heads: [Counter; HEAD_COUNTS] => head_counts(&HeadReport::default())
            .map(|(name, _)| Counter::define(host, &format!("foreword_{name}_total"))),
        /// Sums of the counts that describe the cache markers of prompts, in the order of [`cut_counts`].
        cuts: [Counter; 6] => cut_counts(&Cut::default())
            .map(|(name, _)| Counter::define(host, &format!("foreword_{name}_total"))),
        /// For each cause of a lost cached prefix, in the order of [`misses::COUNTED`]: the number of requests, and of
        /// prompt tokens lost.
        misses: Vec<[Counter; 2]> => misses::COUNTED
            .into_iter()
            .map(|(cause, segment)| {
                let cause = cause.name().replace('-', "_");
                let segment = misses::segment_name(segment);
                ["requests", "tokens"].map(|what| {
                    let name = format!("foreword_miss_{what}_{segment}_{cause}_total");
                    Counter::define(host, &name)
                })
            })
            .collect(),
        engine_prompt_tokens: Counter = "foreword_engine_prompt_tokens_total",
        engine_cached_tokens: Counter = "foreword_engine_cached_tokens_total",
        pub(crate) corrections: Counter = "foreword_corrections_total",
        pub(crate) feed_events: Counter = "foreword_feed_events_total",
        pub(crate) feed_key_mismatches: Counter = "foreword_feed_key_mismatches_total",
        /// Document tokens that would have matched engines' prefix caches if every request had been sent in its
        /// client's order.
        client_matched_tokens: Counter = "foreword_client_matched_tokens_total",
        arms: [(Arm, ArmCounters); 2] => Arm::ALL.map(|arm| (arm, ArmCounters::define(host, arm))),
        pub(crate) learnt_entries: Counter = "foreword_learnt_entries_total",
        pub(crate) lost_entries: Counter = "foreword_lost_entries_total",
        pub(crate) unpublished_updates: Counter = "foreword_untold_requests_total",
        /// Updates about cached prefixes sent to gateways of other proxies. The next two fields count those received
        /// from them and those lost on the way.
        pub(crate) sent_updates: Counter = "foreword_sent_updates_total",
        pub(crate) received_updates: Counter = "foreword_received_updates_total",
        pub(crate) lost_updates: Counter = "foreword_lost_updates_total",
        /// Requests forwarded with their original body, one counter for each reason. The reasons are words in the
        /// source, so their number is bounded.
        passed: Vec<(&'static str, Counter)> => Skip::REASONS
            .into_iter()
            .chain(reason::ALL)
            .map(|reason| {
                let name = format!("foreword_passed_{}_total", reason.replace('-', "_"));
                (reason, Counter::define(host, &name))
            })
            .collect(),
        /// Counters for bursts (simultaneous requests that begin with the same uncached documents): requests that lead
        /// one, requests held behind a leader, requests that would be held (mode `report`), and requests forwarded at
        /// once because no more can be held.
        bursts: [Counter; 4] => ["led", "held", "reported", "unheld"]
            .map(|what| Counter::define(host, &format!("foreword_burst_{what}_total"))),
        /// Requests that were held behind another one in a burst (simultaneous requests that begin with the same
        /// uncached documents) and then forwarded, by the reason of their release in the order of [`RELEASES`].
        releases: [Counter; 3] => RELEASES
            .map(|(_, why)| Counter::define(host, &format!("foreword_burst_released_{why}_total"))),
        /// Requests whose clients disconnected while the requests were held behind another one that computes the same
        /// documents.
        pub(crate) left: Counter = "foreword_burst_left_total",
        /// Model answers that were stored, and messages in later requests that were restored from stored answers.
        pub(crate) answers_kept: Counter = "foreword_answers_kept_total",
        pub(crate) messages_restored: Counter = "foreword_messages_restored_total",
        held_milliseconds: Histogram = "foreword_burst_held_milliseconds",
        ordering_microseconds: Histogram = "foreword_ordering_microseconds",
        documents_per_request: Histogram = "foreword_documents_per_request",
        engine_cached_percent: Histogram = "foreword_engine_cached_percent",
        matched_percent: Histogram = "foreword_matched_percent",
        vm_mebibytes: Histogram = "foreword_vm_mebibytes",
    }
}

/// The counters of one arm (treatment group) of an experiment.
#[derive(Debug, Clone, Copy)]
struct ArmCounters {
    requests: Counter,
    document_tokens: Counter,
    matched_tokens: Counter,
    /// Prompt tokens of those responses that report how many tokens were cached.
    engine_prompt_tokens: Counter,
    engine_cached_tokens: Counter,
}

impl ArmCounters {
    fn define(host: &impl Host, arm: Arm) -> Self {
        let counter = |what| {
            let name = format!("foreword_arm_{}_{what}_total", arm.name());
            Counter::define(host, &name)
        };
        Self {
            requests: counter("requests"),
            document_tokens: counter("document_tokens"),
            matched_tokens: counter("matched_tokens"),
            engine_prompt_tokens: counter("engine_prompt_tokens"),
            engine_cached_tokens: counter("engine_cached_tokens"),
        }
    }
}

impl Metrics {
    /// Counts a request by its outcome. Must be called once for each request.
    pub(crate) fn count(&self, host: &impl Host, outcome: &RequestOutcome) {
        self.requests.add(host, 1);
        let (report, arm) = match outcome {
            RequestOutcome::Ordered { report, arm } => {
                self.ordered.add(host, 1);
                (report, *arm)
            }
            RequestOutcome::Unchanged { report, arm } => {
                self.unchanged.add(host, 1);
                (report, *arm)
            }
            RequestOutcome::DryRun { report, .. } => {
                self.dry_run.add(host, 1);
                (report, None)
            }
            RequestOutcome::Passed(reason) => return self.passed(reason).add(host, 1),
            RequestOutcome::Refused(reason) => {
                if Unlisted::REASONS.contains(reason) {
                    self.unlisted_requests.add(host, 1);
                }
                return self.refused.add(host, 1);
            }
        };
        self.documents.add(host, report.documents.into());
        self.matched_documents.add(host, report.matched.into());
        self.dropped_documents.add(host, report.dropped.into());
        self.deduplicated_documents
            .add(host, report.deduplicated.into());
        self.pinned_documents.add(host, report.pinned.into());
        self.numbered_hints.add(host, report.numbered.into());
        self.document_tokens.add(host, report.document_tokens);
        self.matched_tokens.add(host, report.matched_tokens);
        self.client_matched_tokens
            .add(host, report.client_matched_tokens);
        self.documents_per_request
            .record(host, report.documents.into());
        let percent = report.matched_tokens.saturating_mul(100);
        if let Some(percent) = percent.checked_div(report.document_tokens) {
            self.matched_percent.record(host, percent);
        }
        if let Some(counters) = self.arm(arm) {
            counters.requests.add(host, 1);
            counters.document_tokens.add(host, report.document_tokens);
            counters.matched_tokens.add(host, report.matched_tokens);
        }
    }

    /// Counts the changes to a prompt's head (tools, system text, history), whether they were made or only reported.
    /// Counts nothing if there are none.
    pub(crate) fn head(&self, host: &impl Host, head: &HeadReport) {
        if head.is_empty() {
            return;
        }
        let requests = match head.applied {
            true => self.heads_applied,
            false => self.heads_reported,
        };
        requests.add(host, 1);
        for (counter, (_, count)) in self.heads.iter().zip(head_counts(head)) {
            counter.add(host, count.into());
        }
    }

    /// Counts the cache markers of a prompt. Does nothing if `cut` is `None`.
    pub(crate) fn marked(&self, host: &impl Host, cut: Option<&Cut>) {
        let Some(cut) = cut else { return };
        for (counter, (_, count)) in self.cuts.iter().zip(cut_counts(cut)) {
            counter.add(host, count);
        }
    }

    /// Counts a request whose cached prefix was lost, and the lost tokens, by the cause that the diagnosis found.
    /// Counts nothing if no prefix was lost.
    pub(crate) fn missed(&self, host: &impl Host, diagnosis: &Diagnosis) {
        let counters = misses::counted(diagnosis).and_then(|at| self.misses.get(at));
        if let Some([requests, tokens]) = counters {
            requests.add(host, 1);
            tokens.add(host, diagnosis.lost_tokens);
        }
    }

    /// Records the time that ordering took for one request, whatever the result: from parsing the body on, including
    /// lock waits and the time to apply other workers' updates about cached prefixes.
    pub(crate) fn time(&self, host: &impl Host, nanoseconds: u64) {
        self.ordering_microseconds.record(host, nanoseconds / 1_000);
    }

    /// Records the size of the Wasm VM's memory in mebibytes, as one histogram sample. Records nothing if the filter
    /// does not run in a VM.
    pub(crate) fn memory(&self, host: &impl Host) {
        if let Some(bytes) = host.memory_bytes() {
            self.vm_mebibytes.record(host, bytes >> 20);
        }
    }

    /// Adds the engine's report on the prompt tokens of one request: their number and how many were cached. The tokens
    /// also count for `arm`, the chat's arm in an experiment, if the response reports the cached ones.
    pub(crate) fn counted(&self, host: &impl Host, arm: Option<Arm>, counted: PromptUsage) {
        self.engine_prompt_tokens.add(host, counted.prompt);
        if let (Some(counters), Some(cached)) = (self.arm(arm), counted.cached) {
            counters.engine_prompt_tokens.add(host, counted.prompt);
            counters.engine_cached_tokens.add(host, cached);
        }
        let Some(cached) = counted.cached else { return };
        self.engine_cached_tokens.add(host, cached);
        let percent = cached.saturating_mul(100).checked_div(counted.prompt);
        if let Some(percent) = percent {
            self.engine_cached_percent.record(host, percent);
        }
    }

    /// Counts a request by its role in a burst (simultaneous requests that begin with the same uncached documents).
    /// `holds` is false in the mode `report`, which holds none and counts those that would be held.
    pub(crate) fn entered(&self, host: &impl Host, entry: Entry, holds: bool) {
        let [led, held, reported, unheld] = self.bursts;
        let counter = match entry {
            Entry::Free => return,
            Entry::Leads(_) => led,
            Entry::Held(_) => held,
            Entry::Unheld if holds => unheld,
            Entry::Unheld => reported,
        };
        counter.add(host, 1);
    }

    /// Counts a request that was held for `held_ms` milliseconds behind another one that computes the same documents,
    /// and is now forwarded for the reason `why`.
    pub(crate) fn released(&self, host: &impl Host, why: Release, held_ms: u64) {
        let mut counters = RELEASES.iter().zip(&self.releases);
        if let Some((_, counter)) = counters.find(|((known, _), _)| *known == why) {
            counter.add(host, 1);
        }
        self.held_milliseconds.record(host, held_ms);
    }

    fn arm(&self, arm: Option<Arm>) -> Option<&ArmCounters> {
        let mut arms = self.arms.iter();
        let (_, counters) = arms.find(|(known, _)| Some(*known) == arm)?;
        Some(counters)
    }

    fn passed(&self, reason: &str) -> Counter {
        let known = self.passed.iter().find(|(known, _)| *known == reason);
        known.map_or(Counter::default(), |(_, counter)| *counter)
    }
}

/// The reasons for which a request that was held behind another one in a burst (simultaneous requests that begin with
/// the same uncached documents) is forwarded, with their names in metrics.
const RELEASES: [(Release, &str); 3] = [
    (Release::Answered, "answered"),
    (Release::Failed, "failed"),
    (Release::Expired, "expired"),
];

#[cfg(test)]
mod tests {
    use foreword_ordering::Report;

    use super::*;
    use crate::outcome::REPORT;
    use crate::tests::scripted::ScriptedHost;

    #[test]
    fn an_ordered_request_adds_its_counts_and_never_a_zero() {
        let host = ScriptedHost::default();
        let metrics = Metrics::define(&host);
        let outcome = RequestOutcome::Ordered {
            report: REPORT,
            arm: None,
        };
        metrics.count(&host, &outcome);
        assert_eq!(host.counter("foreword_requests_total"), 1);
        assert_eq!(host.counter("foreword_ordered_total"), 1);
        assert_eq!(host.counter("foreword_documents_total"), 5);
        assert_eq!(host.counter("foreword_matched_documents_total"), 3);
        assert_eq!(host.counter("foreword_matched_tokens_total"), 700);
        assert_eq!(host.counter("foreword_dropped_documents_total"), 0);
        assert_eq!(host.counter("foreword_numbered_hints_total"), 0);
        assert_eq!(host.samples("foreword_documents_per_request"), [5]);
        assert_eq!(host.samples("foreword_matched_percent"), [77]);
        assert_eq!(host.counter("foreword_arm_ordered_requests_total"), 0);
        let numbered = RequestOutcome::Ordered {
            report: Report {
                numbered: true,
                ..REPORT
            },
            arm: None,
        };
        metrics.count(&host, &numbered);
        assert_eq!(host.counter("foreword_numbered_hints_total"), 1);
        assert_eq!(host.refused_calls(), 0);
    }

    #[test]
    fn arms_and_dry_runs_are_counted_apart() {
        let host = ScriptedHost::default();
        let metrics = Metrics::define(&host);
        for arm in [Arm::Control, Arm::Ordered, Arm::Control] {
            let outcome = RequestOutcome::Unchanged {
                report: REPORT,
                arm: Some(arm),
            };
            metrics.count(&host, &outcome);
        }
        metrics.count(
            &host,
            &RequestOutcome::DryRun {
                report: REPORT,
                as_sent: Report {
                    matched_tokens: 60,
                    ..REPORT
                },
            },
        );
        assert_eq!(host.counter("foreword_arm_control_requests_total"), 2);
        assert_eq!(
            host.counter("foreword_arm_control_document_tokens_total"),
            1_800
        );
        assert_eq!(
            host.counter("foreword_arm_ordered_matched_tokens_total"),
            700
        );
        assert_eq!(host.counter("foreword_dry_run_total"), 1);
        assert_eq!(host.counter("foreword_client_matched_tokens_total"), 4 * 60);
        assert_eq!(host.counter("foreword_requests_total"), 4);
    }

    #[test]
    fn a_reason_becomes_a_counter_of_its_own() {
        let host = ScriptedHost::default();
        let metrics = Metrics::define(&host);
        metrics.count(&host, &RequestOutcome::Passed("too-large"));
        metrics.count(&host, &RequestOutcome::Passed("too-large"));
        metrics.count(&host, &RequestOutcome::Passed("no-documents"));
        metrics.count(&host, &RequestOutcome::Passed("no-tenant"));
        assert_eq!(host.counter("foreword_passed_too_large_total"), 2);
        assert_eq!(host.counter("foreword_passed_no_documents_total"), 1);
        assert_eq!(host.counter("foreword_passed_no_tenant_total"), 1);
        assert_eq!(host.counter("foreword_requests_total"), 4);
    }

    #[test]
    fn an_unlisted_request_is_counted_as_such_and_as_refused() {
        let host = ScriptedHost::default();
        let metrics = Metrics::define(&host);
        metrics.count(&host, &RequestOutcome::Refused("unlisted-path"));
        metrics.count(&host, &RequestOutcome::Refused("upgrade"));
        metrics.count(&host, &RequestOutcome::Refused("too-large"));
        assert_eq!(host.counter("foreword_unlisted_requests_total"), 2);
        assert_eq!(host.counter("foreword_refused_total"), 3);
        assert_eq!(host.counter("foreword_requests_total"), 3);
    }

    #[test]
    fn a_proxy_without_metrics_costs_nothing_but_the_figures() {
        let host = ScriptedHost::default();
        host.refuse_metrics();
        let metrics = Metrics::define(&host);
        metrics.count(&host, &RequestOutcome::Passed("too-large"));
        metrics.time(&host, 5_000);
        assert_eq!(host.counter("foreword_requests_total"), 0);
    }
}
