//! Several engines behind one gateway (three, and 15 for `agents`): which router reuses most, and how evenly it loads them.
//!
//! `cargo bench -p foreword-benches -- routers [simulated|agents|gateways|hosts|gateways-real|peers]`; `engines=64` restricts `gateways`;
//! `small`, `requests=300` and `k=8` (the traces of that many documents) make the last two shorter; `wide` has the real hosts serve a
//! model whose MLP is wide; `place=free` places documents freely.

mod agents;
mod gateways;
mod hosts;
mod peers;
mod simulated;
mod text_prefix;

use anyhow::Result;
use foreword_benches::Arguments;

const ENGINES: usize = 3;

pub(crate) fn bench(arguments: &Arguments) -> Result<()> {
    if arguments.has("simulated") {
        simulated::compare(arguments);
    }
    if arguments.has("agents") {
        agents::compare(arguments);
    }
    if arguments.has("gateways") {
        gateways::compare(arguments);
    }
    // Processes of release builds: nothing that a test waits for.
    if arguments.benching && arguments.has("hosts") {
        hosts::compare(arguments)?;
    }
    if arguments.benching && arguments.has("gateways-real") {
        hosts::compare_gateways(arguments)?;
    }
    if arguments.benching && arguments.has("peers") {
        hosts::compare_peers(arguments)?;
    }
    Ok(())
}

/// The engines, each first in its turn.
fn in_turn(turn: usize) -> impl Iterator<Item = usize> {
    (0..ENGINES).map(move |at| (at + turn) % ENGINES)
}
