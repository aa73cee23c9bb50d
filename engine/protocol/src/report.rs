//! The report of `kvrail status`.

use kvrail_counters::{DeviceCounters, PollerCounters, SessionCounters, SidecarCounters};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::config::ConfigReport;
use crate::gpu::GpuReport;
use crate::store::ShardReport;
use crate::trouble::Trouble;

/// The state of a sidecar at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The process.
    pub sidecar: SidecarReport,
    /// Its pollers, by index.
    pub pollers: Vec<PollerReport>,
    /// Its devices, by index.
    pub devices: Vec<DeviceReport>,
    /// Its volumes, by id.
    pub volumes: Vec<VolumeReport>,
    /// The members of its stores.
    pub shards: Vec<ShardReport>,
    /// Its GPUs.
    #[serde(default)]
    pub gpus: Vec<GpuReport>,
    /// Ways to its NVMe devices.
    #[serde(default)]
    pub paths: Vec<PathReport>,
    /// Its NVMe-oF target, if it keeps one.
    #[serde(default)]
    pub target: Option<TargetReport>,
    /// Rights that it has given up.
    #[serde(default)]
    pub sandbox: SandboxReport,
    /// Its configuration.
    #[serde(default)]
    pub config: ConfigReport,
    /// Why the metrics endpoint does not listen; nothing while it does, or is not to.
    #[serde(default)]
    pub endpoint_problem: Option<String>,
    /// Latencies of all clients' calls since the start.
    #[serde(default)]
    pub calls: Vec<CallLatencyReport>,
    /// Gets that memory tiers have served, by pool, as clients have counted them; nothing from a
    /// sidecar of an earlier release.
    #[serde(default)]
    pub memory_hits: Option<Vec<PoolMemoryHits>>,
    /// Its sessions, those being reclaimed included.
    pub sessions: Vec<SessionReport>,
    /// Its table of arenas.
    pub regions: RegionsReport,
    /// Remarks for the operator: fallbacks with their remedies.
    pub notes: Vec<String>,
    /// Reasons why the sidecar does not do all that it is configured for, the gravest first.
    #[serde(default)]
    pub troubles: Vec<Trouble>,
}

impl StatusReport {
    /// The name of a device: its name in the configuration, because a kernel name is another
    /// drive's after the next boot; with its number where others have the same name.
    #[must_use]
    pub fn device_label(&self, index: u16) -> String {
        let Some(device) = self.devices.iter().find(|device| device.index == index) else {
            return index.to_string();
        };
        match self.devices.iter().filter(|other| other.label() == device.label()).count() {
            1 => device.label().to_owned(),
            _ => format!("{} ({index})", device.label()),
        }
    }

    /// Gets that memory tiers have served, as clients counted them: of all stores together, since
    /// no request of theirs names one.
    #[must_use]
    pub fn memory_hits(&self) -> u64 {
        let calls = self.calls.iter().filter(|call| call.operation == "get_from_memory");
        calls.map(|call| call.latency.count()).sum()
    }

    /// Members that were not there when the sidecar started, with their volumes.
    pub fn missing_members(&self) -> impl Iterator<Item = (&str, &str)> {
        self.volumes.iter().flat_map(|volume| {
            volume.missing.iter().map(|member| (volume.name.as_str(), member.as_str()))
        })
    }
}

/// Gets that the memory tiers of a store have served, of blocks of a pool: no request of theirs
/// names a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolMemoryHits {
    /// The store.
    pub store: String,
    /// The pool.
    pub pool: String,
    /// How many since the start.
    pub hits: u64,
}

/// One way to a device, through one controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathReport {
    /// The device.
    pub device: u16,
    /// The controller's kernel name.
    pub controller: String,
    /// `pcie`, `rdma`, `tcp`, ...
    pub transport: String,
    /// As the kernel writes it.
    pub address: String,
    /// `live`, `connecting`, ...
    pub state: String,
    /// `optimized`, `inaccessible`, ...; nothing where the subsystem has no such thing.
    pub ana_state: Option<String>,
}

impl PathReport {
    /// Whether requests can go this way.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        let open = ["optimized", "non-optimized"];
        self.state == "live" && self.ana_state.as_deref().is_none_or(|state| open.contains(&state))
    }
}

/// The NVMe-oF target that a sidecar keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetReport {
    /// Why it is not as planned; nothing while it is.
    pub problem: Option<String>,
    /// States of ANA groups as configured: port, group, state.
    pub ana_states: Vec<(u16, u32, String)>,
}

/// Rights that a sidecar has given up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    /// `on`, `strict` or `off`.
    pub mode: String,
    /// Landlock's rules about files, ports and signals that hold: `whole`, `part` or `none`.
    pub files: String,
    /// Whether system calls are filtered.
    pub calls_filtered: bool,
    /// The capabilities it still has.
    pub capabilities: Vec<String>,
}

impl SandboxReport {
    /// For people, in a line.
    #[must_use]
    pub fn words(&self) -> String {
        if self.mode == "off" {
            return "off".into();
        }
        let calls = if self.calls_filtered { "filtered" } else { "not filtered" };
        let none = || "none".to_owned();
        let kept = Some(self.capabilities.join(" ")).filter(|kept| !kept.is_empty());
        format!(
            "{}: rules for files {}, system calls {calls}, capabilities {}",
            self.mode,
            self.files,
            kept.unwrap_or_else(none)
        )
    }
}

/// Life of a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SidecarState {
    /// Takes clients and requests.
    Serving,
    /// Finishes what it accepted, takes nothing new.
    Draining,
}

/// The sidecar process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SidecarReport {
    /// Process id.
    pub pid: u32,
    /// Number of this run.
    pub epoch: u64,
    /// Release.
    pub version: String,
    /// Seconds since it serves.
    pub uptime_s: u64,
    /// Milliseconds since it serves, by a monotonic clock.
    #[serde(default)]
    pub uptime_ms: u64,
    /// Seconds since 1970 when it began to serve.
    #[serde(default)]
    pub started_unix_s: u64,
    /// Path of its socket.
    pub socket: String,
    /// Its state.
    pub state: SidecarState,
    /// Counters since the start.
    #[serde(flatten)]
    pub counters: SidecarCounters<Option<u64>>,
    /// Sessions with arenas or queues that there may be.
    #[serde(default)]
    pub sessions_max: u32,
    /// How many of them one user may have.
    #[serde(default)]
    pub sessions_per_uid: u32,
}

/// One poller thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PollerReport {
    /// Which.
    pub index: u16,
    /// The CPU it is pinned to, or nothing when it floats.
    pub cpu: Option<u32>,
    /// Nanoseconds since its last tick; grows while it sleeps.
    pub heartbeat_age_ns: u64,
    /// Counters since the start.
    #[serde(flatten)]
    pub counters: PollerCounters<Option<u64>>,
    /// Share of the ticks of the last second or so that found work, 0 to 1.
    pub busy_share: f64,
    /// Lanes it serves.
    pub lanes: u32,
    /// Indices of its devices.
    pub devices: Vec<u16>,
    /// Whether it does not turn.
    #[serde(default)]
    pub stalled: Option<StallReport>,
}

/// A poller that a device keeps in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallReport {
    /// Seconds since its last sign of life.
    pub for_s: u64,
    /// The kernel's description of its thread when that was noticed.
    pub kernel: String,
}

/// Counts of one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCounts {
    /// Operations finished.
    pub operations: u64,
    /// Bytes moved.
    pub bytes: u64,
}

/// Upper bounds of latency quantiles in nanoseconds; 0 when there is nothing to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Median.
    pub p50_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1,000.
    pub p999_ns: u64,
}

/// Latencies in buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistogramReport {
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
    /// Buckets that have some, shortest first: the upper bound in nanoseconds (`u64::MAX`: there
    /// is none) and how many.
    pub buckets: Vec<(u64, u64)>,
}

impl HistogramReport {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Those that have come since an earlier report.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let was = |upper_ns| before.buckets.iter().find(|(was_ns, _)| *was_ns == upper_ns);
        let buckets = self.buckets.iter().map(|&(upper_ns, count)| {
            (upper_ns, count.saturating_sub(was(upper_ns).map_or(0, |(_, was)| *was)))
        });
        Self {
            sum_ns: self.sum_ns.saturating_sub(before.sum_ns),
            buckets: buckets.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Upper bound, in nanoseconds, of the bucket in which this share (0 to 1) of all is reached;
    /// 0 when there are none.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let mut left = share * self.count() as f64;
        let reached = self.buckets.iter().find(|(_, count)| {
            left -= *count as f64;
            left <= 0.0
        });
        reached.or(self.buckets.last()).map_or(0, |(upper_ns, _)| *upper_ns)
    }
}

/// Latencies of the calls of programs, from call to answer, as their clients have counted them.
/// Gets and puts that ended OK, and all lookups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallLatencyReport {
    /// `get`, `put`, `lookup`, or `get_from_memory`, a get that a memory tier has served.
    pub operation: String,
    /// Size of the block: `<=64KiB`, `<=1MiB` or `>1MiB`; `any` of a lookup.
    pub size: String,
    /// From call to answer.
    pub latency: HistogramReport,
}

/// Latencies of one client's calls since it attached, as in [`CallLatencyReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionLatencyReport {
    /// `get`, `put` or `lookup`.
    pub operation: String,
    /// Size of the block, as there.
    pub size: String,
    /// How many.
    pub count: u64,
    /// In nanoseconds.
    #[serde(flatten)]
    pub latency: LatencyReport,
}

/// Latencies of the operations of one kind and class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoLatencyReport {
    /// `read`, `write` or `other`.
    pub operation: String,
    /// `demand`, `prefetch` or `background`.
    pub class: String,
    /// Submission to completion.
    pub device: HistogramReport,
    /// Acceptance to submission.
    pub queue: HistogramReport,
}

/// Whether a device is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceState {
    /// Without a known fault.
    Serving,
    /// It was taken away: its requests end with DEVICE_GONE until it is back.
    Gone,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Which.
    pub index: u16,
    /// The poller that drives it.
    pub poller: u16,
    /// Path, or the name of a device that has none.
    pub name: String,
    /// The volume that it is a member of.
    #[serde(default)]
    pub volume: String,
    /// As the configuration names it: a path, a serial number, an address. Empty where there is no
    /// configuration.
    #[serde(default)]
    pub member: String,
    /// Which drive it is, where it is a block device.
    #[serde(default)]
    pub drive: Option<DriveReport>,
    /// `null`, `sim`, `file` or `block`.
    pub kind: String,
    /// Whether it is there.
    pub state: DeviceState,
    /// Whether it was taken out of its store for good while that is served; it is gone then.
    #[serde(default)]
    pub retired: bool,
    /// The ring mode in force.
    pub mode: String,
    /// Why this mode.
    pub reason: String,
    /// Ring flags, registrations and kernel features in force.
    pub features: Vec<String>,
    /// `direct` or `buffered`.
    pub io: String,
    /// Bytes of the device.
    pub capacity_bytes: u64,
    /// Unit of offsets and lengths, in bytes.
    pub logical_block: u32,
    /// Operations it takes at once.
    pub depth: u32,
    /// Counters since the start, and how the device is now.
    #[serde(flatten)]
    pub counters: DeviceCounters<Option<u64>>,
    /// Reads since start.
    pub reads: IoCounts,
    /// Writes since start.
    pub writes: IoCounts,
    /// Flushes and discards since start.
    pub others: u64,
    /// Age of the oldest request in flight, in milliseconds; 0 when there is none. Looked at every
    /// second or so.
    #[serde(default)]
    pub oldest_ms: u64,
    /// Mean time of an operation at the device in the last 20 seconds or so, in nanoseconds; 0
    /// where few ended.
    #[serde(default)]
    pub recent_ns: u64,
    /// Submission to completion.
    pub device_latency: LatencyReport,
    /// Acceptance to submission.
    pub queue_latency: LatencyReport,
    /// Both since start, of each kind of operation and class that there were any of.
    #[serde(default)]
    pub latencies: Vec<IoLatencyReport>,
}

impl DeviceReport {
    /// A word for why it is not served, if it is not.
    #[must_use]
    pub fn absence(&self) -> Option<&'static str> {
        match self.state {
            DeviceState::Serving => None,
            DeviceState::Gone if self.retired => Some("retired"),
            DeviceState::Gone => Some("gone"),
        }
    }

    fn label(&self) -> &str {
        if self.member.is_empty() { &self.name } else { &self.member }
    }
}

/// Which drive a block device is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveReport {
    /// The kernel's name of it, until the next boot.
    pub kernel_name: String,
    /// Of an NVMe drive; empty for others, as below.
    pub serial: String,
    /// Of an NVMe drive.
    pub model: String,
    /// Where the controller of an NVMe drive is: PCIe or fabrics.
    pub address: String,
    /// Health of an NVMe drive; none before it was asked first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<DriveHealth>,
}

/// An NVMe drive's word about itself. What could not be read is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveHealth {
    /// Seconds since 1970 when it was read.
    pub read_unix_s: u64,
    /// Temperature in degrees Celsius.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub celsius: Option<i32>,
    /// Degrees Celsius from which on the drive warns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning_celsius: Option<i32>,
    /// Percent of the rated life that is used; may pass 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_percent: Option<u8>,
    /// Percent of the spare blocks that is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare_percent: Option<u8>,
    /// Percent of spare below which the drive warns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare_threshold_percent: Option<u8>,
    /// Times that data was found damaged beyond repair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_errors: Option<u64>,
    /// Critical warnings that are set, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnings: Option<Vec<String>>,
    /// Why something is missing, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<String>,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Its name in the configuration.
    pub name: String,
    /// From its label.
    pub uuid: Uuid,
    /// Path of each member that was there at the start.
    pub members: Vec<String>,
    /// Members that were not, as the configuration names them.
    #[serde(default)]
    pub missing: Vec<String>,
    /// Bytes it holds.
    pub capacity_bytes: u64,
    /// Bytes of one stripe.
    pub stripe_bytes: u64,
    /// Unit of offsets and lengths, in bytes.
    pub logical_block: u32,
}

/// The waker of a session's client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientWaker {
    /// The poller with the completion.
    #[default]
    Poller,
    /// A thread of its own, because to wake it takes long.
    Ringer,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Number within the epoch.
    pub id: u64,
    /// Process that attached; 0 when it lives in a namespace we cannot see.
    pub pid: u32,
    /// The uid of its Kubernetes pod; none where its process cannot be seen, or is in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// How it calls itself.
    pub name: String,
    /// Name and version of its library.
    pub library: String,
    /// Arenas it has.
    pub arenas: u32,
    /// Bytes of them.
    pub arena_bytes: u64,
    /// Regions of GPU memory it has.
    #[serde(default)]
    pub gpu_regions: u32,
    /// Bytes of them.
    #[serde(default)]
    pub gpu_bytes: u64,
    /// Queues it has.
    pub queues: u32,
    /// The waker of its client.
    #[serde(default)]
    pub woken_by: ClientWaker,
    /// Counters since it attached.
    #[serde(flatten)]
    pub counters: SessionCounters<Option<u64>>,
    /// Latencies of its calls, by operation and size; none from a client of an earlier release.
    #[serde(default)]
    pub latencies: Vec<SessionLatencyReport>,
    /// `attached`, or `reclaiming: ` and why it ended, and which stalled pollers it waits for.
    pub state: String,
    /// Seconds in that state.
    pub since_s: u64,
}

/// The table of arenas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionsReport {
    /// Arenas of all sessions.
    pub arenas: u32,
    /// Bytes of them.
    pub bytes: u64,
    /// Arenas of ended sessions that hardware may still touch.
    pub quarantined: u32,
    /// Bytes of them.
    pub quarantined_bytes: u64,
    /// Seconds the oldest of them waits.
    pub quarantined_oldest_s: u64,
    /// Bytes all arenas together may have.
    pub limit_bytes: u64,
}
