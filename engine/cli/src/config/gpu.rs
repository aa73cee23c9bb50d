//! Which GPUs are served, and how.

use std::fmt;
use std::str::FromStr;

use kvrail_gpu::{GpuUuid, MechanismChoice};
use kvrail_memory::PageSize;
use kvrail_units::Size;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::auto::Auto;

/// Bytes of the smallest unit of memory that slots are made of.
const PAGE_BYTES: u64 = PageSize::Base.bytes() as u64;

/// Slots of a pool at least: reads and writes both go on while some of them are full.
const SLOTS_MIN: u64 = 4;

/// Devices that the poller of one GPU serves at most.
const DEVICES_MAX: usize = 64;

/// The GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuConfig {
    pub devices: Vec<GpuName>,
    pub mechanism: MechanismChoice,
    pub staging_bytes: Size,
    pub staging_slot_bytes: Size,
    pub cpus: Auto<Vec<u16>>,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            mechanism: MechanismChoice::Auto,
            staging_bytes: Size::new(128 << 20),
            staging_slot_bytes: Size::new(2 << 20),
            cpus: Auto::Auto,
        }
    }
}

/// A GPU as the operator names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuName {
    /// Every GPU of this machine.
    All,
    /// By the driver's number.
    Number(u32),
    /// By what does not change.
    Uuid(GpuUuid),
    /// Host memory that plays one.
    EmulatedGpu(u32),
}

impl FromStr for GpuName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix("stand-in:").map(str::parse);
        match (text, number, text.parse()) {
            ("all", ..) => Ok(Self::All),
            (_, Some(Ok(number)), _) => Ok(Self::EmulatedGpu(number)),
            (_, None, Ok(number)) => Ok(Self::Number(number)),
            _ if text.starts_with("GPU-") => {
                text.parse().map(Self::Uuid).map_err(|error: kvrail_gpu::BadUuid| error.to_string())
            }
            _ => Err(format!(
                "{text:?} names no GPU; write its UUID (`nvidia-smi -L`), its number, or \"all\""
            )),
        }
    }
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Uuid(uuid) => write!(f, "{uuid}"),
            Self::EmulatedGpu(number) => write!(f, "stand-in:{number}"),
        }
    }
}

impl<'de> Deserialize<'de> for GpuName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        kvrail_units::deserialize(deserializer, "a GPU such as \"GPU-...\", \"0\" or \"all\"")
    }
}

impl Serialize for GpuName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One thing wrong: key, value, rule, remedy.
pub(super) type GpuProblem = (&'static str, String, String, &'static str);

impl GpuConfig {
    /// Errors for pollers on these CPUs and this number of devices.
    pub(super) fn check(&self, pollers: Option<&Vec<u16>>, devices: usize) -> Vec<GpuProblem> {
        let mut found = Vec::new();
        let twice =
            self.devices.iter().enumerate().find(|(at, it)| self.devices[..*at].contains(it));
        if let Some((_, name)) = twice {
            let rule = format!("it names {name} twice");
            found.push(("gpu.devices", self.names(), rule, "name each GPU once"));
        } else if self.devices.len() > 1 && self.devices.contains(&GpuName::All) {
            let rule = "\"all\" names the others already".to_owned();
            found.push(("gpu.devices", self.names(), rule, "name \"all\" alone, or the others"));
        }
        found.extend(self.check_staging());
        if let (Some(cpus), Some(pollers)) = (self.cpus.fixed(), pollers)
            && let Some(cpu) = cpus.iter().find(|cpu| pollers.contains(cpu))
        {
            let rule = "a poller of devices spins on that CPU (pollers.cpus)".to_owned();
            found.push(("gpu.cpus", cpu.to_string(), rule, "give the GPU's poller its own CPU"));
        }
        found.extend(self.check_cpus());
        if !self.devices.is_empty() && devices > DEVICES_MAX {
            let rule = format!("GPUs reach {DEVICES_MAX} devices at most, there are {devices}");
            found.push(("gpu.devices", self.names(), rule, "serve fewer volumes beside GPUs"));
        }
        found
    }

    /// One for each GPU; how many "all" are is seen at start.
    fn check_cpus(&self) -> Option<GpuProblem> {
        let cpus = self.cpus.fixed()?;
        let (count, gpus) = (cpus.len(), self.devices.len());
        let twice = cpus.iter().enumerate().find(|(at, cpu)| cpus[..*at].contains(cpu));
        let (rule, remedy) = if let Some((_, cpu)) = twice {
            (format!("it names CPU {cpu} twice"), "name each CPU once")
        } else if !self.devices.contains(&GpuName::All) && count != gpus {
            let rule = format!("it names {count} CPUs, gpu.devices names {gpus} GPUs");
            (rule, "name one for each GPU, or set gpu.cpus = \"auto\"")
        } else {
            return None;
        };
        Some(("gpu.cpus", format!("{cpus:?}"), rule, remedy))
    }

    fn check_staging(&self) -> Option<GpuProblem> {
        let (slot, all) = (self.staging_slot_bytes.bytes(), self.staging_bytes.bytes());
        if !slot.is_multiple_of(PAGE_BYTES) || !(64 << 10..=64 << 20).contains(&slot) {
            let rule = "it must be 64KiB to 64MiB in whole pages of 4KiB".to_owned();
            return Some((
                "gpu.staging_slot_bytes",
                self.staging_slot_bytes.to_string(),
                rule,
                "use \"2MiB\"",
            ));
        }
        let fits = all.is_multiple_of(slot) && (SLOTS_MIN * slot..=1 << 30).contains(&all);
        if !fits {
            let rule = format!(
                "it must be {SLOTS_MIN} slots of {} to 1GiB, in whole slots",
                self.staging_slot_bytes
            );
            let remedy = "use \"128MiB\", or a smaller gpu.staging_slot_bytes";
            return Some(("gpu.staging_bytes", self.staging_bytes.to_string(), rule, remedy));
        }
        None
    }

    fn names(&self) -> String {
        let names: Vec<String> = self.devices.iter().map(ToString::to_string).collect();
        format!("[{}]", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::GpuName;

    #[test]
    fn what_is_printed_is_read_back() {
        let uuid = "GPU-a4b6f0c1-02d3-11ee-8c99-0242ac120002";
        for text in ["all", "0", "17", uuid, "stand-in:0", "stand-in:3"] {
            let name: GpuName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
        }
        for bad in ["", "-1", "GPU-1", "stand-in:", "stand-in:x", "all,0", "4294967296", "h200"] {
            assert!(bad.parse::<GpuName>().unwrap_err().contains("nvidia-smi -L"), "{bad:?}");
        }
    }
}
