//! Reads Prometheus metrics of an engine or a gateway, and checks the gateway's counters.

use super::client::{Client, served};
use super::finding::Finding;

/// The text of one scrape of Prometheus metrics, or the reason why there is none.
#[derive(Debug)]
pub(super) struct Metrics(Result<String, String>);

impl Metrics {
    /// Reads the metrics at the first of `urls` that responds with 200. If none does, the returned value contains the
    /// last error.
    pub(super) fn scrape(client: &Client, urls: &[String]) -> Self {
        let mut missing = "no address was given".to_owned();
        for url in urls {
            match served(&format!("GET {url}"), client.get(url)) {
                Ok(reply) => return Self(Ok(String::from_utf8_lossy(&reply.body).into_owned())),
                Err(refusal) => missing = refusal,
            }
        }
        Self(Err(missing))
    }

    /// Returns name, labels and value of each sample in the metrics. Prefixes before `foreword_` in a name, which
    /// proxies add, are cut off.
    fn samples(&self) -> impl Iterator<Item = (&str, &str, f64)> {
        let lines = self.0.iter().flat_map(|text| text.lines());
        let lines = lines.filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let name = name.find("foreword_").map_or(name, |at| &name[at..]);
            Some((name, labels.trim_end_matches('}'), value.parse().ok()?))
        })
    }

    /// Returns the value of the label `label` of the first sample called `name`; `None` if there is no such sample or
    /// label.
    pub(super) fn label(&self, name: &str, label: &str) -> Option<&str> {
        let (_, labels, _) = self.samples().find(|sample| sample.0 == name)?;
        let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
        let value = pairs.find_map(|(name, value)| (name == label).then_some(value))?;
        Some(value.trim_matches('"'))
    }

    /// Returns the sum of the values of all samples called `name`; `None` if there is no such sample.
    fn sum(&self, name: &str) -> Option<f64> {
        let mut values = self.samples().filter(|sample| sample.0 == name).peekable();
        values.peek()?;
        Some(values.map(|sample| sample.2).sum())
    }

    /// Returns the number of the gateway's ordering decisions that found none of the request's documents resident in
    /// the engine's cache, and the number of all decisions. `None` if the metric is missing, or has no bucket for such
    /// decisions.
    fn decisions(&self) -> Option<(f64, f64)> {
        let all = self.sum("foreword_matched_percent_count")?;
        let buckets =
            (self.samples()).filter(|sample| sample.0 == "foreword_matched_percent_bucket");
        let buckets = buckets.filter_map(|(_, labels, count)| {
            let (_, bound) = labels.split_once("le=\"")?;
            Some((bound.split('"').next()?.parse::<f64>().ok()?, count))
        });
        let buckets: Vec<(f64, f64)> = buckets.collect();
        // The lowest bucket counts decisions without a match: its bound is 1 in the shipped configurations, else 0.5.
        let bounds = buckets.iter().map(|bucket| bucket.0);
        let lowest = bounds.fold(f64::INFINITY, f64::min);
        let blind = buckets.iter().filter(|bucket| bucket.0 == lowest);
        (lowest <= 1.0).then(|| (blind.map(|bucket| bucket.1).sum(), all))
    }
}

/// Checks the gateway's counters: how many ordering decisions saw no resident documents, how many answers reported
/// fewer cached tokens than the gateway believed, and whether updates between workers were lost.
pub(super) fn decisions(metrics: &Metrics) -> Finding {
    if let Err(came) = &metrics.0 {
        return Finding::skipped(came, SCRAPE);
    }
    let Some(requests) = metrics.sum("foreword_requests_total") else {
        return Finding::skipped("the metrics have no foreword_requests_total", SCRAPE);
    };
    for (name, remedy) in LOST {
        if let Some(count) = metrics.sum(name).filter(|count| *count > 0.0) {
            return Finding::fail(format!("{name} is {count}"), remedy);
        }
    }
    let corrections = metrics.sum("foreword_corrections_total");
    let corrections = corrections.unwrap_or_default();
    let (blind, all) = metrics.decisions().unwrap_or_default();
    let detail = format!(
        "{blind} of {all} decisions saw no resident blocks; {corrections} answers of {requests} said less than was believed"
    );
    if requests >= ENOUGH && corrections > requests * MAX_CORRECTED {
        Finding::warn(detail, FEED)
    } else if all >= ENOUGH && blind > all * MAX_BLIND {
        Finding::warn(detail, EXPLAIN)
    } else {
        Finding::ok(detail)
    }
}

/// Names of counters that must be 0, each with the remedy if it is not.
const LOST: [(&str, &str); 4] = [
    (
        "foreword_feed_key_mismatches_total",
        "engines[].feed.key_env: \"FOREWORD_FEED_KEY\", with the key that foreword serve has in --feed-key-file",
    ),
    (
        "foreword_lost_entries_total",
        "\"agreement\": {\"entries\": N}, larger: workers overwrite updates before others read them",
    ),
    (
        "foreword_lost_updates_total",
        "the same key and \"agreement\": {\"ring\": NAME} in all gateways, and a feed server that is reachable",
    ),
    (
        "foreword_untold_requests_total",
        "fewer documents a request, or a larger shared-data quota: requests exceed 16 KiB of hashes",
    ),
];
const EXPLAIN: &str =
    "foreword explain over a log of these requests names the first difference of each";
const SCRAPE: &str = "--gateway-metrics URL: Envoy's http://HOST:9901/stats/prometheus, or /metrics of foreword ext-proc";
/// The remedy that is printed if the gateway counts documents as cached that the engine has evicted: the part of the
/// gateway's configuration that connects it to the engine's feed of cache events, and the programs that serve the feed.
pub(super) const FEED: &str = "\"engines\": [{\"name\": \"a\", \"feed\": {\"cluster\": \"a-feed\"}}], from foreword serve's internal \
                               listener or foreword kv-bridge beside vLLM";
/// Minimum number of samples for a warning: (1) requests, for a warning about the share whose answers reported fewer
/// cached tokens than the gateway expected; (2) ordering decisions, for a warning about the share that found none of
/// the request's documents in the engine's cache.
const ENOUGH: f64 = 20.0;
const MAX_BLIND: f64 = 0.5;
const MAX_CORRECTED: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_behind_a_proxys_prefix_and_labels_by_their_whole_name() {
        let metrics = Metrics(Ok("# HELP x 1\n\
                   vllm:cache_config_info{mamba_block_size=\"8\",block_size=\"16\"} 1.0\n\
                   envoy_dynamicmodulescustom_foreword_requests_total{} 7\n\
                   foreword_matched_percent_bucket{le=\"10\"} 6\n\
                   foreword_matched_percent_bucket{le=\"1\"} 5\n\
                   foreword_matched_percent_count{} 7\nno number\n"
            .to_owned()));
        let label = metrics.label("vllm:cache_config_info", "block_size");
        assert_eq!(label, Some("16"));
        assert_eq!(metrics.sum("foreword_requests_total"), Some(7.0));
        assert_eq!(metrics.sum("foreword_absent_total"), None);
        assert_eq!(metrics.decisions(), Some((5.0, 7.0)));
    }
}
