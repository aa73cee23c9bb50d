//! The configuration as typed values. Each key's unit, range, default and reason stand in
//! `config/default.toml`; a test holds the two against each other.

use std::net::SocketAddr;
use std::path::PathBuf;

use kvrail_device::{DirectIo, ModeName};
use kvrail_metrics::Listen;
use kvrail_nvme::Selector;
use kvrail_sandbox::SandboxMode as Sandbox;
use kvrail_units::{Period, Size};
use kvrail_volume::VolumeName;
use serde::{Deserialize, Serialize};

use super::auto::Auto;
use super::enums::{ArenaPages, FileMode, LogFormat, NullContent, Unsealed};
use super::gpu::GpuConfig;
use super::pool::PoolConfig;
use super::target::TargetConfig;
use super::tenant::Tenant;
use super::write_budget::WriteBudget;

/// Everything that can be configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub sidecar: SidecarConfig,
    pub metrics: MetricsConfig,
    pub pollers: PollersConfig,
    pub memory: MemoryConfig,
    pub memory_tier: MemoryTierConfig,
    pub limits: LimitsConfig,
    pub device: DeviceConfig,
    pub gpu: GpuConfig,
    pub target: TargetConfig,
    pub volume: Vec<VolumeConfig>,
}

/// The process and its door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SidecarConfig {
    pub socket: PathBuf,
    pub socket_mode: FileMode,
    /// Besides root and the sidecar's own user, which always may.
    pub allow_uids: Vec<u32>,
    pub allow_gids: Vec<u32>,
    pub drain_timeout: Period,
    pub wait_for_drives: Period,
    pub log: String,
    pub log_format: LogFormat,
    pub sandbox: Sandbox,
}

impl Default for SidecarConfig {
    fn default() -> Self {
        Self {
            socket: "/run/kvrail/kvrail.sock".into(),
            socket_mode: FileMode::new(0o660),
            allow_uids: Vec::new(),
            allow_gids: Vec::new(),
            drain_timeout: Period::from_s(30),
            wait_for_drives: Period::from_s(120),
            log: "info".into(),
            log_format: LogFormat::Text,
            sandbox: Sandbox::On,
        }
    }
}

/// The HTTP endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    pub listen: Listen,
    pub hosts: Vec<String>,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        let listen = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 9464)));
        Self { listen, hosts: Vec::new() }
    }
}

/// The pinned threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PollersConfig {
    pub count: Auto<u16>,
    pub cpus: Auto<Vec<u16>>,
    pub busy_poll_max: Auto<Period>,
    pub heartbeat: Period,
    pub stall_after: Period,
    pub overdue_after: Period,
    pub slow_after: Period,
}

impl Default for PollersConfig {
    fn default() -> Self {
        Self {
            count: Auto::Auto,
            cpus: Auto::Auto,
            busy_poll_max: Auto::Auto,
            heartbeat: Period::from_s(1),
            stall_after: Period::from_s(2),
            overdue_after: Period::from_s(10),
            slow_after: Period::from_ms(100),
        }
    }
}

/// Where arenas come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    pub pages: ArenaPages,
    pub node: Auto<u16>,
    pub unsealed_imports: Unsealed,
}

/// Memory in which blocks of stores lie that are asked for often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryTierConfig {
    /// All together; 0: none.
    pub bytes: Size,
    /// Namespaces whose puts are acknowledged from there.
    pub write_late: Vec<String>,
}

impl Default for MemoryTierConfig {
    fn default() -> Self {
        Self { bytes: Size::new(0), write_late: Vec::new() }
    }
}

/// Limits of one client and of all together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    pub sessions: u32,
    pub sessions_per_uid: u32,
    pub arenas_per_session: u32,
    pub arena_bytes_per_session: Size,
    pub arena_bytes_total: Size,
    pub gpu_regions_per_session: u32,
    pub gpu_bytes_per_session: Size,
    pub queues_per_session: u32,
    pub lane_depth: u32,
    pub handshake_timeout: Period,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            sessions: 64,
            sessions_per_uid: 32,
            arenas_per_session: 16,
            arena_bytes_per_session: Size::new(128 << 30),
            arena_bytes_total: Size::new(512 << 30),
            gpu_regions_per_session: 16,
            gpu_bytes_per_session: Size::new(1 << 40),
            queues_per_session: 64,
            lane_depth: 1024,
            handshake_timeout: Period::from_s(5),
        }
    }
}

/// How a member is driven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceConfig {
    pub mode: Auto<ModeName>,
    pub direct: DirectIo,
    pub queue_depth: u32,
    pub in_flight_bytes: Auto<Size>,
    pub write_stream: Auto<u8>,
    pub sq_idle: Period,
    pub sq_cpu: Auto<u16>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            mode: Auto::Auto,
            direct: DirectIo::Required,
            queue_depth: 256,
            in_flight_bytes: Auto::Auto,
            write_stream: Auto::Auto,
            sq_idle: Period::from_ms(20),
            sq_cpu: Auto::Auto,
        }
    }
}

/// A volume to serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeConfig {
    pub name: VolumeName,
    pub members: Vec<Selector>,
    /// Null members only: other members have it in their labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<NullContent>,
    /// Of stores only.
    #[serde(default, skip_serializing_if = "WriteBudget::is_auto")]
    pub write_budget: WriteBudget,
    /// Of stores only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenant: Vec<Tenant>,
    /// Of stores only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<PoolConfig>,
    #[serde(default, skip_serializing_if = "DeviceOverrides::is_empty")]
    pub device: DeviceOverrides,
}

impl VolumeConfig {
    /// The size of a null member (`null:1TiB`): a device for benchmarks that moves no bytes.
    /// `None` for a path.
    pub fn null_size(&self, member: &Selector) -> Option<Result<Size, String>> {
        Some(member.path()?.to_str()?.strip_prefix("null:")?.parse())
    }
}

/// Differences from `[device]` for the members of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceOverrides {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Auto<ModeName>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<DirectIo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_bytes: Option<Auto<Size>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_stream: Option<Auto<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sq_idle: Option<Period>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sq_cpu: Option<Auto<u16>>,
}

impl DeviceConfig {
    /// The same choice in the volume room's words.
    pub fn claim_direct(&self) -> kvrail_volume::DirectIo {
        match self.direct {
            DirectIo::Required => kvrail_volume::DirectIo::Required,
            DirectIo::Optional => kvrail_volume::DirectIo::Optional,
            DirectIo::Off => kvrail_volume::DirectIo::Off,
        }
    }
}

impl DeviceOverrides {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The members' settings: these, and `[device]` for the rest.
    pub fn over(&self, base: &DeviceConfig) -> DeviceConfig {
        DeviceConfig {
            mode: self.mode.unwrap_or(base.mode),
            direct: self.direct.unwrap_or(base.direct),
            queue_depth: self.queue_depth.unwrap_or(base.queue_depth),
            in_flight_bytes: self.in_flight_bytes.unwrap_or(base.in_flight_bytes),
            write_stream: self.write_stream.unwrap_or(base.write_stream),
            sq_idle: self.sq_idle.unwrap_or(base.sq_idle),
            sq_cpu: self.sq_cpu.unwrap_or(base.sq_cpu),
        }
    }
}

impl Config {
    /// Devices and files of all volumes.
    pub fn members(&self) -> usize {
        self.volume.iter().map(|volume| volume.members.len()).sum()
    }

    /// The settings of a volume's members.
    pub fn device_of(&self, volume: &VolumeConfig) -> DeviceConfig {
        volume.device.over(&self.device)
    }
}
