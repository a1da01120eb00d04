//! The options for one request, and what its sender is told about it.

use crate::engines::EngineCandidate;
use crate::experiment::{Arm, Experiment};
use crate::feed::TenantKey;
use crate::head::HeadReport;
use crate::path::SentPath;
use crate::peer_update::OrderingRecord;
use crate::request::Report;

/// How one request is sent, in addition to the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct RewriteOptions<'a> {
    /// The salt to write as the body's `cache_salt`, in place of the client's; `None`: the client's stays.
    pub salt: Option<&'a str>,
    /// The function that makes a tenant's key from the salt that the client sent: [`TenantKey::of`]. `None`: the
    /// client's salt distinguishes nobody. It is a function so that the browser's module, which knows no tenants,
    /// contains no SHA-256.
    pub key_of: Option<fn(&str) -> TenantKey>,
    /// Whether this request is a dry run or part of an experiment.
    pub trial: Trial<'a>,
    /// The engines that the request may go to; see [`EngineCandidate`]. Those above
    /// [`MAX_ENGINES`](crate::MAX_ENGINES) do not count. If the list is empty, the request goes to the first engine.
    pub choices: &'a [EngineCandidate],
}

/// Whether a request is ordered, or the order is only tried.
#[derive(Clone, Copy, Debug, Default)]
pub enum Trial<'a> {
    /// The request is ordered.
    #[default]
    None,
    /// The order is decided and reported, but the body is sent as it came, and that is what is learnt. An array that
    /// would have been rendered is learnt as if it had been rendered in the client's order.
    DryRun,
    /// A share of the chats keeps the client's order.
    Experiment(&'a Experiment),
}

/// The result of rewriting a request.
#[derive(Debug)]
pub struct Rewrite {
    /// The body to send; `None`: the one that came.
    pub body: Option<Vec<u8>>,
    /// Whether more than the salt was written: documents changed places, or words were added.
    pub ordered: bool,
    /// What was done; in a dry run, what would have been done.
    pub report: Report,
    /// The documents that are sent, as the tree knows them.
    pub path: SentPath,
    /// The chat's arm in an experiment.
    pub arm: Option<Arm>,
    /// In a dry run, the report on what was sent: nothing was changed, and this much matched.
    pub as_sent: Option<Report>,
    /// What was done with the head, or would be.
    pub head: HeadReport,
    /// Everything that other orderers of the same requests need to know of this one.
    pub record: OrderingRecord,
}

/// How much is remembered of chats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Number of messages; without pinning, only those that hold documents or end a request.
    pub messages: u64,
    /// Estimated bytes that they take.
    pub bytes: u64,
    /// Messages with contexts that their clients may leave out later. The bounds hold for these apart.
    pub contexts: u64,
    /// Estimated bytes that these take.
    pub context_bytes: u64,
}
