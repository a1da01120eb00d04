//! Assigns chats to the control arm of an A/B test, in which documents keep the client's order.
//!
//! ```text
//!   experiment's name, tenant, words that the chat begins with ──► hash ──► below the share: control
//! ```
//!
//! The arm is a pure function of these three, so a chat stays in its arm at every turn, on every worker and replica,
//! without stored state. An experiment with another name assigns chats independently.

use crate::body::Chain;
use xxhash_rust::xxh3::xxh3_64;

/// An A/B test of ordering: in a share of chats, the control arm, documents keep the client's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    name: String,
    control_share: f64,
}

crate::named! {
    /// The arm of an A/B test of ordering to which a request belongs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Arm {
        /// Documents are sent in the policy's order, with hints (sentences about their ranking and earlier copies).
        Ordered = "ordered",
        /// Documents are sent, and recorded in the knowledge tree (documents believed to be cached), in the client's
        /// order. A `documents` array is still rendered into a message, so that the arms differ in the order alone.
        Control = "control",
    }
}

impl Experiment {
    /// Returns an A/B test with this name and this share of chats in the control arm (the client's order); `None`
    /// unless the share is from 0 to 1.
    #[must_use]
    pub fn new(name: &str, control_share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&control_share).then(|| Self {
            name: name.to_owned(),
            control_share,
        })
    }

    /// Returns the arm of the A/B test to which a tenant's chat belongs, given `start`, the hash of the messages with
    /// which the chat begins.
    pub(crate) fn arm(&self, tenant: &str, start: Chain) -> Arm {
        let mut bytes = Vec::with_capacity(self.name.len() + tenant.len() + 24);
        bytes.extend_from_slice(&(self.name.len() as u64).to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        bytes.extend_from_slice(tenant.as_bytes());
        bytes.extend_from_slice(&start.0.to_le_bytes());
        // 53 bits, the precision of a double: uniform in [0, 1).
        let place = (xxh3_64(&bytes) >> 11) as f64 / (1_u64 << 53) as f64;
        if place < self.control_share {
            Arm::Control
        } else {
            Arm::Ordered
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(experiment: &Experiment, tenant: &str) -> Vec<bool> {
        let chats = (0..10_000).map(|chat| experiment.arm(tenant, Chain(chat)));
        chats.map(|arm| arm == Arm::Control).collect()
    }

    #[test]
    fn the_control_arm_gets_its_share() {
        for share in [0.0, 0.01, 0.5, 0.9, 1.0] {
            let experiment = Experiment::new("a", share).unwrap();
            let found = control(&experiment, "t").into_iter().filter(|is| *is);
            let found = found.count() as f64 / 10_000.0;
            // Five standard deviations of ten thousand draws.
            let slack = 5.0 * (share * (1.0 - share) / 10_000.0).sqrt();
            assert!((found - share).abs() <= slack, "{found} of {share}");
        }
    }

    #[test]
    fn arms_are_drawn_apart_by_experiment_and_by_tenant() {
        let [a, b] = ["a", "b"].map(|name| Experiment::new(name, 0.5).unwrap());
        let drawn = control(&a, "t");
        for other in [control(&b, "t"), control(&a, "u")] {
            let alike = drawn
                .iter()
                .zip(&other)
                .filter(|(left, right)| left == right);
            assert!((4_700..5_300).contains(&alike.count()));
        }
        assert_eq!(drawn, control(&a, "t"));
    }

    #[test]
    fn a_share_is_from_0_to_1() {
        for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Experiment::new("a", share), None);
        }
    }
}
