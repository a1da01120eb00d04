//! Fits the number of connections to the process's limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the process's limit of open files if `wanted` connections and `reserved` other files need it, as far as the
/// system allows. Returns the number of connections that are then possible, at most `wanted`.
pub fn within_open_files(wanted: u32, reserved: u32) -> u32 {
    let needed = u64::from(wanted) + u64::from(reserved);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(limit) = current.filter(|limit| *limit < needed) else {
        return wanted;
    };
    let raised = maximum.map_or(needed, |maximum| maximum.min(needed));
    let current = Some(raised);
    let limit = match setrlimit(Resource::Nofile, Rlimit { current, maximum }) {
        Ok(()) => raised,
        Err(_) => limit,
    };
    fitting(wanted, reserved, limit)
}

fn fitting(wanted: u32, reserved: u32, limit: u64) -> u32 {
    // If the limit is small, connections may use half of it; failures to accept are logged.
    let room = limit.saturating_sub(reserved.into()).max(limit / 2).max(1);
    u32::try_from(room).map_or(wanted, |room| room.min(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_rest() {
        assert_eq!(fitting(1024, 192, 65_536), 1024);
        assert_eq!(fitting(1024, 192, 1024), 832);
        assert_eq!(fitting(1024, 192, 256), 128);
        assert_eq!(fitting(1024, 192, 0), 1);
    }

    #[test]
    fn what_fits_anyway_is_left_as_it_is() {
        assert_eq!(within_open_files(1, 1), 1);
    }
}
