//! The assembler's report on each kernel.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

/// The resources of one kernel.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Resources {
    pub(super) name: String,
    registers: u32,
    stack: u32,
    spill_stores: u32,
    spill_loads: u32,
}

impl Resources {
    /// Parses a verbose assembler's log; the result is sorted by name.
    pub(super) fn read(log: &str) -> Result<Vec<Self>> {
        let mut kernels: Vec<Self> = Vec::new();
        for line in log.lines() {
            if let Some(rest) = line.split_once("Compiling entry function '") {
                let name = rest.1.split('\'').next().unwrap_or_default().to_owned();
                kernels.push(Self {
                    name,
                    ..Self::default()
                });
                continue;
            }
            let Some(kernel) = kernels.last_mut() else {
                continue;
            };
            if line.contains("bytes stack frame") {
                kernel.stack = before(line, " bytes stack frame")?;
                kernel.spill_stores = before(line, " bytes spill stores")?;
                kernel.spill_loads = before(line, " bytes spill loads")?;
            } else if line.contains("Used ") {
                kernel.registers = before(line, " registers")?;
            }
        }
        ensure!(
            !kernels.is_empty(),
            "the compiler's log names no kernel:\n{log}"
        );
        ensure!(
            kernels.iter().all(|kernel| kernel.registers > 0),
            "the compiler's log does not say how many registers a kernel has:\n{log}"
        );
        kernels.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(kernels)
    }

    /// Returns the bytes spilled from registers.
    pub(super) fn spilled(&self) -> u32 {
        self.spill_stores + self.spill_loads
    }
}

/// Returns the number before `words`.
fn before(line: &str, words: &str) -> Result<u32> {
    let (head, _) = line
        .split_once(words)
        .with_context(|| format!("{line:?} does not say {words:?}"))?;
    let digits = head.rsplit(|c: char| !c.is_ascii_digit()).next();
    (digits.unwrap_or_default().parse())
        .with_context(|| format!("{line:?} has no number before {words:?}"))
}

/// Returns the table of one architecture.
pub(super) fn table(architecture: &str, kernels: &[Resources]) -> String {
    let mut text = format!("{architecture:18} registers  stack  spilled, bytes\n");
    for kernel in kernels {
        let _ = writeln!(
            text,
            "  {:16} {:9}  {:5}  {:7}",
            kernel.name,
            kernel.registers,
            kernel.stack,
            kernel.spilled()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 96 bytes gmem, 192 bytes cmem[4]
ptxas info    : Compiling entry function 'sample_rows' for 'sm_80'
ptxas info    : Function properties for sample_rows
ptxas         .     16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 60 registers, used 1 barriers, 384 bytes cmem[0], 16 bytes cmem[2]
ptxas info    : Compile time = 272.404 ms
ptxas info    : Compiling entry function 'decode_64' for 'sm_80'
ptxas info    : Function properties for decode_64
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
";

    #[test]
    fn a_log_is_read_into_a_table_by_name() {
        let kernels = Resources::read(LOG).unwrap();
        assert_eq!(
            kernels.iter().map(Resources::spilled).collect::<Vec<_>>(),
            [0, 32]
        );
        let lines: Vec<String> = table("sm_80", &kernels)
            .lines()
            .map(str::to_owned)
            .collect();
        assert!(
            lines[1].starts_with("  decode_64") && lines[1].contains("255"),
            "{lines:?}"
        );
        assert!(
            lines[2].starts_with("  sample_rows") && lines[2].ends_with("32"),
            "{lines:?}"
        );
    }

    #[test]
    fn a_log_without_numbers_is_an_error() {
        assert!(Resources::read("").is_err());
        let cut = LOG.split("ptxas info    : Used 255").next().unwrap();
        assert!(Resources::read(cut).is_err());
    }
}
