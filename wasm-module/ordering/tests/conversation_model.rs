//! Random chats against a model that stores every text, two tenants' chats against each alone, and workers that tell
//! each other what they did against one that does everything.

use crate::model;
use foreword_ordering::{Config, Orderer, PeerUpdate, Report, Rewrite, Tenant};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// See the model: earlier messages never change while they are remembered, no document is lost, changed or
    /// taken from another chat, memory is bounded.
    #[test]
    fn chats_keep_their_documents_their_words_and_their_history(
        setup in any::<u8>(),
        steps in prop::collection::vec(any::<model::Step>(), 1..40),
    ) {
        model::run(setup, &steps);
    }

    /// One tenant's requests become the same whatever another one sends between them.
    #[test]
    fn tenants_are_served_as_if_they_were_alone(
        steps in prop::collection::vec((any::<model::Step>(), any::<bool>()), 1..40),
    ) {
        let of = |tenant: bool| -> Vec<model::Step> {
            let steps = steps.iter().filter(|(_, owner)| *owner == tenant);
            steps.map(|(step, _)| *step).collect()
        };
        let config = || Config::from_json(br#"{"conversation": {"max_entries": 8}, "tree": {"max_nodes": 24}}"#).unwrap();
        let mut bodies = [false, true].map(|tenant| model::bodies(&of(tenant)).into_iter());
        let mut shared = Orderer::new(config());
        let mut alone = [Orderer::new(config()), Orderer::new(config())];
        for (_, tenant) in steps {
            let body = bodies[usize::from(tenant)].next().unwrap();
            let name = if tenant { "x" } else { "y" };
            let one = shared.rewrite(Tenant::named(name), body.as_bytes()).map(|sent| (sent.body, sent.report));
            let other = alone[usize::from(tenant)].rewrite(Tenant::named(name), body.as_bytes());
            prop_assert_eq!(one, other.map(|sent| (sent.body, sent.report)));
        }
    }

    /// Whichever worker gets a request, it becomes what it would have become had one worker got them all. Nothing is told
    /// of requests without documents, which with pinning tell a chat from one that opens alike: there are none then.
    #[test]
    fn workers_that_tell_each_other_what_they_did_decide_as_one(
        steps in prop::collection::vec((any::<model::Step>(), 0_usize..3), 1..40),
        policy in 0_usize..POLICIES.len(),
        pins in any::<bool>(),
    ) {
        let config = serde_json::json!({"policy": POLICIES[policy], "conversation": {"pin": pins}}).to_string();
        let new = || Orderer::new(Config::from_json(config.as_bytes()).unwrap());
        let mut alone = new();
        let mut workers = [new(), new(), new()];
        let bodies = model::bodies(&steps.iter().map(|(step, _)| *step).collect::<Vec<_>>());
        for (body, (_, worker)) in bodies.iter().zip(steps) {
            if pins && new().rewrite(Tenant::named("t"), body.as_bytes()).is_err() {
                continue;
            }
            let expected = alone.rewrite(Tenant::named("t"), body.as_bytes());
            let got = workers[worker].rewrite(Tenant::named("t"), body.as_bytes());
            if let Ok(sent) = &got {
                let told = PeerUpdate::OrderingRecord(sent.record.clone());
                let told = PeerUpdate::decode(&told.encode()).unwrap();
                for (_, other) in workers.iter_mut().enumerate().filter(|(other, _)| *other != worker) {
                    other.learn(&told);
                }
            }
            // What the clients' order would have found is told of new messages alone.
            let decided = |sent: Rewrite| {
                let report = Report { client_matched_tokens: 0, ..sent.report };
                (sent.body.map(String::from_utf8), report)
            };
            prop_assert_eq!(got.map(decided), expected.map(decided));
        }
        for worker in &workers {
            prop_assert_eq!(worker.nodes(), alone.nodes());
        }
    }
}

/// Without `foresight`, which judges by the requests that it was itself asked about how skewed the traffic is.
const POLICIES: [&str; 4] = ["longest", "greedy", "recency", "context-index"];
