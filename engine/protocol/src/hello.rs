//! The first messages: identity and versions of the client, and the sidecar's offer.

use serde::{Deserialize, Serialize};

use crate::gpu::GpuInfo;
use crate::volume::VolumeInfo;

/// Version of this protocol. Another major is refused; of two minors the lower one is used, and
/// clients send nothing that it lacks (`ControlRequest::minor`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Changes when a message changes its meaning.
    pub major: u16,
    /// Changes when messages or fields are added.
    pub minor: u16,
}

impl Version {
    /// The version this crate speaks.
    pub const CURRENT: Self = Self { major: 2, minor: 9 };

    /// Whether a lookup's further slots may have a mark (`slot::FLAG_CONTINUED`): earlier sidecars
    /// refuse the flag.
    #[must_use]
    pub const fn marks_continued_lookups(self) -> bool {
        self.minor >= 2
    }

    /// Whether a lookup may touch what it finds (`slot::FLAG_TOUCH`): earlier sidecars refuse the
    /// flag.
    #[must_use]
    pub const fn touches(self) -> bool {
        self.minor >= 2
    }

    /// Whether a client can share the latencies of its calls.
    #[must_use]
    pub const fn shares_latencies(self) -> bool {
        self.minor >= 5
    }

    /// Whether puts may have a worth, and lookups may demote (`slot::FLAG_DEMOTE`): earlier
    /// sidecars refuse both.
    #[must_use]
    pub const fn takes_hints(self) -> bool {
        self.minor >= 7
    }

    /// Whether a client can map memory tiers, and lookups may fetch into them
    /// (`slot::FLAG_FETCH`): earlier sidecars refuse both.
    #[must_use]
    pub const fn shows_tiers(self) -> bool {
        self.minor >= 8
    }

    /// Whether a client can watch when the transfers of a sidecar that was killed have ended.
    #[must_use]
    pub const fn shows_transfers(self) -> bool {
        self.minor >= 9
    }

    /// The version that two sides of one major use with each other.
    #[must_use]
    pub fn lower_minor(self, other: Self) -> Self {
        Self { minor: self.minor.min(other.minor), ..self }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The client's first message. Unknown fields are passed over, so that the versions of any later
/// release can be read and named in the refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol the client speaks.
    pub protocol: Version,
    /// Its `kvrail_ring::limits::LANE_VERSION`.
    pub lane_version: u32,
    /// How the client calls itself; shown in status and logs, cut to 64 characters.
    pub name: String,
    /// Name and version of its library, for logs and refusals.
    pub library: String,
}

/// Why a client may not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCode {
    /// Protocol or lane version do not match.
    Version,
    /// The configuration does not let this user or group attach.
    NotAllowed,
    /// All session slots are taken.
    Full,
    /// The first message was no hello.
    Malformed,
    /// The hello did not come in time.
    TooLate,
    /// The sidecar is stopping.
    Draining,
}

/// One poller, as a client sees it. Its place in the list is its lane in every queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollerInfo {
    /// The CPU it is pinned to, or nothing when it floats.
    pub cpu: Option<u32>,
}

/// How a client on this host should wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpinHints {
    /// Longest wait worth spinning for, in nanoseconds; 0 is never.
    pub spin_ns: u64,
    /// CPUs the sidecar sees.
    pub cores: u32,
    /// Pollers that spin while there is work.
    pub spinning_pollers: u32,
}

/// Limits of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsInfo {
    /// Arenas at once.
    pub arenas: u32,
    /// Bytes of all its arenas.
    pub arena_bytes: u64,
    /// Queues at once.
    pub queues: u32,
    /// Requests in one lane.
    pub queue_depth: u32,
    /// Regions of GPU memory at once.
    #[serde(default)]
    pub gpu_regions: u32,
    /// Bytes of all its regions of GPU memory.
    #[serde(default)]
    pub gpu_bytes: u64,
}

/// The answer to a hello that is let in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The protocol spoken from now on.
    pub protocol: Version,
    /// The sidecar's release.
    pub sidecar: String,
    /// Number of this run of the sidecar.
    pub epoch: u64,
    /// Number of this session within the epoch.
    pub session: u64,
    /// All pollers, by index.
    pub pollers: Vec<PollerInfo>,
    /// How to wait.
    pub spin: SpinHints,
    /// All volumes, by id.
    pub volumes: Vec<VolumeInfo>,
    /// The GPUs that are served.
    #[serde(default)]
    pub gpus: Vec<GpuInfo>,
    /// Limits of this session.
    pub limits: LimitsInfo,
}
