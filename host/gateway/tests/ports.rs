//! Checks that `SECURITY.md`'s table of ports lists every port that `foreword ext-proc` opens, with its default
//! address.

#[path = "../../daemon/tests/http/support/ports.rs"]
mod ports;

use ports::{assert_listening, options, promised};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn the_external_processor_listens_where_security_md_says() {
    let program = || Command::new(env!("CARGO_BIN_EXE_foreword-gateway"));
    let table = promised("ext-proc");
    let help = program().arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let named: Vec<&str> = table.iter().map(|port| &*port.option).collect();
    let opens = options(&help);
    assert!(
        named
            .iter()
            .all(|option| opens.iter().any(|opened| opened == option)),
        "{opens:?}"
    );
    assert_eq!(opens.len(), named.len(), "{opens:?}");
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "{}").unwrap();
    let mut command = program();
    command.arg("--config").arg(config.path());
    for port in &table {
        let default = port.default.expect("it is open by default");
        assert!(help.contains(&format!("[default: {default}]")), "{default}");
        command.args([&*port.option, "127.0.0.1:0"]);
    }
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    assert_listening(process.id(), table.len());
    process.kill().unwrap();
    process.wait().unwrap();
}
