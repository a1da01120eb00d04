//! The options for one request, and the result of rewriting it.

use crate::engines::EngineCandidate;
use crate::experiment::{Arm, Experiment};
use crate::feed::TenantKey;
use crate::head::HeadReport;
use crate::path::SentPath;
use crate::peer_update::OrderingRecord;
use crate::request::Report;

/// The options for one request, in addition to the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct RewriteOptions<'a> {
    /// The salt to write as the body's `cache_salt` in place of the client's; `None` leaves the client's salt.
    pub salt: Option<&'a str>,
    /// Derives a tenant's key from the client's salt: [`TenantKey::of`], or `None` if the client's salt does not
    /// separate tenants. A function, so that the browser's module, which knows no tenants, contains no SHA-256.
    pub key_of: Option<fn(&str) -> TenantKey>,
    /// The trial that the request belongs to: none, a dry run or an experiment.
    pub trial: Trial<'a>,
    /// The engines that the request may go to. Those whose id is not below [`MAX_ENGINES`](crate::MAX_ENGINES) are
    /// ignored. If none is left, the request goes to the first engine.
    pub choices: &'a [EngineCandidate],
}

/// The trial that a request belongs to, which decides whether the computed order is applied.
#[derive(Clone, Copy, Debug, Default)]
pub enum Trial<'a> {
    /// The order is applied to every request.
    #[default]
    None,
    /// The order is computed and reported, but the original body is forwarded and recorded. A `documents` array that
    /// would have been rendered is recorded as rendered in the client's order.
    DryRun,
    /// Chats in the experiment's control arm keep the client's order; in the others the order is applied.
    Experiment(&'a Experiment),
}

/// The result of rewriting a request.
#[derive(Debug)]
pub struct Rewrite {
    /// The body to forward; `None` for the original body.
    pub body: Option<Vec<u8>>,
    /// True if anything changed in addition to the salt.
    pub ordered: bool,
    /// The changes to documents; in a dry run, those that would have been made.
    pub report: Report,
    /// The forwarded documents, as recorded in the tree; empty in a dry run.
    pub path: SentPath,
    /// The chat's arm; `None` outside an experiment.
    pub arm: Option<Arm>,
    /// In a dry run, the report on the forwarded original body, with the tokens that it matched; otherwise `None`.
    pub as_sent: Option<Report>,
    /// The changes to the head, either made or (in mode `report`) proposed.
    pub head: HeadReport,
    /// The record of this request for other orderers.
    pub record: OrderingRecord,
}

/// The size of the memory of chats, over all tenants and models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Number of recorded messages. Without pinning, only those with documents or changes, and each request's last.
    pub messages: u64,
    /// Estimated bytes of the messages in `messages`.
    pub bytes: u64,
    /// Number of messages with contexts that their clients may later omit. They are counted and bounded separately.
    pub contexts: u64,
    /// Estimated bytes of the messages in `contexts`.
    pub context_bytes: u64,
}
