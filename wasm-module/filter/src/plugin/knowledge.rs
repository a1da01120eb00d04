//! What a plugin's requests know together: the orderer, and its part in what workers tell each other
//! ([`crate::agreement`]).

use foreword_ordering::{Orderer, PeerUpdate};

use crate::agreement::Agreement;
use crate::config::Config;
use crate::host::{Host, LogLevel};
use crate::metrics::Metrics;
use crate::misses::Misses;

pub(super) struct Knowledge {
    pub(super) orderer: Orderer,
    /// Why requests could not begin like earlier ones.
    pub(super) misses: Misses,
    /// `None`: nothing is told and nothing is learnt.
    pub(super) agreement: Option<Agreement>,
    /// By engine, a bit: whether its answers ever said how much was cached. Then one that says nothing says none.
    pub(super) reporting: u64,
    /// Requests so far.
    pub(super) request_number: u64,
}

impl Knowledge {
    /// Nothing is known yet, and nobody is told.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            orderer: Orderer::new(config.ordering.clone()),
            misses: misses_of(config),
            agreement: None,
            reporting: 0,
            request_number: 0,
        }
    }

    /// A panic left it half changed: it starts with what the next requests learn.
    pub(super) fn begin_anew(&mut self, config: &Config) {
        self.orderer = Orderer::new(config.ordering.clone());
        self.misses = misses_of(config);
        if let Some(agreement) = &mut self.agreement {
            agreement.forget();
        }
    }

    /// Learns what others have told, at most so many entries.
    pub(super) fn catch_up(&mut self, host: &impl Host, metrics: &Metrics, limit: u64) {
        let Self {
            orderer, agreement, ..
        } = self;
        let Some(agreement) = agreement else { return };
        match agreement.catch_up(host, limit, |update| orderer.learn(update)) {
            Ok(learnt) => metrics.learnt(host, learnt),
            Err(error) => host.log(LogLevel::Warn, &error.to_string()),
        }
    }

    /// Learns and tells.
    pub(super) fn take(&mut self, host: &impl Host, metrics: &Metrics, update: PeerUpdate) {
        self.orderer.learn(&update);
        self.tell(host, metrics, &update.encode());
    }

    /// Tells what was [encoded](PeerUpdate::encode).
    pub(super) fn tell(&mut self, host: &impl Host, metrics: &Metrics, update: &[u8]) {
        let Some(agreement) = &mut self.agreement else {
            return;
        };
        match agreement.tell(host, update) {
            Ok(true) => {}
            Ok(false) => metrics.untold(host),
            Err(error) => {
                metrics.untold(host);
                host.log(LogLevel::Warn, &error.to_string());
            }
        }
    }
}

fn misses_of(config: &Config) -> Misses {
    Misses::new(config.explain, config.ordering.block_tokens())
}
