//! How much memory this process may keep pinned. The kernel counts what rings have registered, and
//! from 6.14 on the memory of rings, for all processes of a user together.

use std::fmt;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// The limit of pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinLimit {
    /// There is none: RLIMIT_MEMLOCK is unlimited, or CAP_IPC_LOCK lifts it.
    Unlimited,
    /// RLIMIT_MEMLOCK, in bytes.
    Bytes(u64),
}

impl PinLimit {
    /// That of this thread's user and capabilities.
    #[must_use]
    pub fn of_this_process() -> Self {
        // A kernel that does not report the pinned bytes counts as one with none.
        let held =
            capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::IPC_LOCK));
        match getrlimit(Resource::Memlock).current {
            Some(bytes) if !held => Self::Bytes(bytes),
            _ => Self::Unlimited,
        }
    }

    /// Whether `bytes` bytes may be pinned, if nothing else of this user is.
    #[must_use]
    pub fn allows(self, bytes: u64) -> bool {
        match self {
            Self::Unlimited => true,
            Self::Bytes(most) => bytes <= most,
        }
    }
}

impl fmt::Display for PinLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Bytes(bytes) => write!(f, "{bytes} bytes (RLIMIT_MEMLOCK)"),
        }
    }
}

/// The operator's way to allow a process to pin `bytes` bytes. An ordinary user may not raise the
/// limit above its hard value, so `ulimit -l` is no remedy.
#[must_use]
pub fn pin_remedy(bytes: u64) -> String {
    format!(
        "allow {bytes} bytes or more: LimitMEMLOCK=infinity in the systemd unit; sudo prlimit \
         --pid $$ --memlock=unlimited in a shell; --ulimit memlock=-1 for a container; or \
         CAP_IPC_LOCK (sudo setcap cap_ipc_lock=ep PROGRAM)"
    )
}

#[cfg(test)]
mod tests {
    use super::{PinLimit, pin_remedy};

    #[test]
    fn a_limit_allows_what_it_names() {
        assert!(PinLimit::Unlimited.allows(u64::MAX));
        assert!(PinLimit::Bytes(4096).allows(4096) && !PinLimit::Bytes(4096).allows(4097));
        assert_eq!(PinLimit::Bytes(8_388_608).to_string(), "8388608 bytes (RLIMIT_MEMLOCK)");
    }

    #[test]
    fn the_remedy_names_the_bytes_and_each_way() {
        let text = pin_remedy(55_300_000);
        for word in ["55300000", "LimitMEMLOCK", "prlimit", "--ulimit memlock=-1", "setcap"] {
            assert!(text.contains(word), "no {word} in {text}");
        }
    }
}
