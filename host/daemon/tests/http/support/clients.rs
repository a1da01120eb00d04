//! The official Python clients, which `cargo xtask setup` installs, and the scripts that test the server with them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use super::MODEL;

/// The folder of the installed packages.
pub(crate) struct OfficialClients {
    root: PathBuf,
    modules: PathBuf,
}

impl OfficialClients {
    /// Returns the clients if all these packages are installed; otherwise prints that the test is skipped.
    pub(crate) fn installed(packages: &[&str]) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let modules = root.join(".tools/clients");
        let is_installed = |package: &&str| modules.join(package).is_dir();
        if !packages.iter().all(is_installed) {
            let packages = packages.join(" and ");
            eprintln!("SKIPPED: {packages} must be in .tools/clients; run `cargo xtask setup`");
            return None;
        }
        Some(Self { root, modules })
    }

    /// Runs a script of `tests/python` against the server, and returns what it printed.
    ///
    /// # Panics
    /// Panics when the script fails, or does not end within two minutes.
    pub(crate) async fn run(&self, script: &str, server: SocketAddr) -> String {
        let output = Command::new("python3")
            .arg(self.root.join("tests/python").join(script))
            .arg(format!("http://{server}"))
            .arg(MODEL)
            .env("PYTHONPATH", &self.modules)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NO_PROXY", "127.0.0.1")
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(Duration::from_secs(120), output);
        let output = output
            .await
            .expect("an end within two minutes")
            .expect("python3 starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}\n{errors}");
        text
    }
}
