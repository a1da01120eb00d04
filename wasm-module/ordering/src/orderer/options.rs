//! The options for rewriting one request, and the result.

use crate::engines::EngineCandidate;
use crate::experiment::{Arm, Experiment};
use crate::feed::TenantKey;
use crate::head::HeadReport;
use crate::path::SentPath;
use crate::peer_update::OrderingRecord;
use crate::request::Report;

/// The options for rewriting one request, in addition to the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct RewriteOptions<'a> {
    /// The salt to write into the body as `cache_salt` in place of the client's; with `None`, the client's salt stays.
    pub salt: Option<&'a str>,
    /// The function that derives a tenant's key from the client's salt: [`TenantKey::of`], or `None` if the client's
    /// salt does not separate tenants. It is passed as a function so that the browser's module, which knows no tenants,
    /// contains no SHA-256.
    pub key_of: Option<fn(&str) -> TenantKey>,
    /// The trial to which the request belongs: none, a dry run (report only) or an experiment (an A/B test).
    pub trial: Trial<'a>,
    /// The engines that may receive the request. Entries whose id is not below [`MAX_ENGINES`](crate::MAX_ENGINES) are
    /// ignored. If no entry is left, the first engine receives the request.
    pub choices: &'a [EngineCandidate],
}

/// The trial to which a request belongs (a dry run, which only reports, or an A/B test). It decides whether the
/// computed order of documents is applied.
#[derive(Clone, Copy, Debug, Default)]
pub enum Trial<'a> {
    /// The request belongs to no trial: the computed order is applied.
    #[default]
    None,
    /// The order is computed and reported, but the original body is forwarded and recorded. If the body has a
    /// `documents` array that would have been written into a message, it is recorded as written there in the client's
    /// order.
    DryRun,
    /// An A/B test: chats in its control arm keep the client's order; in the other chats the computed order is applied.
    Experiment(&'a Experiment),
}

/// The result of rewriting one request: the body to forward, and reports on what was changed.
#[derive(Debug)]
pub struct Rewrite {
    /// The body to forward; `None` if the original body is to be forwarded.
    pub body: Option<Vec<u8>>,
    /// True if anything in the body except the salt was changed.
    pub ordered: bool,
    /// The changes to documents; in a dry run (report only), those that would have been made.
    pub report: Report,
    /// The forwarded documents in their order, as recorded in the knowledge tree (documents believed to be cached);
    /// empty in a dry run.
    pub path: SentPath,
    /// The arm of the experiment (an A/B test) to which the chat belongs; `None` outside an experiment.
    pub arm: Option<Arm>,
    /// In a dry run, the report on the original body, which was forwarded, with the tokens that are believed to be
    /// cached in the client's order; otherwise `None`.
    pub as_sent: Option<Report>,
    /// The changes to the prompt's head (tools, system text): those made or, in the mode `report` of the configuration,
    /// those that would be made.
    pub head: HeadReport,
    /// A record of this request for other orderers (other workers), from which they learn as if they had forwarded it.
    pub record: OrderingRecord,
}

/// The number and the size of the recorded chat messages, over all tenants and models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Number of recorded messages. Without pinning (repeating documents in later requests), only messages with
    /// documents or changes, and the last message of each request, are recorded.
    pub messages: u64,
    /// Estimated bytes of the messages that `messages` counts.
    pub bytes: u64,
    /// Number of messages recorded with their contexts (retrieved documents), which their clients may omit in later
    /// turns. They are counted and bounded separately from `messages`.
    pub contexts: u64,
    /// Estimated bytes of the messages with contexts (retrieved documents) that `contexts` counts.
    pub context_bytes: u64,
}
