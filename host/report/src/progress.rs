//! Progress bars on standard error, which are hidden unless it is a terminal.

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// Returns a progress bar of `length` steps, labelled `name`.
///
/// # Errors
/// Never fails, since the template is valid.
pub fn bar(name: &str, length: usize) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{prefix:>14} {wide_bar} {percent:>3} %  {msg}")?;
    Ok(ProgressBar::new(length as u64)
        .with_style(style)
        .with_prefix(name.to_owned()))
}

/// Number of steps after which callers update a bar.
pub const STRIDE: usize = 256;
