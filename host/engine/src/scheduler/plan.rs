//! Decides the content of one step.
//!
//! [`plan()`] holds the rules of continuous batching (Orca, OSDI '22 §3.2) with chunked prefill (Sarathi-Serve, OSDI
//! '24 §4.2) as one pure function. It knows counts of tokens and pages, but no tokens, prefixes or arithmetic. The
//! caller carries the plan out and asks again.
//!
//! The rules, in order:
//!
//! 1. **Decodes first.** Each sequence that needs only its next token gets it in every step, so a long prompt never
//!    delays the answers that are generated at the same time.
//! 2. **Pages before everything.** When the decodes of a step need more pages than are available, the youngest sequence
//!    is preempted ([`Plan::Preempt`]): it releases its pages and is computed again later, from what is still cached.
//!    No request fails for want of pages. The last running sequence always has room, because a prompt that does not
//!    fit alone is refused on submission, an answer ends when it fills the pool, and the caller first releases pages
//!    that no running sequence holds.
//! 3. **Chunked prefill.** The remaining tokens of the step are given to running prompts, oldest first.
//! 4. **Admission in the queue's order.** Waiting requests are admitted in order while there are tokens left in the
//!    step, a free slot, pages for all of the request's tokens, and one more page for each running sequence to grow
//!    into. Without that margin the newcomer would be preempted as soon as any page is full. The first request that
//!    does not fit ends admission, because admitting smaller ones after it would starve it.

/// The input of [`plan()`]: counts of the engine's running and waiting requests and of its pages.
#[derive(Clone, Debug, Default)]
pub struct SchedulerState {
    /// The bounds of the step that is planned.
    pub limits: Limits,
    /// Number of device pages that no running sequence holds: free ones, and those that only cache prefixes.
    pub available_pages: u32,
    /// Running sequences, in the order of their admission.
    pub running: Vec<Running>,
    /// The first waiting requests in the order of admission: at least as many as could be admitted in this step.
    pub waiting: Vec<Waiting>,
}

/// The bounds of one step, and the page size.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Maximum number of tokens computed in one step, over all sequences, prefill and decode together.
    pub max_step_tokens: u32,
    /// Maximum number of sequences that run at once.
    pub max_running: u32,
    /// Number of tokens in a page, at least one.
    pub page_tokens: u32,
}

/// Counts of a running sequence. It holds pages for its whole prompt from its admission on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Running {
    /// Number of tokens in the sequence: those of the prompt and those generated.
    pub tokens: u32,
    /// Number of leading tokens of the sequence that are computed; at least one token is not.
    pub computed: u32,
    /// Number of pages in the sequence's page table.
    pub pages: u32,
}

/// Counts of a waiting sequence, and of what the cache holds of its prefix.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiting {
    /// Number of tokens in the sequence: those of the prompt, and those generated before it was preempted.
    pub tokens: u32,
    /// Number of leading tokens of the sequence that are cached; at least one token is not.
    pub cached: u32,
    /// Number of full cached pages on the device that the sequence would share, so that it needs no new ones for them.
    pub shared_pages: u32,
    /// Of the `shared_pages`, the number that no running sequence holds, and that therefore count as available
    /// now.
    pub idle_pages: u32,
}

/// The engine's next action: a preemption or a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Release the pages of the running sequence with this index, put it at the head of the queue, and call [`plan()`]
    /// again.
    Preempt(usize),
    /// Run one step of the model with these numbers of tokens for the sequences.
    Compute {
        /// Number of tokens to compute for each running sequence; 0 for a sequence that is not part of the step.
        running: Vec<u32>,
        /// Number of tokens to compute for each newly admitted sequence, at least one: the first waiting ones, in
        /// order. Its length is the number of sequences to admit.
        admitted: Vec<u32>,
    },
}

/// Decides what the engine does next: preempt a sequence, or compute a step. Deterministic; costs
/// `O(running + waiting)`.
pub fn plan(state: &SchedulerState) -> Plan {
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
    /// Returns the number of available pages that the sequence would take if it were admitted, with pages of
    /// `page_tokens` tokens.
    pub fn needed_pages(&self, page_tokens: u32) -> u32 {
        self.tokens.div_ceil(page_tokens) - self.shared_pages + self.idle_pages
    }
}

impl Running {
    /// Returns whether all tokens but the newest are computed, so that the sequence needs one token in the next step.
    pub fn decodes(&self) -> bool {
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

    /// Returns a sequence with pages for all its tokens.
    fn running(tokens: u32, computed: u32) -> Running {
        Running {
            tokens,
            computed,
            pages: tokens.div_ceil(4),
        }
    }

    /// Returns a decoding sequence whose next token needs a new page.
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
        // Name, available pages, running, waiting, expected plan.
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
            let state = SchedulerState {
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
        let state = SchedulerState {
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
        let state = |available_pages, waiting| SchedulerState {
            limits: LIMITS,
            available_pages,
            running: vec![running(6, 5)],
            waiting: vec![waiting],
        };
        // It needs one page of its own and two for growth.
        assert_eq!(plan(&state(3, cached(2, 0))), compute(&[1], &[2]));
        assert_eq!(plan(&state(2, cached(2, 0))), compute(&[1], &[]));
        // Idle pages stop being available when they are shared.
        assert_eq!(plan(&state(5, cached(2, 2))), compute(&[1], &[2]));
        assert_eq!(plan(&state(4, cached(2, 2))), compute(&[1], &[]));
    }
}
