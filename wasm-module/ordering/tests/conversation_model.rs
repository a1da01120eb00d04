//! Random chats against a model that stores every text, and two tenants' chats against each alone.

mod model;

use foreword_ordering::{Config, Orderer, Tenant};
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
}
