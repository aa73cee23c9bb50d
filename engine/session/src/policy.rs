//! Limits and permissions of clients: the settings that a running server can replace, and the
//! placement of memory.

use std::time::Duration;

use kvrail_memory::{PageSize, Sealing, Topology};
use kvrail_poller::{LANES_MAX, REGIONS_MAX, SESSIONS_MAX};
use kvrail_ring::limits::LANE_DEPTH_MAX;
use kvrail_store::Budget;

use crate::access::Access;
use crate::pools::PoolSize;
use crate::tenants::Tenancy;

/// Limits of clients. Every field names its key in the configuration; messages about a limit name
/// it too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `limits.sessions`: clients with arenas or queues at once, at most `SESSIONS_MAX`.
    pub sessions: usize,
    /// `limits.sessions_per_uid`: how many of them one user may have.
    pub sessions_per_uid: usize,
    /// `limits.arenas_per_session`: arenas of one client at once.
    pub arenas_per_session: usize,
    /// `limits.arena_bytes_per_session`: bytes of all arenas of one client.
    pub arena_bytes_per_session: u64,
    /// `limits.arena_bytes_total`: bytes of all arenas.
    pub arena_bytes_total: u64,
    /// `limits.gpu_regions_per_session`: regions of GPU memory of one client at once.
    pub gpu_regions_per_session: usize,
    /// `limits.gpu_bytes_per_session`: bytes of all GPU memory of one client.
    pub gpu_bytes_per_session: u64,
    /// `limits.queues_per_session`: queues of one client at once.
    pub queues_per_session: usize,
    /// `limits.lane_depth`: requests in one lane, at most `LANE_DEPTH_MAX`.
    pub queue_depth: u32,
    /// `limits.handshake_timeout`: time after which a connection without a hello is closed, and an
    /// idle client without resources may be evicted for another.
    pub handshake_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: SESSIONS_MAX,
            sessions_per_uid: SESSIONS_MAX / 2,
            arenas_per_session: 16,
            arena_bytes_per_session: 128 << 30,
            arena_bytes_total: 512 << 30,
            gpu_regions_per_session: 16,
            gpu_bytes_per_session: 1 << 40,
            queues_per_session: 64,
            queue_depth: 1024,
            handshake_timeout: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// These limits, cut to what the pollers' fixed tables hold.
    pub(crate) fn clamped(mut self) -> Self {
        self.sessions = self.sessions.min(SESSIONS_MAX);
        self.sessions_per_uid = self.sessions_per_uid.min(self.sessions);
        self.arenas_per_session = self.arenas_per_session.min(REGIONS_MAX);
        self.gpu_regions_per_session = self.gpu_regions_per_session.min(REGIONS_MAX);
        self.queues_per_session = self.queues_per_session.min(LANES_MAX);
        self.queue_depth = self.queue_depth.min(LANE_DEPTH_MAX);
        self
    }
}

/// When something is taken for hanging. Every field names its key in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patience {
    /// `pollers.stall_after`: a poller that has not completed a turn for this time is stalled.
    pub stall_after: Duration,
    /// `pollers.overdue_after`: requests older than this are reported.
    pub overdue_after: Duration,
    /// `pollers.slow_after`: requests that took this long are in the slow log.
    pub slow_after: Duration,
}

impl Patience {
    pub(crate) fn slow_ns(&self) -> u64 {
        u64::try_from(self.slow_after.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            stall_after: Duration::from_secs(2),
            overdue_after: Duration::from_secs(10),
            slow_after: Duration::from_millis(100),
        }
    }
}

/// Which pages an arena gets when the client leaves it to the sidecar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PagePolicy {
    /// 2 MiB hugepages where there are enough free ones, else transparent ones, else base pages; a
    /// downgrade is logged once.
    #[default]
    Best,
    /// Exactly this size, or an error.
    Exactly(PageSize),
}

/// On which NUMA node new arenas lie. Imported memory stays where it is.
#[derive(Clone, Debug, Default)]
pub enum NumaPolicy {
    /// Wherever the kernel puts them.
    #[default]
    Anywhere,
    /// On this NUMA node of this machine while it has room, then anywhere, with a log line.
    Near(u32, Topology),
    /// On this NUMA node of this machine, or an error.
    On(u32, Topology),
}

/// Write budget of a store's members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteBudget {
    /// The rated five-year endurance of each member's drive; `Unlimited` where the drive does not
    /// report it.
    #[default]
    Rated,
    /// No limit.
    Unlimited,
    /// So often their size in 24 hours, in thousandths.
    DriveWrites(u32),
}

impl WriteBudget {
    /// The budget of a member with a capacity of `capacity_bytes`; `rated` is the drive's endurance
    /// in thousandths of drive writes a day.
    #[must_use]
    pub fn of(self, capacity_bytes: u64, rated: Option<u32>) -> Budget {
        let thousandths = match self {
            Self::Rated => rated,
            Self::Unlimited => None,
            Self::DriveWrites(thousandths) => Some(thousandths),
        };
        thousandths.map_or(Budget::Unlimited, |thousandths| {
            let bytes = u128::from(capacity_bytes) * u128::from(thousandths) / 1000;
            // 0 would be no budget at all.
            Budget::BytesPerDay(u64::try_from(bytes).unwrap_or(u64::MAX).max(1))
        })
    }
}

/// Rules for later requests of clients; a running server can replace them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Users that may attach.
    pub access: Access,
    /// Limits of clients.
    pub limits: Limits,
    /// Write budget of each store's members, by its volume's id; the others have the endurance of
    /// their drives.
    pub write_budgets: Vec<WriteBudget>,
    /// Sizes of the pools of each store, by its volume's id, in the order of their rules.
    pub pools: Vec<Vec<PoolSize>>,
    /// Permissions on the namespaces of each store, by its volume's id. Without rules every user
    /// has every permission; with rules, unnamed users have none. Applies to later opens.
    pub tenants: Vec<Vec<Tenancy>>,
    /// Pages of arenas.
    pub pages: PagePolicy,
    /// Seals of memory that clients import.
    pub sealing: Sealing,
    /// How long a stop waits for accepted requests.
    pub drain_timeout: Duration,
    /// When something is taken for hanging.
    pub patience: Patience,
}

impl Policy {
    /// Permissions on the namespaces of a store.
    pub(crate) fn tenants_of(&self, volume: u16) -> &[Tenancy] {
        self.tenants.get(usize::from(volume)).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use kvrail_store::Budget;

    use super::WriteBudget;

    #[test]
    fn what_is_configured_goes_before_what_a_drive_bears() {
        let terabyte = 1_000_000_000_000;
        let of = |budget: WriteBudget, rated| budget.of(terabyte, rated);
        let half = Budget::BytesPerDay(terabyte / 2);
        assert_eq!(of(WriteBudget::Rated, None), Budget::Unlimited);
        assert_eq!(of(WriteBudget::Rated, Some(500)), half);
        assert_eq!(of(WriteBudget::Unlimited, Some(500)), Budget::Unlimited);
        assert_eq!(of(WriteBudget::DriveWrites(500), Some(3000)), half);
        assert_eq!(WriteBudget::Rated.of(10, Some(1)), Budget::BytesPerDay(1));
        let most = Budget::BytesPerDay(u64::MAX);
        assert_eq!(WriteBudget::Rated.of(u64::MAX, Some(u32::MAX)), most);
    }
}
