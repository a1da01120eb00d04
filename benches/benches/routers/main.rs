//! Three engines behind one gateway: which router reuses most, and how evenly it loads them.
//!
//! `cargo bench -p foreword-benches --bench routers [-- simulated|gateways|hosts|gateways-real|peers]`; `engines=64` restricts the
//! second; `small`, `requests=300` and `k=8` (the traces of that many documents) make the last two shorter; `wide` has the real hosts
//! serve a model whose MLP is wide

mod gateways;
mod hosts;
mod peers;
mod simulated;
mod text_prefix;

use anyhow::Result;
use foreword_benches::Tables;

const ENGINES: usize = 3;

fn main() -> Result<()> {
    // Without `--bench` Cargo only wants to see that it runs.
    let benching = std::env::args().any(|argument| argument == "--bench");
    let tables = Tables::asked_for();
    if tables.has("simulated") {
        simulated::compare(benching);
    }
    if tables.has("gateways") {
        gateways::compare(benching);
    }
    // Processes of release builds: nothing that a test waits for.
    if benching && tables.has("hosts") {
        hosts::compare()?;
    }
    if benching && tables.has("gateways-real") {
        hosts::compare_gateways()?;
    }
    if benching && tables.has("peers") {
        hosts::compare_peers()?;
    }
    Ok(())
}

/// The engines, each first in its turn.
fn in_turn(turn: usize) -> impl Iterator<Item = usize> {
    (0..ENGINES).map(move |at| (at + turn) % ENGINES)
}
