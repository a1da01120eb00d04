//! Chat traffic that continues while a test changes the servers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread::{self, ScopedJoinHandle};

use crate::http::{Client, post};
use crate::wait::until;

/// Sends chats on `senders` connections, one at a time on each, while `meanwhile` runs. `body` makes a chat from the
/// sender's number and the chat's number. `meanwhile` receives a function that waits for a number of further responses.
///
/// # Panics
/// Panics when a response has a status other than 200, or is missing.
pub fn under_traffic(
    address: SocketAddr,
    senders: u32,
    body: impl Fn(u32, u32) -> String + Sync,
    meanwhile: impl FnOnce(&dyn Fn(u32)),
) {
    let (done, answered) = (AtomicBool::new(false), AtomicU32::new(0));
    let send = |sender: u32| {
        let mut client = Client::connect(address).expect("a connection");
        for number in 0.. {
            if done.load(SeqCst) {
                return;
            }
            let request = post(body(sender, number).as_bytes());
            let response = client.send(&request).and_then(|()| client.response());
            let response = response.expect("an answer");
            let shown = String::from_utf8_lossy(&response.body);
            assert_eq!(response.status, 200, "{} {shown}", response.report());
            answered.fetch_add(1, SeqCst);
        }
    };
    thread::scope(|scope| {
        let handles: Vec<_> = (0..senders)
            .map(|sender| scope.spawn(move || send(sender)))
            .collect();
        // The senders stop, too, if the test fails.
        let _ending = Ending(&done);
        meanwhile(&|by| {
            let goal = answered.load(SeqCst) + by;
            until("traffic flows", || {
                handles.iter().any(ScopedJoinHandle::is_finished) || answered.load(SeqCst) >= goal
            });
        });
    });
}

/// Stops the senders when it is dropped.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
