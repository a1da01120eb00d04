//! The ports of a program in `SECURITY.md`, and those on which a process listens.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// An option that opens a port, and its default address; `None` if the port is closed by default.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) option: String,
    pub(crate) default: Option<SocketAddr>,
}

/// Returns the table's rows for the options of `foreword PROGRAM`.
pub(crate) fn promised(program: &str) -> Vec<Port> {
    let text = include_str!("../../../../../SECURITY.md");
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `foreword ")?.split(" | ");
        let option = cells
            .next()?
            .strip_prefix(program)?
            .trim()
            .trim_end_matches('`');
        let default = cells.next()?.split('`').nth(1);
        Some(Port {
            option: option.to_owned(),
            default: default.map(|address| address.parse().expect("an address")),
        })
    });
    let rows: Vec<Port> = rows.collect();
    assert!(
        !rows.is_empty(),
        "no port of {program} stands in SECURITY.md"
    );
    rows
}

/// Returns the options in a program's help that take an address or endpoint.
pub(crate) fn options(help: &str) -> Vec<String> {
    let lines = help.lines().map(str::trim);
    let lines = lines.filter_map(|line| line.rsplit_once(' '));
    let options = lines.filter(|(_, value)| matches!(*value, "<ADDRESS>" | "<ENDPOINT>"));
    options.map(|(option, _)| option.to_owned()).collect()
}

/// Returns the addresses on which a process listens.
pub(crate) fn listening(process: u32) -> Vec<SocketAddr> {
    let folder = format!("/proc/{process}/fd");
    let files = std::fs::read_dir(folder).expect("its files");
    let files = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let sockets: Vec<String> = files.map(|file| file.display().to_string()).collect();
    let mut addresses = Vec::new();
    for table in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{process}/net/{table}"));
        for line in table.unwrap_or_default().lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, state, .., inode] = &columns[..10] else {
                panic!("a row of sockets, got {line:?}");
            };
            if *state == "0A" && sockets.contains(&format!("socket:[{inode}]")) {
                addresses.push(address(local));
            }
        }
    }
    addresses
}

/// Parses an address in the kernel's format: words of 32 bits in native byte order, and a port.
fn address(text: &str) -> SocketAddr {
    let (address, port) = text.split_once(':').expect("a port");
    let port = u16::from_str_radix(port, 16).expect("a port");
    let words = address.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).expect("digits");
        u32::from_str_radix(word, 16).expect("digits").to_ne_bytes()
    });
    let bytes: Vec<u8> = words.flatten().collect();
    match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(bytes) => (Ipv4Addr::from(bytes), port).into(),
        Err(_) => {
            let bytes: [u8; 16] = bytes.try_into().expect("16 bytes");
            (Ipv6Addr::from(bytes), port).into()
        }
    }
}

/// Asserts that a process listens on `ports` ports, all on loopback.
pub(crate) fn assert_listening(process: u32, ports: usize) {
    let found = listening(process);
    assert_eq!(found.len(), ports, "{found:?}");
    assert!(
        found.iter().all(|address| address.ip().is_loopback()),
        "{found:?}"
    );
}
