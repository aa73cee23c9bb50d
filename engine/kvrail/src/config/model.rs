//! The configuration as typed values. Each key's unit, range, default and reason stand in
//! `config/default.toml`; a test holds the two against each other.

use std::net::SocketAddr;
use std::path::PathBuf;

use kvrail_device::{DirectIo, ModeName};
use kvrail_metrics::Listen;
use kvrail_nvme::Selector;
use kvrail_sandbox::Mode as Sandbox;
use kvrail_units::{Period, Size};
use kvrail_volume::VolumeName;
use serde::{Deserialize, Serialize};

use super::auto::Auto;
use super::enums::{FileMode, LogFormat, NullContent, Pages, Unsealed};
use super::gpu::Gpu;
use super::pool::Pool;
use super::target::Target;
use super::tenant::Tenant;
use super::write_budget::WriteBudget;

/// Everything that can be configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) sidecar: Sidecar,
    pub(crate) metrics: Metrics,
    pub(crate) pollers: Pollers,
    pub(crate) memory: Memory,
    pub(crate) limits: Limits,
    pub(crate) device: Device,
    pub(crate) gpu: Gpu,
    pub(crate) target: Target,
    pub(crate) volume: Vec<Volume>,
}

/// The process and its door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Sidecar {
    pub(crate) socket: PathBuf,
    pub(crate) socket_mode: FileMode,
    /// Beside root and the sidecar's own user, who always may.
    pub(crate) allow_uids: Vec<u32>,
    pub(crate) allow_gids: Vec<u32>,
    pub(crate) drain_timeout: Period,
    pub(crate) wait_for_drives: Period,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    pub(crate) sandbox: Sandbox,
}

impl Default for Sidecar {
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
pub(crate) struct Metrics {
    pub(crate) listen: Listen,
    pub(crate) hosts: Vec<String>,
}

impl Default for Metrics {
    fn default() -> Self {
        let listen = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 9464)));
        Self { listen, hosts: Vec::new() }
    }
}

/// The pinned threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Pollers {
    pub(crate) count: Auto<u16>,
    pub(crate) cpus: Auto<Vec<u16>>,
    pub(crate) busy_poll_max: Auto<Period>,
    pub(crate) heartbeat: Period,
    pub(crate) stall_after: Period,
    pub(crate) overdue_after: Period,
}

impl Default for Pollers {
    fn default() -> Self {
        Self {
            count: Auto::Auto,
            cpus: Auto::Auto,
            busy_poll_max: Auto::Auto,
            heartbeat: Period::from_s(1),
            stall_after: Period::from_s(2),
            overdue_after: Period::from_s(10),
        }
    }
}

/// Where arenas come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Memory {
    pub(crate) pages: Pages,
    pub(crate) node: Auto<u16>,
    pub(crate) unsealed_imports: Unsealed,
}

/// What one client, and all together, may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    pub(crate) sessions: u32,
    pub(crate) sessions_per_uid: u32,
    pub(crate) arenas_per_session: u32,
    pub(crate) arena_bytes_per_session: Size,
    pub(crate) arena_bytes_total: Size,
    pub(crate) gpu_regions_per_session: u32,
    pub(crate) gpu_bytes_per_session: Size,
    pub(crate) queues_per_session: u32,
    pub(crate) lane_depth: u32,
    pub(crate) handshake_timeout: Period,
}

impl Default for Limits {
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
pub(crate) struct Device {
    pub(crate) mode: Auto<ModeName>,
    pub(crate) direct: DirectIo,
    pub(crate) queue_depth: u32,
    pub(crate) in_flight_bytes: Auto<Size>,
    pub(crate) write_stream: Auto<u8>,
    pub(crate) sq_idle: Period,
    pub(crate) sq_cpu: Auto<u16>,
}

impl Default for Device {
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
pub(crate) struct Volume {
    pub(crate) name: VolumeName,
    pub(crate) members: Vec<Selector>,
    /// Of null members only: the label of others says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<NullContent>,
    /// Of stores only.
    #[serde(default, skip_serializing_if = "WriteBudget::is_auto")]
    pub(crate) write_budget: WriteBudget,
    /// Of stores only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tenant: Vec<Tenant>,
    /// Of stores only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pool: Vec<Pool>,
    #[serde(default, skip_serializing_if = "DeviceOverrides::is_empty")]
    pub(crate) device: DeviceOverrides,
}

impl Volume {
    /// The size of a null member (`null:1TiB`): a device for benchmarks that moves no bytes.
    /// `None` for a path.
    pub(crate) fn null_size(&self, member: &Selector) -> Option<Result<Size, String>> {
        Some(member.path()?.to_str()?.strip_prefix("null:")?.parse())
    }
}

/// What differs from `[device]` for the members of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DeviceOverrides {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<Auto<ModeName>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) direct: Option<DirectIo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue_depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) in_flight_bytes: Option<Auto<Size>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) write_stream: Option<Auto<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sq_idle: Option<Period>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sq_cpu: Option<Auto<u16>>,
}

impl Device {
    /// The same choice in the volume room's words.
    pub(crate) fn claim_direct(&self) -> kvrail_volume::DirectIo {
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
    pub(crate) fn over(&self, base: &Device) -> Device {
        Device {
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
    pub(crate) fn members(&self) -> usize {
        self.volume.iter().map(|volume| volume.members.len()).sum()
    }

    /// The settings of a volume's members.
    pub(crate) fn device_of(&self, volume: &Volume) -> Device {
        volume.device.over(&self.device)
    }
}
