//! The options on which a request is rewritten, and what its sender is told of it.

use crate::engines::EngineCandidate;
use crate::experiment::{Arm, Experiment};
use crate::feed::TenantKey;
use crate::head::HeadReport;
use crate::path::SentPath;
use crate::peer_update::OrderingRecord;
use crate::request::Report;

/// How one request is to be sent, beside what the configuration says of all.
#[derive(Clone, Copy, Debug, Default)]
pub struct RewriteOptions<'a> {
    /// Written as the body's `cache_salt`, whatever the client sent; `None`: what it sent stays.
    pub salt: Option<&'a str>,
    /// Makes a tenant's key of the salt that the client sent: [`TenantKey::of`]. `None`: the client's salt tells nobody
    /// apart. A function, so that a module for pages, which know no tenants, holds no SHA-256.
    pub key_of: Option<fn(&str) -> TenantKey>,
    /// Whether the order is put to the test.
    pub trial: Trial<'a>,
    /// The engines that it may go to: see [`EngineCandidate`]. Those above [`MAX_ENGINES`](crate::MAX_ENGINES) do not
    /// count; without any it goes to the first engine.
    pub choices: &'a [EngineCandidate],
}

/// Whether the order is put to the test.
#[derive(Clone, Copy, Debug, Default)]
pub enum Trial<'a> {
    /// It is not.
    #[default]
    None,
    /// The order is decided and reported, the body goes on as it came, and that is what is learnt. An array that would
    /// have been rendered is learnt as if it had been rendered in the client's order.
    DryRun,
    /// Some chats go on in the client's order.
    Experiment(&'a Experiment),
}

/// What became of a request.
#[derive(Debug)]
pub struct Rewrite {
    /// The body to send; `None`: the one that came.
    pub body: Option<Vec<u8>>,
    /// Whether more than the salt was written: documents changed places, or words were added.
    pub ordered: bool,
    /// What was done; in a dry run, what would have been.
    pub report: Report,
    /// The documents that are sent, as the tree knows them.
    pub path: SentPath,
    /// The chat's arm in an experiment.
    pub arm: Option<Arm>,
    /// In a dry run: what was done, which is nothing, and what it matched.
    pub as_sent: Option<Report>,
    /// What was done with the head, or would be.
    pub head: HeadReport,
    /// All that other orderers of the same requests need to know of this one.
    pub record: OrderingRecord,
}

/// What is remembered of chats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Messages of chats; without pinning, only those that documents stand in or that a request ended with.
    pub messages: u64,
    /// Estimated bytes that this takes.
    pub bytes: u64,
    /// Messages with contexts that their clients may leave out later. The bounds hold for these apart.
    pub contexts: u64,
    /// Estimated bytes that these take.
    pub context_bytes: u64,
}
