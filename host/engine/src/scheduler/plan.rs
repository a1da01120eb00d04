//! One step: what fits into it.
//!
//! Owns the rules of continuous batching (Orca, OSDI '22 §3.2) with chunked prefill (Sarathi-Serve, OSDI '24 §4.2) as
//! one ordinary function, [`plan`]. It knows counts of tokens and pages, and neither tokens, prefixes nor arithmetic;
//! whoever calls it carries the plan out and asks again.
//!
//! The rules, in order:
//!
//! 1. **Decodes first.** A sequence that waits for nothing but its next token gets it in every step, so a long
//!    prompt never stalls the answers that run beside it.
//! 2. **Room first of all.** When the decodes of a step need more pages than can be had, the youngest sequence gives
//!    its own back ([`Plan::Preempt`]) and is computed again later, from what the cache still holds. No request
//!    fails for want of pages. The last sequence left always has room, since a prompt that could not fit alone is
//!    refused when it is submitted and an answer ends where the pool does.
//! 3. **Prefill by chunks.** What remains of the step's tokens goes to prompts, oldest first.
//! 4. **In the queue's order.** Then waiting requests are admitted in order, as long as there are tokens left in
//!    the step, a slot, pages for all their tokens, and a page for everybody's growth besides: without that margin
//!    the newcomer would be preempted as soon as somebody's page is full. The first that does not fit ends admission:
//!    letting smaller ones pass would starve it.

/// What there is to plan with.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The bounds.
    pub limits: Limits,
    /// Pages that no running sequence holds: free, or cached and unused.
    pub available_pages: u32,
    /// Oldest first.
    pub running: Vec<Running>,
    /// The head of the queue, next first: at least as many as could be admitted in this step.
    pub waiting: Vec<Waiting>,
}

/// Bounds of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Tokens computed in one step.
    pub max_step_tokens: u32,
    /// Sequences that run side by side.
    pub max_running: u32,
    /// Tokens in a page, at least one.
    pub page_tokens: u32,
}

/// A running sequence. It holds pages for its whole prompt from its admission on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Running {
    /// Tokens in the sequence.
    pub tokens: u32,
    /// Of those, computed; at least one is not.
    pub computed: u32,
    /// Pages in its table.
    pub pages: u32,
}

/// A waiting sequence, with what the cache holds of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiting {
    /// Tokens in the sequence.
    pub tokens: u32,
    /// Of those, cached; at least one is not.
    pub cached: u32,
    /// Full pages among the cached, which it would share.
    pub shared_pages: u32,
    /// How many of those count as available now.
    pub idle_pages: u32,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Release this running sequence's pages, put it at the head of the queue, and plan again.
    Preempt(usize),
    /// Compute a step.
    Compute {
        /// Tokens to compute of each running sequence; 0: it sits this step out.
        running: Vec<u32>,
        /// Tokens to compute of each waiting sequence that is admitted, from the head of the queue; at least one.
        admitted: Vec<u32>,
    },
}

/// The next thing to do. Deterministic; costs `O(running + waiting)`.
pub fn plan(state: &State) -> Plan {
    let Limits {
        max_step_tokens,
        max_running,
        page_tokens,
    } = state.limits;
    let mut left = max_step_tokens;
    let mut available = state.available_pages;

    let mut running = vec![0; state.running.len()];
    for (share, sequence) in running
        .iter_mut()
        .zip(&state.running)
        .filter(|(_, sequence)| sequence.decodes())
    {
        if left == 0 {
            break;
        }
        if sequence.pages * page_tokens <= sequence.computed {
            if available == 0 && state.running.len() > 1 {
                return Plan::Preempt(state.running.len() - 1);
            }
            available = available.saturating_sub(1);
        }
        *share = 1;
        left -= 1;
    }
    for (share, sequence) in running
        .iter_mut()
        .zip(&state.running)
        .filter(|(_, sequence)| !sequence.decodes())
    {
        *share = left.min(sequence.tokens - sequence.computed);
        left -= *share;
    }

    let mut admitted = Vec::new();
    for sequence in &state.waiting {
        let beside = (state.running.len() + admitted.len()) as u32;
        let growth = if beside == 0 { 0 } else { beside + 1 };
        let own = sequence.needed_pages(page_tokens);
        if left == 0 || beside >= max_running || own.saturating_add(growth) > available {
            break;
        }
        let share = left.min(sequence.tokens - sequence.cached);
        admitted.push(share);
        left -= share;
        available -= own;
    }
    Plan::Compute { running, admitted }
}

impl Waiting {
    /// Available pages that it would take.
    pub fn needed_pages(&self, page_tokens: u32) -> u32 {
        self.tokens.div_ceil(page_tokens) - self.shared_pages + self.idle_pages
    }
}

impl Running {
    /// Whether all but the newest token are computed.
    fn decodes(&self) -> bool {
        self.tokens - self.computed == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_step_tokens: 16,
        max_running: 4,
        page_tokens: 4,
    };

    /// A sequence with pages for all its tokens.
    fn running(tokens: u32, computed: u32) -> Running {
        Running {
            tokens,
            computed,
            pages: tokens.div_ceil(4),
        }
    }

    /// A decoding sequence whose next token needs a page.
    fn growing(computed: u32) -> Running {
        assert_eq!(computed % 4, 0);
        Running {
            tokens: computed + 1,
            computed,
            pages: computed / 4,
        }
    }

    fn waiting(tokens: u32) -> Waiting {
        Waiting {
            tokens,
            ..Waiting::default()
        }
    }

    fn compute(running: &[u32], admitted: &[u32]) -> Plan {
        Plan::Compute {
            running: running.to_vec(),
            admitted: admitted.to_vec(),
        }
    }

    #[test]
    fn plans_follow_the_rules() {
        // Available pages, running, waiting.
        type Case<'a> = (&'a str, u32, &'a [Running], &'a [Waiting], Plan);
        let table: &[Case<'_>] = &[
            ("nothing to do", 9, &[], &[], compute(&[], &[])),
            ("a prompt enters", 9, &[], &[waiting(7)], compute(&[], &[7])),
            (
                "a long prompt is cut to the step",
                9,
                &[],
                &[waiting(30)],
                compute(&[], &[16]),
            ),
            (
                "decodes come first",
                9,
                &[running(30, 16), running(6, 5)],
                &[],
                compute(&[14, 1], &[]),
            ),
            (
                "prompts in order",
                9,
                &[running(20, 8), running(30, 8)],
                &[],
                compute(&[12, 4], &[]),
            ),
            (
                "what is left admits",
                9,
                &[running(6, 5), running(8, 3)],
                &[waiting(8)],
                compute(&[1, 5], &[8]),
            ),
            (
                "no tokens left, no admission",
                9,
                &[running(40, 8)],
                &[waiting(1)],
                compute(&[16], &[]),
            ),
            (
                "no slot",
                99,
                &[running(6, 5); 4],
                &[waiting(1)],
                compute(&[1; 4], &[]),
            ),
            (
                "slots bound what enters",
                99,
                &[running(6, 5); 3],
                &[waiting(1); 2],
                compute(&[1; 3], &[1]),
            ),
            (
                "alone, a prompt may take the whole pool",
                2,
                &[],
                &[waiting(8)],
                compute(&[], &[8]),
            ),
            (
                "beside others it leaves room to grow",
                3,
                &[running(6, 5)],
                &[waiting(8)],
                compute(&[1], &[]),
            ),
            (
                "beside others with room to grow",
                4,
                &[running(6, 5)],
                &[waiting(8)],
                compute(&[1], &[8]),
            ),
            (
                "the second of two leaves room too",
                6,
                &[],
                &[waiting(8); 2],
                compute(&[], &[8, 8]),
            ),
            ("or waits", 5, &[], &[waiting(8); 2], compute(&[], &[8])),
            (
                "nobody overtakes the head",
                4,
                &[running(6, 5)],
                &[waiting(12), waiting(1)],
                compute(&[1], &[]),
            ),
            (
                "a page for a decode",
                1,
                &[growing(4)],
                &[],
                compute(&[1], &[]),
            ),
            (
                "no page: the youngest goes",
                0,
                &[growing(4), running(6, 5)],
                &[],
                Plan::Preempt(1),
            ),
            (
                "even if it is the one that needs it",
                0,
                &[running(6, 5), growing(4)],
                &[],
                Plan::Preempt(1),
            ),
            (
                "even in its prefill",
                0,
                &[growing(4), running(6, 5), running(40, 3)],
                &[],
                Plan::Preempt(2),
            ),
            (
                "two need, one is there",
                1,
                &[growing(4), growing(8)],
                &[],
                Plan::Preempt(1),
            ),
            (
                "a taken page admits nobody",
                3,
                &[growing(4)],
                &[waiting(1)],
                compute(&[1], &[]),
            ),
            (
                "the last one left always goes on",
                0,
                &[growing(4)],
                &[],
                compute(&[1], &[]),
            ),
        ];
        for (name, available_pages, running, waiting, expected) in table {
            let state = State {
                limits: LIMITS,
                available_pages: *available_pages,
                running: running.to_vec(),
                waiting: waiting.to_vec(),
            };
            assert_eq!(plan(&state), *expected, "{name}");
        }
    }

    #[test]
    fn more_decodes_than_a_step_has_tokens_go_oldest_first() {
        let limits = Limits {
            max_step_tokens: 2,
            ..LIMITS
        };
        let state = State {
            limits,
            available_pages: 9,
            running: vec![running(6, 5); 3],
            waiting: vec![waiting(3)],
        };
        assert_eq!(plan(&state), compute(&[1, 1, 0], &[]));
    }

    #[test]
    fn cached_prefixes_need_neither_tokens_nor_pages() {
        let cached = |shared_pages, idle_pages| Waiting {
            tokens: 12,
            cached: 10,
            shared_pages,
            idle_pages,
        };
        let state = |available_pages, waiting| State {
            limits: LIMITS,
            available_pages,
            running: vec![running(6, 5)],
            waiting: vec![waiting],
        };
        // One page of its own, and two to grow.
        assert_eq!(plan(&state(3, cached(2, 0))), compute(&[1], &[2]));
        assert_eq!(plan(&state(2, cached(2, 0))), compute(&[1], &[]));
        // Idle pages stop being available when they are shared.
        assert_eq!(plan(&state(5, cached(2, 2))), compute(&[1], &[2]));
        assert_eq!(plan(&state(4, cached(2, 2))), compute(&[1], &[]));
    }
}
