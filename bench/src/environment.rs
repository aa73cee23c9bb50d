//! The machine and the settings: without them figures do not compare.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use kvrail_memory::{Mount, Root};

use crate::cpu::{MachineLoad, MachineMeter, usable_cores};

/// How CPU time is counted where the machine's is not to be had, or not ours alone.
const OWN_CLOCKS: &str = "clocks of the benchmark's processes and the kernel threads that work for \
    them; interrupts are missing";

/// The machine, versions and settings of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Release of kvrail.
    pub version: String,
    /// Seconds since 1970 at the beginning.
    pub time: u64,
    /// Kernel release.
    pub kernel: String,
    /// CPU as it calls itself.
    pub cpu: String,
    /// Cores the machine has online.
    pub cores: usize,
    /// Cores this process may use.
    pub cores_usable: usize,
    /// Whether a hypervisor is below.
    pub virtual_machine: bool,
    /// Frequency governor of the first core.
    pub governor: String,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// 2 MiB pages reserved.
    pub hugepages: u64,
    /// 2 MiB pages free.
    pub hugepages_free: u64,
    /// Pages behind the benchmark's own buffers.
    pub buffers: String,
    /// The storage under each member of the volume.
    pub storage: Vec<Storage>,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Bytes of it that carry the pattern and are read and written.
    pub pattern_bytes: u64,
    /// `direct` or `buffered`.
    pub io: String,
    /// The mode every arm really used.
    pub modes: Vec<ArmMode>,
    /// How CPU time is counted.
    pub cpu_account: String,
    /// The load of others meanwhile.
    #[serde(default)]
    pub load: MachineLoad,
    /// Rounds, the arms in turn and the order reversed in every other.
    pub rounds: u32,
    /// Timed seconds of a round.
    pub seconds: f64,
    /// Seconds before them.
    pub warm_up_seconds: f64,
    /// Seed of all offsets and schedules.
    pub seed: u64,
    /// Of 100 mixed operations, how many read.
    pub read_percent: u8,
    /// `poisson` or `fixed`.
    pub arrivals: String,
}

/// The mode that an arm really used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmMode {
    /// The arm.
    pub arm: String,
    /// The name of the ring mode; for fio its version and options too.
    pub mode: String,
    /// Why this one.
    pub reason: String,
    /// Cores of its client threads; empty when the kernel chose.
    pub client_cores: Vec<u32>,
}

/// The storage under one member of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    /// The member.
    pub path: String,
    /// Type of the file system it lies in; `none` for a block device.
    pub filesystem: String,
    /// Kernel name of the disk, and its model where it has one.
    pub device: String,
    /// I/O scheduler in force.
    pub scheduler: String,
    /// Bytes of a logical block.
    pub logical_block: u32,
    /// Whether the queue can be polled.
    pub poll: bool,
    /// Whether it has a volatile write cache.
    pub write_cache: String,
}

impl Environment {
    /// The machine's own facts; the caller adds the settings.
    #[must_use]
    pub fn probe(members: &[impl AsRef<Path>]) -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let flags = value_of(&cpuinfo, "flags", ':').unwrap_or_default();
        let online = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        let usable = usable_cores().map_or(1, |cores| cores.len());
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpu: value_of(&cpuinfo, "model name", ':').unwrap_or_else(|| "unknown".to_owned()),
            cores: online.max(usable),
            cores_usable: usable,
            virtual_machine: flags.split(' ').any(|flag| flag == "hypervisor"),
            governor: or_none(read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            memory_bytes: memory_bytes(),
            hugepages: number("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
            hugepages_free: number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
            buffers: crate::raw::memory_in_use(),
            cpu_account: MachineMeter::find().map_or(OWN_CLOCKS, |meter| meter.words()).to_owned(),
            storage: members.iter().map(|path| Storage::probe(path.as_ref())).collect(),
            ..Self::default()
        }
    }
}

impl Environment {
    /// The same with what others did meanwhile.
    #[must_use]
    pub fn under(self, load: MachineLoad) -> Self {
        let cpu_account = if load.is_busy() { OWN_CLOCKS.to_owned() } else { self.cpu_account };
        Self { load, cpu_account, ..self }
    }
}

impl Storage {
    /// The storage under a path, according to sysfs and the mount table.
    #[must_use]
    pub fn probe(path: &Path) -> Self {
        let Ok(meta) = fs::metadata(path) else {
            return Self { path: path.display().to_string(), ..Self::default() };
        };
        let block = meta.rdev() != 0;
        let mount = if block { None } else { mount_of(path) };
        let number = match &mount {
            Some(mount) => mount.device.clone(),
            None => device_number(if block { meta.rdev() } else { meta.dev() }),
        };
        let disk = disk_of(&number);
        let queue = |name: &str| match &disk {
            Some(disk) => read(disk.join("queue").join(name)),
            None => String::new(),
        };
        Self {
            path: path.display().to_string(),
            filesystem: mount.map_or_else(|| "none".to_owned(), |mount| mount.kind),
            device: disk.as_deref().map_or_else(|| "none".to_owned(), disk_name),
            scheduler: or_none(chosen(&queue("scheduler"))),
            logical_block: queue("logical_block_size").parse().unwrap_or(0),
            poll: queue("io_poll") == "1",
            write_cache: or_none(queue("write_cache")),
        }
    }
}

/// The mount a path lies in. The device number is the table's, because some file systems invent one
/// for `stat`.
fn mount_of(path: &Path) -> Option<Mount> {
    let path = fs::canonicalize(path).ok()?;
    let all = Mount::all(&Root::default()).ok()??;
    Mount::of(&all, &path).cloned()
}

fn device_number(number: u64) -> String {
    format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

/// The disk's directory in sysfs, also for a partition.
fn disk_of(number: &str) -> Option<PathBuf> {
    let own = fs::canonicalize(format!("/sys/dev/block/{number}")).ok()?;
    if own.join("queue").is_dir() {
        return Some(own);
    }
    own.parent().filter(|parent| parent.join("queue").is_dir()).map(Path::to_owned)
}

fn disk_name(disk: &Path) -> String {
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    let model = read(disk.join("device/model"));
    if model.is_empty() { name.into_owned() } else { format!("{name} ({model})") }
}

/// The word in brackets: how sysfs marks the choice in force.
fn chosen(line: &str) -> String {
    let inside = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(line, |(word, _)| word).to_owned()
}

fn memory_bytes() -> u64 {
    let text = read("/proc/meminfo");
    let line = value_of(&text, "MemTotal", ':').unwrap_or_default();
    line.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn value_of(text: &str, key: &str, separator: char) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

fn number(path: &str) -> u64 {
    read(path).parse().unwrap_or(0)
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".to_owned() } else { text }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Environment, chosen, value_of};

    #[test]
    fn the_machine_says_something_of_itself() {
        let here = std::env::current_exe().unwrap();
        let found = Environment::probe(&[here]);
        assert!(!found.kernel.is_empty() && found.cores > 0 && found.memory_bytes > 0);
        assert_eq!(found.storage.len(), 1);
        assert_ne!(found.storage[0].filesystem, "none");
    }

    #[test]
    fn a_missing_member_is_no_panic() {
        let found = super::Storage::probe("/nonexistent/volume".as_ref());
        assert_eq!(found.path, "/nonexistent/volume");
    }

    #[test]
    fn brackets_mark_the_choice() {
        assert_eq!(chosen("none [mq-deadline] kyber"), "mq-deadline");
        assert_eq!(chosen("none"), "none");
        assert_eq!(value_of("a : 1\nb: 2", "b", ':').unwrap(), "2");
    }
}
