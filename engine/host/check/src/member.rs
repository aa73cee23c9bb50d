//! Members of stores, as the binary sees them.

/// A member of a configured store.
#[derive(Clone, Debug)]
pub struct ConfiguredMember {
    /// As it is configured.
    pub name: String,
    /// Kernel name of the NVMe namespace that it lies on; none for files and other devices.
    pub drive: Option<String>,
    /// Its write budget.
    pub budget: MemberBudget,
    /// Its memory, in bytes and in words; or why that is unknown.
    pub tables: Result<(u64, String), String>,
    /// The part of it that its poller registers with the drive's ring, in bytes.
    pub pinned_bytes: u64,
}

/// Write budget of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberBudget {
    /// The drive's rated endurance, where it reports one.
    Rated,
    /// No limit.
    Unlimited,
    /// Bytes in 24 hours.
    BytesPerDay(u64),
}
