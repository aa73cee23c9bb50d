//! Kinds of troubles, with their severities and remedies.

use serde::{Deserialize, Serialize};

/// The effect of a trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Clients are served, with less than is configured.
    Degraded,
    /// Clients should go elsewhere: /readyz is 503.
    Unready,
    /// The process is at fault, and a restart may mend it: /healthz is 503, and /livez once no
    /// poller turns.
    Unhealthy,
}

impl Severity {
    /// How it is written in labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Degraded => "degraded",
            Self::Unready => "unready",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// The kind of trouble. The names are stable: alerts and scripts rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleCode {
    /// A poller does not turn.
    PollerStalled,
    /// The sidecar stops.
    Draining,
    /// A store has no member that serves.
    StoreOutOfService,
    /// A member was not there when the sidecar started.
    MemberMissing,
    /// A device was taken away.
    DeviceGone,
    /// A device has requests that are too old.
    DeviceSilent,
    /// A device takes far longer than another one of its volume.
    DeviceSlow,
    /// A member of a store does not serve although its device is there.
    MemberOutOfService,
    /// A member's index is full, and its medium is not.
    IndexFull,
    /// A GPU has failed.
    GpuFailed,
    /// The NVMe-oF target is not as configured.
    TargetNotAsPlanned,
    /// The configuration on the disk, or the last reload, was refused.
    ConfigRefused,
    /// The metrics endpoint does not listen.
    MetricsNotListening,
}

impl TroubleCode {
    /// How it is written in JSON and in labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PollerStalled => "poller_stalled",
            Self::Draining => "draining",
            Self::StoreOutOfService => "store_out_of_service",
            Self::MemberMissing => "member_missing",
            Self::DeviceGone => "device_gone",
            Self::DeviceSilent => "device_silent",
            Self::DeviceSlow => "device_slow",
            Self::MemberOutOfService => "member_out_of_service",
            Self::IndexFull => "index_full",
            Self::GpuFailed => "gpu_failed",
            Self::TargetNotAsPlanned => "target_not_as_planned",
            Self::ConfigRefused => "config_refused",
            Self::MetricsNotListening => "metrics_not_listening",
        }
    }

    /// A store serves as long as one member of it does, so that a drive makes no sidecar unready.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::PollerStalled => Severity::Unhealthy,
            Self::Draining | Self::StoreOutOfService => Severity::Unready,
            Self::MemberMissing
            | Self::DeviceGone
            | Self::DeviceSilent
            | Self::DeviceSlow
            | Self::MemberOutOfService
            | Self::IndexFull
            | Self::GpuFailed
            | Self::TargetNotAsPlanned
            | Self::ConfigRefused
            | Self::MetricsNotListening => Severity::Degraded,
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::PollerStalled => "a device of it hangs: see dmesg, then reset or replace it",
            Self::Draining => "wait for its end, or send the signal again to stop at once",
            Self::StoreOutOfService | Self::MemberOutOfService => {
                "the log has the cause; `kvrail store status` shows the members"
            }
            Self::MemberMissing => {
                "put the drive back and restart the sidecar: the member begins empty; or take the \
                 member out of the store: `kvrail volume retire`"
            }
            Self::DeviceGone => "put the same drive back: it is found again; see dmesg",
            Self::DeviceSilent => "see dmesg for timeouts and resets of the device",
            Self::DeviceSlow => {
                "see its temperature and wear (`nvme smart-log`) and other users of it (`iostat \
                 -x`); a store serves without it: `kvrail volume retire`"
            }
            Self::IndexFull => {
                "make the store again with --block-mean set to the average length of its blocks: \
                 older ones are evicted early, and puts may be declined"
            }
            Self::GpuFailed => "restart the sidecar once the GPU is well; see nvidia-smi and dmesg",
            Self::TargetNotAsPlanned => "`kvrail target status` shows what differs",
            Self::ConfigRefused => {
                "correct the file until `kvrail config check` takes it, then `kvrail reload`"
            }
            Self::MetricsNotListening => {
                "free the place (`ss -ltnp`), and it is taken within seconds; or restart with \
                 another metrics.listen, or \"off\""
            }
        }
    }
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The kind.
    pub code: TroubleCode,
    /// The effect.
    pub severity: Severity,
    /// Its owner: a device, a poller, a store, a GPU.
    pub subject: String,
    /// A sentence, without the remedy.
    pub words: String,
    /// The remedy.
    pub remedy: String,
}

impl Trouble {
    pub(crate) fn new(code: TroubleCode, subject: impl Into<String>, words: String) -> Self {
        let (severity, remedy) = (code.severity(), code.remedy().to_owned());
        Self { code, severity, subject: subject.into(), words, remedy }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Severity, TroubleCode};

    /// Scripts read in JSON the same names that alerts read in labels, and people in the page of
    /// failures.
    #[test]
    fn a_code_has_one_name() {
        let page = include_str!("../../../docs/failures.md");
        for code in [
            TroubleCode::PollerStalled,
            TroubleCode::Draining,
            TroubleCode::StoreOutOfService,
            TroubleCode::MemberMissing,
            TroubleCode::DeviceGone,
            TroubleCode::DeviceSilent,
            TroubleCode::DeviceSlow,
            TroubleCode::MemberOutOfService,
            TroubleCode::IndexFull,
            TroubleCode::GpuFailed,
            TroubleCode::TargetNotAsPlanned,
            TroubleCode::ConfigRefused,
            TroubleCode::MetricsNotListening,
        ] {
            assert_eq!(json!(code), json!(code.name()));
            let named = format!("`{}`", code.name());
            assert!(page.contains(&named), "docs/failures.md has no {named}");
            assert_eq!(json!(code.severity()), json!(code.severity().name()));
        }
        assert_eq!(TroubleCode::MemberMissing.severity(), Severity::Degraded);
    }
}
