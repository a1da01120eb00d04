//! An Envoy in a comparison of times: one connection, one request at a time, from its first byte sent to the first event of
//! the answer.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use foreword_tests::http::Client;
use foreword_tests::{Gateway, GatewayOptions};

/// An Envoy that is compared with others.
pub struct Variant {
    /// The name in tables.
    pub name: &'static str,
    /// Text that each report must contain, because a filter that does nothing would be fast.
    report: &'static str,
    client: Client,
    /// The times of the requests that count.
    times: Vec<Duration>,
    /// The Envoy, which runs as long as the comparison does.
    pub gateway: Gateway,
}

impl Variant {
    /// Starts an Envoy, and connects to it.
    ///
    /// # Errors
    /// Fails when Envoy does not start, or cannot be connected to.
    pub fn start(
        name: &'static str,
        options: &GatewayOptions,
        report: &'static str,
    ) -> Result<Self> {
        let gateway = Gateway::start(options).context(name)?;
        Ok(Self {
            name,
            report,
            client: Client::connect(gateway.address())?,
            times: Vec::new(),
            gateway,
        })
    }

    /// Sends one request; its time is kept if it `counts`.
    ///
    /// # Errors
    /// Fails when no event comes, or when the filter's report is not the expected one.
    pub fn ask(&mut self, body: &[u8], counts: bool) -> Result<()> {
        let start = Instant::now();
        self.client.send(body)?;
        let head = self.client.head()?;
        let first = self.client.piece(&head)?;
        let elapsed = start.elapsed();
        ensure!(
            head.status == 200 && first.is_some_and(|event| event.starts_with(b"data: ")),
            "{}: no event, status {}",
            self.name,
            head.status
        );
        ensure!(
            head.report().contains(self.report),
            "{}: report {:?}",
            self.name,
            head.report()
        );
        while self.client.piece(&head)?.is_some() {}
        if counts {
            self.times.push(elapsed);
        }
        Ok(())
    }

    /// Returns the time that this share of the requests that count took at most.
    pub fn quantile(&mut self, share: f64) -> Duration {
        self.times.sort_unstable();
        let at = (self.times.len() as f64 * share) as usize;
        self.times.get(at).copied().unwrap_or_default()
    }

    /// Returns the median time of a request in the filter before it goes on, by the filter's own clock, in microseconds;
    /// `None`: it is no filter of ours, or it has told nothing yet.
    ///
    /// # Errors
    /// Fails when Envoy's statistics cannot be read.
    pub fn in_filter(&self) -> Result<Option<f64>> {
        let stats = (self.gateway).admin_get("/stats?filter=foreword_ordering_microseconds")?;
        // `…: P0(nan,10) P25(nan,12.1) P50(nan,14.3) …`: of the last interval, and since the start.
        let median = stats.split("P50(").nth(1).and_then(|rest| {
            let (both, _) = rest.split_once(')')?;
            both.split_once(',')?.1.parse().ok()
        });
        Ok(median)
    }
}
