//! Checks that `SECURITY.md`'s table of ports lists every port that a server opens, with its default address.

use crate::support::ports::{Port, assert_listening, options, promised};
use crate::support::process::{CHECKPOINT, Process};
use std::path::Path;
use std::process::Command;

fn help(program: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_foreword"))
        .args([program, "--help"])
        .output();
    String::from_utf8(output.expect("the binary runs").stdout).expect("text")
}

/// Starts a program with its defaults, and with every option that opens a port.
fn check(program: &str, needed: &[&str], outgoing: &[&str]) {
    let table = promised(program);
    let mut opens = options(&help(program));
    opens.retain(|option| !outgoing.contains(&&**option));
    let named: Vec<&str> = table.iter().map(|port| &*port.option).collect();
    assert_eq!(opens, named, "SECURITY.md names the options of {program}");
    let folder = Path::new(CHECKPOINT);
    let by_default = table.iter().filter(|port| port.default.is_some());
    let process = Process::start(program, folder, needed);
    assert_listening(process.id(), by_default.count());
    // The process was started with `--listen`.
    let more = table.iter().filter(|port| port.option != "--listen");
    let more = more.flat_map(|port| {
        let is_endpoint = port.option.contains("endpoint");
        [
            &*port.option,
            if is_endpoint {
                "tcp://127.0.0.1:0"
            } else {
                "127.0.0.1:0"
            },
        ]
    });
    let arguments: Vec<&str> = needed.iter().copied().chain(more).collect();
    let process = Process::start(program, folder, &arguments);
    assert_listening(process.id(), table.len());
    let is_told = |port: &Port| match port.default {
        Some(address) if port.option == "--listen" => {
            let default = format!("[default: {address}]");
            help(program).contains(&default)
        }
        _ => true,
    };
    assert!(table.iter().all(is_told), "{table:?}");
    let [clients, internal] = ["--listen", "--internal-listen"].map(|option| {
        let mut ports = table.iter().filter(|port| port.option == option);
        ports
            .next()
            .and_then(|port| port.default)
            .expect("a default")
    });
    assert_eq!(internal.port(), clients.port() + 1000);
}

#[tokio::test]
async fn the_host_listens_where_security_md_says() {
    check("serve", &[], &[]);
}

#[tokio::test]
async fn the_bridge_listens_where_security_md_says() {
    check(
        "kv-bridge",
        &["--events", "tcp://127.0.0.1:1"],
        &["--events", "--replay"],
    );
}
