//! Limits of this machine: kernel version, io_uring's switch, limits, cores.

use std::fs;

use kvrail_memory::Topology;

/// Oldest kernel kvrail runs on: the first with DEFER_TASKRUN and a settled registration ABI.
pub(crate) const KERNEL_MIN: (u32, u32) = (6, 1);

/// The kernel's version, if its release string can be understood.
pub(crate) fn kernel_version() -> Option<(u32, u32)> {
    parse_release(rustix::system::uname().release().to_str().ok()?)
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// `kernel.io_uring_disabled`: 0 is open to all, 1 to privileged processes and one group, 2 closed.
/// `None` where the kernel (before 6.6) has no such switch.
pub(crate) fn io_uring_disabled() -> Option<u32> {
    read_number("/proc/sys/kernel/io_uring_disabled")
}

/// Cores this process may use. Not `available_parallelism`: the calling thread is a poller, pinned
/// to one of them.
pub(crate) fn cores() -> usize {
    Topology::host().map_or(1, |topology| topology.usable_cores())
}

/// A number in a file of procfs or sysfs.
pub(crate) fn read_number<T: std::str::FromStr>(path: impl AsRef<std::path::Path>) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{kernel_version, parse_release};

    #[test]
    fn release_strings_of_all_kinds() {
        assert_eq!(parse_release("6.1.0-28-amd64"), Some((6, 1)));
        assert_eq!(parse_release("7.3-rc1"), Some((7, 3)));
        assert_eq!(parse_release("6.12+"), Some((6, 12)));
        assert_eq!(parse_release("garbage"), None);
        assert!(kernel_version().is_some());
    }
}
