//! Progress on standard error; silent where that is no terminal.

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// A bar for `length` steps of what `name` says; it vanishes when it is done.
///
/// # Errors
/// Never: the template is fixed.
pub fn bar(name: &str, length: usize) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{prefix:>14} {wide_bar} {percent:>3} %  {msg}")?;
    Ok(ProgressBar::new(length as u64)
        .with_style(style)
        .with_prefix(name.to_owned()))
}

/// Steps between two looks at the clock by the bar.
pub const STRIDE: usize = 256;
