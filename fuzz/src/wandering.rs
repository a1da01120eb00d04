//! Chats whose clients take contexts out of their history, against the slow model that the property tests use: a client,
//! then four bytes a step.

#[path = "../../wasm-module/ordering/tests/clients/mod.rs"]
mod clients;
#[path = "../../wasm-module/ordering/tests/clients/model.rs"]
mod model;

use self::clients::Client;

pub(crate) fn run(input: &[u8]) {
    let Some((first, steps)) = input.split_first() else {
        return;
    };
    let client = Client::ALL[usize::from(first % 32) % Client::ALL.len()];
    let (steps, _) = steps.as_chunks();
    let steps = &steps[..steps.len().min(32)];
    match first / 32 {
        0..4 => model::run_whole(client, steps),
        4..6 => model::run(client, 1 << 20, steps),
        _ => model::run(client, 3_000, steps),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let clients = 0..Client::ALL.len() as u8;
    clients
        .flat_map(|client| [client, 128 + client, 224 + client])
        .map(|first| [vec![first], super::chats::random(first.into(), 4 * 12)].concat())
        .collect()
}
