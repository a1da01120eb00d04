//! Rewrites one request for the engine with the lowest cost.
//!
//! ```text
//!   recall ─▶ choose ─▶ write ─▶ record
//!     │         │         │         └─ the tree and the memory of chats record the forwarded request only
//!     │         │         └─ edits and salt become a body
//!     │         └─ arranged for each engine: the one with the lowest cost is chosen
//!     └─ the recorded messages of the chat, and its previous engine
//! ```
//!
//! Arranging a request returns a record, and only this record changes state. Another worker, a dry run and an
//! experiment's control arm apply other records of the same kind.

use super::options::{Rewrite, RewriteOptions, Trial};
use super::tenants::TenantState;
use crate::arrangement::DistinctDocuments;
use crate::body::edit::{self, Edit};
use crate::body::{Parsed, Skip};
use crate::config::Config;
use crate::conversation::memory::{AddedMessage, Memory, Moving, Path};
use crate::document::estimate_tokens;
use crate::engines::{self, EngineCandidate, EngineId, RoutingCost};
use crate::experiment::Arm;
use crate::head::HeadReport;
use crate::head::decision::Decision;
use crate::path::SentPath;
use crate::peer_update::{About, ChatContinuation, OrderingRecord, SentRun};
use crate::policy::Policy;
use crate::request::{self, HeadWords, OrderingMode, Report};
use crate::tenant::Tenant;
use crate::trees::Trees;
use smallvec::SmallVec;

/// One request while it is being rewritten, with everything about it that does not change.
pub(super) struct Rewriting<'r> {
    pub(super) config: &'r Config,
    pub(super) options: &'r RewriteOptions<'r>,
    pub(super) tenant: Tenant<'r>,
    pub(super) parsed: &'r Parsed<'r>,
    /// The changes to make to the prompt's head (tools, system text); `None` if none are made.
    pub(super) head: Option<&'r Decision<'r>>,
    pub(super) arm: Option<Arm>,
}

/// In a dry run, the report on the documents and the runs of documents that would have been forwarded if the computed
/// order were applied; otherwise `None`.
type DryRunResult = Option<(Report, Vec<SentRun>)>;

impl<'r> Rewriting<'r> {
    /// Returns the arm of the experiment (an A/B test) to which the chat belongs; `None` outside an experiment.
    pub(super) fn arm(
        options: &RewriteOptions<'_>,
        tenant: Tenant<'_>,
        parsed: &Parsed<'_>,
    ) -> Option<Arm> {
        match options.trial {
            Trial::Experiment(experiment) => Some(experiment.arm(tenant.name, parsed.start())),
            Trial::None | Trial::DryRun => None,
        }
    }

    /// Arranges (orders) the request's documents for each engine on offer, chooses the engine with the lowest cost,
    /// writes the body, and records the request in `state`.
    ///
    /// # Errors
    /// Returns [`Skip::NoDocuments`] if the request has neither documents nor other changes; the chat is recorded
    /// anyway.
    pub(super) fn run(&self, state: &mut TenantState) -> Result<Rewrite, Skip> {
        let path = self.recall(&state.memory);
        let choices = self.choices(&state.memory, &path);
        let TenantState {
            trees,
            policy,
            memory,
            ..
        } = &mut *state;
        let mut send =
            |engine, mode| self.send(trees, policy.as_mut(), memory, &path, engine, mode);
        let (engine, sent) = self.choose(&choices, &mut send).ok_or(Skip::NoDocuments)?;
        let is_dry = matches!(self.options.trial, Trial::DryRun);
        let tried: DryRunResult = is_dry.then(|| {
            let tried = send(engine, OrderingMode::Trial);
            (tried.report, tried.runs)
        });
        let request::ArrangedRequest {
            edits,
            mut report,
            runs,
            clients,
            added,
        } = sent;
        let mut edits = if is_dry { Vec::new() } else { edits };
        if let Some(head) = self.head {
            let tools = head.tools.iter();
            edits.extend(tools.map(|(slot, tool)| Edit::replace(slot.clone(), &**tool)));
            let removed = head.removed.iter();
            edits.extend(removed.map(|range| Edit::replace(range.clone(), "")));
        }
        let ordered = !edits.is_empty();
        let body = self.write(edits);

        let chat = self.remember(&mut state.memory, &path, added, engine);
        // Documents interned for other engines or the dry run are in no path there: release their ids.
        for other in choices.iter().filter(|other| other.engine != engine) {
            let documents = runs.iter().flat_map(|run| &run.documents);
            state.trees.of(other.engine).discard(documents);
        }
        let tokens = estimate_tokens(body.as_ref().map_or(self.parsed.text.len(), Vec::len));
        let client_order = &mut state.client_order;
        let found = (clients.iter()).map(|(scope, ranked)| client_order.send(*scope, ranked));
        report.client_matched_tokens = found.sum();
        state.take(engine, &runs);
        report.estimated_tokens = tokens.into();
        if let Some((_, runs)) = &tried {
            let documents = runs.iter().flat_map(|run| &run.documents);
            state.trees.of(engine).discard(documents);
        }
        if !self.parsed.has_groups() && !ordered {
            return Err(Skip::NoDocuments);
        }
        let sent_path = runs.iter().filter(|_| !is_dry).map(SentRun::path);
        Ok(Rewrite {
            ordered,
            report: tried.as_ref().map_or(report, |(tried, _)| Report {
                client_matched_tokens: report.client_matched_tokens,
                estimated_tokens: report.estimated_tokens,
                ..*tried
            }),
            path: SentPath {
                runs: sent_path.collect(),
            },
            // In the control arm, what has no documents is skipped, so it counts in no arm.
            arm: self.arm.filter(|_| self.parsed.has_groups()),
            as_sent: tried.map(|_| report),
            record: OrderingRecord {
                about: About {
                    tenant: self.tenant.name.into(),
                    key: self.tenant.key,
                    model: self.parsed.model.as_ref().into(),
                    engine,
                },
                tokens,
                runs,
                chat,
                forms: Vec::new(),
                claims: Vec::new(),
                context: None,
            },
            head: HeadReport::default(),
            body,
        })
    }

    /// Returns those of the request's messages that are recorded as forwarded before; empty if the documents keep the
    /// client's order, as in a dry run or in the control arm of an A/B test.
    fn recall(&self, memory: &Memory) -> Path {
        if self.keeps_client_order() {
            // The client's order must not depend on how earlier turns were forwarded.
            return Path::default();
        }
        let written = self.parsed.rendered.as_ref().and_then(|(message, group)| {
            Some((
                u32::try_from(*message).ok()?,
                DistinctDocuments::of(group).fingerprint(),
            ))
        });
        let chains = self.parsed.messages.iter().map(|message| message.chain);
        let moved = self.head.and_then(|head| head.moved.as_ref());
        let moving = moved.map_or(Moving::default(), |moved| {
            // Only if the target message is the request's last one do the spans determine what was written there.
            let is_last = moved.message as usize + 1 == self.parsed.messages.len();
            let frozen = self.head.map_or(0, |head| head.frozen.len());
            let spans = moved.spans.len().saturating_sub(frozen);
            Moving {
                target: (spans > 0).then_some((moved.message, spans)),
                hash: if is_last { moved.hash } else { 0 },
                spans: &moved.spans,
            }
        });
        memory.find(chains, written, moving)
    }

    /// Returns the engines to choose from. For a chat that continues, that is only the engine that received its earlier
    /// turns, if it is among the engines on offer.
    fn choices(&self, memory: &Memory, path: &Path) -> SmallVec<[EngineCandidate; 4]> {
        // Sending the same messages again does not continue a chat.
        let last = self.parsed.messages.len().saturating_sub(1);
        let last = u32::try_from(last).unwrap_or(u32::MAX);
        engines::choices(self.options.choices, memory.engine(path, last))
    }

    /// Returns the request with its documents arranged for this engine, by the engine's knowledge tree (documents
    /// believed to be cached): ordered, with sentences that tell their ranking or refer to earlier copies. `path` lists
    /// the recorded messages of the request, and `mode` is the kind of order.
    fn send<'a>(
        &'a self,
        trees: &mut Trees,
        policy: &mut dyn Policy,
        memory: &'a Memory,
        path: &Path,
        engine: EngineId,
        mode: OrderingMode,
    ) -> request::ArrangedRequest<'a> {
        let tree = trees.of(engine);
        let head = self.head.map_or_else(HeadWords::default, |head| HeadWords {
            frozen: &head.frozen,
            moved: head.moved.as_ref(),
        });
        let (config, parsed) = (self.config, self.parsed);
        request::arrange(config, parsed, head, tree, policy, memory, path, mode)
    }

    /// Returns the engine with the lowest cost (on a tie the first of `choices`), and the request with its documents
    /// arranged (ordered) for it; `None` if `choices` is empty.
    fn choose<'a>(
        &self,
        choices: &[EngineCandidate],
        mut send: impl FnMut(EngineId, OrderingMode) -> request::ArrangedRequest<'a>,
    ) -> Option<(EngineId, request::ArrangedRequest<'a>)> {
        let mode = if self.keeps_client_order() {
            OrderingMode::ClientOrder
        } else {
            OrderingMode::Ordered
        };
        let costs = RoutingCost::among(choices);
        let mut best: Option<(u64, EngineId, request::ArrangedRequest<'_>)> = None;
        for choice in choices {
            let sent = send(choice.engine, mode);
            let documents = sent.report.document_tokens;
            let uncached = documents.saturating_sub(sent.report.matched_tokens);
            let cost = costs.of(choice.outstanding, uncached, documents);
            if (best.as_ref()).is_none_or(|(lowest, ..)| cost < *lowest) {
                best = Some((cost, choice.engine, sent));
            }
        }
        best.map(|(_, engine, sent)| (engine, sent))
    }

    /// Returns the body with the edits applied and, if it has documents or edits, with the gateway's salt; `None` if
    /// nothing changes, so that the original body is forwarded.
    fn write<'e>(&'e self, mut edits: Vec<Edit<'e>>) -> Option<Vec<u8>> {
        let text = self.parsed.text;
        if self.parsed.has_groups() || !edits.is_empty() {
            let salt = self.options.salt;
            edits.extend(salt.map(|salt| self.parsed.salt.write(text, salt)));
        }
        (!edits.is_empty()).then(|| edit::apply(text, edits))
    }

    /// Records in `memory` the messages that this request adds to its chat. Returns the first of these messages, as
    /// many as fit into an update for the proxy's other workers, with the recorded message that they follow. `None` if
    /// no message is added, if documents keep the client's order, or if the first message does not fit.
    fn remember(
        &self,
        memory: &mut Memory,
        path: &Path,
        mut added: Vec<AddedMessage>,
        engine: EngineId,
    ) -> Option<ChatContinuation> {
        if self.keeps_client_order() {
            added.clear();
        }
        let chat = ChatContinuation::within_limit(memory.place(path), &added);
        // Where documents may be pinned, a chat without documents is recorded too, so that it is not taken for one with
        // the same beginning that has some.
        let keeps = |added: &AddedMessage| added.sent.kept.is_some();
        let is_head_kept = added.iter().any(keeps) || !path.is_empty() && self.head.is_some();
        if !self.parsed.has_groups() && !self.config.pins() && !is_head_kept {
            added.clear();
        }
        memory.record(path, added, engine);
        chat
    }

    /// Returns whether documents keep the client's order: in a dry run (report only), and for a chat in the control arm
    /// of an A/B test.
    fn keeps_client_order(&self) -> bool {
        matches!(self.options.trial, Trial::DryRun) || self.arm == Some(Arm::Control)
    }
}
