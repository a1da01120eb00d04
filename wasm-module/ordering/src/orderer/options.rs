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
    /// The salt to write as the body's `cache_salt`, replacing the client's; `None` leaves the client's.
    pub salt: Option<&'a str>,
    /// The function from the client's salt to a tenant's key: [`TenantKey::of`]. `None`: the client's salt does not
    /// separate tenants. It is a function so that the browser's module, which knows no tenants, contains no SHA-256.
    pub key_of: Option<fn(&str) -> TenantKey>,
    /// Whether this request is a dry run or part of an experiment.
    pub trial: Trial<'a>,
    /// The engines that the request may go to; see [`EngineCandidate`]. Those above [`MAX_ENGINES`](crate::MAX_ENGINES) are
    /// ignored. If the list is empty, the request goes to the first engine.
    pub choices: &'a [EngineCandidate],
}

/// Whether the order is applied, only computed, or part of an experiment.
#[derive(Clone, Copy, Debug, Default)]
pub enum Trial<'a> {
    /// The order is applied.
    #[default]
    None,
    /// The order is computed and reported, but the original body is forwarded and recorded. An array that would have been
    /// rendered is recorded as if rendered in the client's order.
    DryRun,
    /// Some of the chats keep the client's order.
    Experiment(&'a Experiment),
}

/// The result of rewriting a request.
#[derive(Debug)]
pub struct Rewrite {
    /// The body to forward; `None` for the original body.
    pub body: Option<Vec<u8>>,
    /// Whether more than the salt changed: documents moved, or words were added.
    pub ordered: bool,
    /// The changes; in a dry run, those that would have been made.
    pub report: Report,
    /// The forwarded documents, as recorded in the tree.
    pub path: SentPath,
    /// The chat's arm in an experiment.
    pub arm: Option<Arm>,
    /// In a dry run, the report on the forwarded body: nothing changed, and this much matched.
    pub as_sent: Option<Report>,
    /// The changes to the head, made or only proposed.
    pub head: HeadReport,
    /// The record of this request for other orderers.
    pub record: OrderingRecord,
}

/// The size of the memory of chats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Number of messages; without pinning, only those that hold documents or end a request.
    pub messages: u64,
    /// Estimated bytes of the messages in `messages`.
    pub bytes: u64,
    /// Number of messages with contexts that their clients may later omit. They have separate bounds.
    pub contexts: u64,
    /// Estimated bytes of the messages in `contexts`.
    pub context_bytes: u64,
}
