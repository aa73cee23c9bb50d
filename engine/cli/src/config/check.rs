//! The checks that types cannot express: ranges, duplicates, contradictions.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::slice;

use kvrail_device::{BUFFERS_MAX, DirectIo, ModeName};
use kvrail_metrics::Listen;
use kvrail_nvme::Selector;
use kvrail_poller::{LANES_MAX, REGIONS_MAX, SESSIONS_MAX};
use kvrail_ring::limits::{ENTRY_BYTES, LANE_DEPTH_MAX, LANE_DEPTH_MIN, POLLERS_MAX};
use kvrail_store::{NAME_BYTES_MAX, POOL_NAME_BYTES_MAX, POOLS_MAX};
use kvrail_units::{Period, Size};
use kvrail_volume::MEMBERS_MAX;
use toml::Value;
use tracing_subscriber::EnvFilter;

use super::error::ConfigProblem;
use super::flatten::flatten;
use super::model::{
    Config, DeviceConfig, LimitsConfig, MetricsConfig, PollersConfig, SidecarConfig, VolumeConfig,
};
use super::provenance::Origins;

use super::target::TargetConfig;

/// Bytes of a Unix socket's path: `sun_path` has 108 with the final zero.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The kernel's CPU numbers on the largest builds (CONFIG_NR_CPUS).
const CPU_MAX: u16 = 8191;

/// All arenas together fill the buffer table of a device at most.
const ARENA_BYTES_MAX: u64 = BUFFERS_MAX as u64 * ENTRY_BYTES;

/// The smallest memory tier, in which a few blocks have room.
pub const TIER_BYTES_MIN: u64 = 16 << 20;

/// Everything wrong with a configuration, in the order of its text.
pub(crate) fn check(config: &Config, origins: &Origins) -> Vec<ConfigProblem> {
    let mut found = ConfigProblems { origins, problems: Vec::new() };
    found.zeros(config);
    found.sidecar(&config.sidecar);
    found.metrics(&config.metrics);
    found.pollers(&config.pollers);
    found.memory_tier(config);
    found.limits(&config.limits);
    found.device("device", &config.device, &config.pollers);
    found.gpu(config);
    found.target(&config.target);
    found.volumes(config);
    found.problems
}

struct ConfigProblems<'a> {
    origins: &'a Origins,
    problems: Vec<ConfigProblem>,
}

impl ConfigProblems<'_> {
    fn add(&mut self, key: &str, value: impl Display, rule: impl Into<String>, remedy: &str) {
        self.problems.push(ConfigProblem {
            key: key.into(),
            value: value.to_string(),
            origin: self.origins.of(key),
            rule: rule.into(),
            remedy: remedy.into(),
        });
    }

    fn range<T: PartialOrd + Display>(&mut self, key: &str, value: &T, range: &RangeInclusive<T>) {
        if !range.contains(value) {
            let rule = format!("it must be {} to {}", range.start(), range.end());
            self.add(key, value, rule, &format!("set {key} within its range"));
        }
    }

    /// The kernel ends every text at its first zero byte.
    fn zeros(&mut self, config: &Config) {
        let mut leaves = Vec::new();
        if let Ok(value) = Value::try_from(config) {
            flatten("", &value, &mut leaves);
        }
        for (key, value) in leaves {
            let texts = value.as_array().map_or(slice::from_ref(&value), Vec::as_slice);
            for text in texts.iter().filter_map(Value::as_str).filter(|text| text.contains('\0')) {
                let rule = "it has a zero byte, which no path and no name can have";
                self.add(&key, format!("{text:?}"), rule, "remove the \\u0000");
            }
        }
    }

    fn memory_tier(&mut self, config: &Config) {
        let tier = &config.memory_tier;
        self.late_names(&tier.write_late, config);
        let bytes = tier.bytes.bytes();
        if bytes != 0 && !(TIER_BYTES_MIN..=ARENA_BYTES_MAX / 2).contains(&bytes) {
            let (least, most) = (Size::new(TIER_BYTES_MIN), Size::new(ARENA_BYTES_MAX / 2));
            let rule = format!("it must be 0 (no tier), or {least} to {most}");
            self.add("memory_tier.bytes", tier.bytes, rule, "some percents of the store are a lot");
        }
    }

    fn late_names(&mut self, names: &[String], config: &Config) {
        let key = "memory_tier.write_late";
        let Some(first) = names.first() else { return };
        for name in names {
            self.namespaces(key, name);
            self.late_name(key, name);
        }
        if let Some(twice) = first_twice(names) {
            self.add(key, shortened(twice), "it is named twice", "name each namespace once");
        }
        if config.memory_tier.bytes.bytes() == 0 {
            let rule = "blocks that are written late need a memory tier";
            self.add(key, first, rule, "set memory_tier.bytes, or remove the key");
        }
        let mut stores = config.volume.iter();
        if let Some(volume) = stores.find(|volume| !volume.tenant.is_empty()) {
            let rule =
                format!("clients of {}, which has tenants, do not see the tier", volume.name);
            self.add(key, first, rule, "remove the key, or the tables [[volume.tenant]]");
        }
    }

    /// Patterns of pools and of tenants may be longer: older files have such.
    fn late_name(&mut self, key: &str, name: &str) {
        let begin = name.strip_suffix('*').unwrap_or(name);
        if begin.len() > NAME_BYTES_MAX || begin.chars().any(char::is_control) {
            let rule = format!(
                "{} bytes: no namespace has this name, names have {NAME_BYTES_MAX} bytes at most \
                 and no control characters",
                begin.len()
            );
            self.add(key, shortened(name), rule, "shorten it, or write how the names begin");
        }
    }

    fn sidecar(&mut self, sidecar: &SidecarConfig) {
        let key = "sidecar.socket";
        let shown = sidecar.socket.display();
        if !sidecar.socket.is_absolute() || sidecar.socket.file_name().is_none() {
            let remedy = "write an absolute path such as \"/run/kvrail/kvrail.sock\"";
            self.add(key, shown, "it must be the absolute path of a socket", remedy);
        } else if sidecar.socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            let rule = format!("it must have {SOCKET_PATH_BYTES_MAX} bytes at most");
            self.add(key, shown, rule, "use a shorter directory, as in /run/kvrail");
        }
        if sidecar.socket_mode.bits() & 0o600 != 0o600 {
            let (key, rule) = ("sidecar.socket_mode", "its owner must read and write it");
            self.add(key, sidecar.socket_mode, rule, "use 0600, 0660 or 0666");
        }
        self.unique("sidecar.allow_uids", &sidecar.allow_uids);
        self.unique("sidecar.allow_gids", &sidecar.allow_gids);
        let hour = Period::from_s(3600);
        self.range("sidecar.drain_timeout", &sidecar.drain_timeout, &(Period::from_s(0)..=hour));
        let wrong = match (unknown_level(&sidecar.log), EnvFilter::try_new(&sidecar.log)) {
            (Some(word), _) => Some(format!("{word:?} is no level")),
            (None, Err(error)) => Some(error.to_string()),
            (None, Ok(_)) => None,
        };
        if let Some(wrong) = wrong {
            let rule = format!("it must be a log filter ({wrong})");
            let remedy = "write error, warn, info, debug, trace, or target=level,...";
            self.add("sidecar.log", &sidecar.log, rule, remedy);
        }
    }

    fn metrics(&mut self, metrics: &MetricsConfig) {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let bad = |name: &&String| *name != "*" && (name.is_empty() || !name.bytes().all(good));
        if let Some(name) = metrics.hosts.iter().find(bad) {
            let rule = "it must be the name of a host, or \"*\"";
            self.add("metrics.hosts", name, rule, "write it without scheme, port and path");
        }
        let Listen::Unix(path) = &metrics.listen else { return };
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            let rule = format!("its path must have {SOCKET_PATH_BYTES_MAX} bytes at most");
            let remedy = "use a shorter directory, as in /run/kvrail";
            self.add("metrics.listen", &metrics.listen, rule, remedy);
        }
    }

    fn unique(&mut self, key: &str, list: &[u32]) {
        if let Some(twice) = first_twice(list) {
            let rule = format!("it names {twice} twice");
            self.add(key, list_words(list), rule, "name each id once");
        }
        // (uid_t)-1 means "no change" to the kernel: no user has it.
        if list.contains(&u32::MAX) {
            let rule = format!("{} is no id", u32::MAX);
            self.add(key, list_words(list), rule, "remove it");
        }
    }

    fn pollers(&mut self, pollers: &PollersConfig) {
        let most = u16::try_from(POLLERS_MAX).unwrap_or(u16::MAX);
        let count = pollers.count.fixed().copied();
        if let Some(count) = count {
            self.range("pollers.count", &count, &(1..=most));
        }
        if let Some(cpus) = pollers.cpus.fixed() {
            self.cpus(cpus, most);
            if let Some(count) = count
                && usize::from(count) > cpus.len()
            {
                let rule = format!("pollers.cpus has {} CPUs, one for each is needed", cpus.len());
                let remedy = "name more CPUs, or set pollers.count lower or to \"auto\"";
                self.add("pollers.count", count, rule, remedy);
            }
        }
        if let Some(spin) = pollers.busy_poll_max.fixed() {
            let limits = Period::from_s(0)..=Period::from_s(1);
            self.range("pollers.busy_poll_max", spin, &limits);
        }
        let limits = Period::from_ms(10)..=Period::from_s(60);
        self.range("pollers.heartbeat", &pollers.heartbeat, &limits);
        let limits = Period::from_ms(200)..=Period::from_s(3600);
        self.range("pollers.stall_after", &pollers.stall_after, &limits);
        self.range("pollers.overdue_after", &pollers.overdue_after, &limits);
        let limits = Period::from_ns(100_000)..=Period::from_s(3600);
        self.range("pollers.slow_after", &pollers.slow_after, &limits);
    }

    fn cpus(&mut self, cpus: &[u16], most: u16) {
        let (key, shown) = ("pollers.cpus", list_words(cpus));
        if cpus.is_empty() || cpus.len() > usize::from(most) {
            let rule = format!("it must name 1 to {most} CPUs");
            self.add(key, &shown, rule, "name CPUs, or set it to \"auto\"");
        }
        if let Some(twice) = first_twice(cpus) {
            let rule = format!("it names CPU {twice} twice; two spinning threads on one collapse");
            self.add(key, &shown, rule, "name each CPU once");
        }
        if let Some(large) = cpus.iter().find(|&&cpu| cpu > CPU_MAX) {
            let rule = format!("CPU {large} is beyond {CPU_MAX}, the kernel's last");
            self.add(key, &shown, rule, "see `lscpu` for this host's CPUs");
        }
    }

    fn limits(&mut self, limits: &LimitsConfig) {
        self.range("limits.sessions", &limits.sessions, &(1..=bound(SESSIONS_MAX)));
        self.range("limits.sessions_per_uid", &limits.sessions_per_uid, &(1..=bound(SESSIONS_MAX)));
        let most = bound(REGIONS_MAX);
        self.range("limits.arenas_per_session", &limits.arenas_per_session, &(1..=most));
        let bytes = Size::new(4 << 10)..=Size::new(ARENA_BYTES_MAX);
        let (one, all) = (limits.arena_bytes_per_session, limits.arena_bytes_total);
        self.range("limits.arena_bytes_per_session", &one, &bytes);
        self.range("limits.arena_bytes_total", &all, &bytes);
        if one > all {
            let key = "limits.arena_bytes_per_session";
            let rule = format!("one session cannot have more than all ({all})");
            let remedy = "set it lower, or limits.arena_bytes_total higher";
            self.add(key, one, rule, remedy);
        }
        self.range("limits.gpu_regions_per_session", &limits.gpu_regions_per_session, &(1..=most));
        let bytes = Size::new(4 << 10)..=Size::new(1 << 50);
        self.range("limits.gpu_bytes_per_session", &limits.gpu_bytes_per_session, &bytes);
        self.range(
            "limits.queues_per_session",
            &limits.queues_per_session,
            &(1..=bound(LANES_MAX)),
        );
        let depth = limits.lane_depth;
        if !(LANE_DEPTH_MIN..=LANE_DEPTH_MAX).contains(&depth) || !depth.is_power_of_two() {
            let rule =
                format!("it must be a power of two from {LANE_DEPTH_MIN} to {LANE_DEPTH_MAX}");
            self.add("limits.lane_depth", depth, rule, "use 1024");
        }
        let patience = Period::from_ms(10)..=Period::from_s(60);
        self.range("limits.handshake_timeout", &limits.handshake_timeout, &patience);
    }

    fn device(&mut self, prefix: &str, device: &DeviceConfig, pollers: &PollersConfig) {
        let key = |name: &str| format!("{prefix}.{name}");
        self.range(&key("queue_depth"), &device.queue_depth, &(1..=4096));
        let bytes = Size::new(64 << 10)..=Size::new(16 << 30);
        if let Some(fixed) = device.in_flight_bytes.fixed() {
            self.range(&key("in_flight_bytes"), fixed, &bytes);
        }
        let idle = Period::from_ms(1)..=Period::from_s(60);
        self.range(&key("sq_idle"), &device.sq_idle, &idle);
        if !device.sq_idle.ns().is_multiple_of(Period::from_ms(1).ns()) {
            let rule = "the kernel counts it in whole milliseconds";
            self.add(&key("sq_idle"), device.sq_idle, rule, "round it to milliseconds");
        }
        if let Some(&mode) = device.mode.fixed()
            && mode.needs_direct()
            && device.direct != DirectIo::Required
        {
            let rule = "polling and passthrough exist with O_DIRECT only, and direct does not \
                        require it";
            let remedy =
                "set direct = \"required\", or mode to \"interrupt\", \"sqpoll\" or \"auto\"";
            self.add(&key("mode"), quoted(mode), rule, remedy);
        }
        self.sq_cpu(&key("sq_cpu"), device, pollers);
    }

    fn sq_cpu(&mut self, key: &str, device: &DeviceConfig, pollers: &PollersConfig) {
        let Some(&cpu) = device.sq_cpu.fixed() else { return };
        self.range(key, &cpu, &(0..=CPU_MAX));
        if let Some(&mode) = device.mode.fixed()
            && !mode.has_kernel_thread()
        {
            let rule = format!("mode {} has no kernel thread to place", quoted(mode));
            self.add(key, cpu, rule, "set it to \"auto\", or mode to \"sqpoll\"");
        }
        if pollers.cpus.fixed().is_some_and(|cpus| cpus.contains(&cpu)) {
            let rule = "a poller spins on that CPU (pollers.cpus); two spinners on one collapse";
            self.add(key, cpu, rule, "give the kernel thread a CPU of its own");
        }
    }

    fn volumes(&mut self, config: &Config) {
        let mut names = BTreeMap::new();
        let mut owners: BTreeMap<String, String> = BTreeMap::new();
        for (index, volume) in config.volume.iter().enumerate() {
            let prefix = format!("volume.{index}");
            if let Some(earlier) = names.insert(volume.name.clone(), index) {
                let rule = format!("volume.{earlier} has this name too");
                let key = format!("{prefix}.name");
                self.add(&key, &volume.name, rule, "give each volume a name of its own");
            }
            self.members(&format!("{prefix}.members"), volume, &mut owners);
            self.tenants(&prefix, volume);
            self.pools(&prefix, volume);
            if volume.device != super::model::DeviceOverrides::default() {
                let device = config.device_of(volume);
                let before = self.problems.len();
                self.device(&format!("{prefix}.device"), &device, &config.pollers);
                self.drop_inherited(before);
            }
        }
        let members = config.members();
        if members > usize::from(u16::MAX) {
            let rule = format!("65535 members at most in all, there are {members}");
            self.add("volume", "...", rule, "serve fewer volumes");
        }
    }

    fn tenants(&mut self, prefix: &str, volume: &VolumeConfig) {
        for (at, tenant) in volume.tenant.iter().enumerate() {
            let prefix = format!("{prefix}.tenant.{at}");
            self.unique(&format!("{prefix}.uids"), &tenant.uids);
            self.unique(&format!("{prefix}.gids"), &tenant.gids);
            let (key, names) = (format!("{prefix}.namespaces"), &tenant.namespaces);
            self.namespaces(&key, names);
        }
    }

    fn namespaces(&mut self, key: &str, names: &str) {
        let begin = names.strip_suffix('*').unwrap_or(names);
        if names.is_empty() || begin.contains('*') {
            let rule = "it must be a name, or how names begin with `*` at its end";
            self.add(key, format!("{names:?}"), rule, "write each name or begin by itself");
        }
    }

    fn pools(&mut self, prefix: &str, volume: &VolumeConfig) {
        let mut names = BTreeMap::new();
        for (at, pool) in volume.pool.iter().enumerate() {
            let prefix = format!("{prefix}.pool.{at}");
            let key = |name: &str| format!("{prefix}.{name}");
            let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            if !(1..=POOL_NAME_BYTES_MAX).contains(&pool.name.len()) || !pool.name.bytes().all(good)
            {
                let rule = format!("1 to {POOL_NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -");
                self.add(&key("name"), &pool.name, rule, "give the pool such a name");
            }
            if let Some(earlier) = names.insert(pool.name.clone(), at) {
                let rule = format!("pool {earlier} has this name too");
                self.add(&key("name"), &pool.name, rule, "give each pool a name of its own");
            }
            if !pool.is_default() {
                self.namespaces(&key("namespaces"), &pool.namespaces);
            } else if !pool.namespaces.is_empty() {
                let rule = "`default` has the namespaces that no other pool names";
                self.add(&key("namespaces"), &pool.namespaces, rule, "remove the key");
            }
            if pool.minimum.is_above(pool.maximum) {
                let rule = format!("at most its maximum, {}", pool.maximum);
                let remedy = "lower the minimum or raise the maximum";
                self.add(&key("minimum"), pool.minimum, rule, remedy);
            }
        }
        let hundredths: u64 = volume.pool.iter().map(|pool| pool.minimum.hundredths()).sum();
        if hundredths > 10_000 {
            let remedy = "lower the minimum of a pool";
            self.add(&format!("{prefix}.pool"), "...", "their minimums are more than 100%", remedy);
        }
        if volume.pool.iter().filter(|pool| !pool.is_default()).count() >= POOLS_MAX {
            let rule = format!("{POOLS_MAX} pools at most, with `default`");
            self.add(&format!("{prefix}.pool"), "...", rule, "configure fewer pools");
        }
    }

    /// Errors that a volume inherits from `[device]` have been reported there.
    fn drop_inherited(&mut self, from: usize) {
        let (earlier, new) = self.problems.split_at(from);
        let said = |problem: &ConfigProblem| {
            let name = problem.key.rsplit('.').next().unwrap_or_default();
            earlier.iter().any(|other| {
                other.key == format!("device.{name}")
                    && (&other.value, &other.rule) == (&problem.value, &problem.rule)
            })
        };
        let kept: Vec<ConfigProblem> =
            new.iter().filter(|&problem| !said(problem)).cloned().collect();
        self.problems.truncate(from);
        self.problems.extend(kept);
    }

    fn members(&mut self, key: &str, volume: &VolumeConfig, owners: &mut BTreeMap<String, String>) {
        let count = volume.members.len();
        if count == 0 || count > usize::from(MEMBERS_MAX) {
            let rule = format!("it must name 1 to {MEMBERS_MAX} members, it names {count}");
            self.add(key, "[...]", rule, "name the volume's devices or files");
        }
        let is_null = volume.members.iter().any(|member| volume.null_size(member).is_some());
        if let Some(content) = volume.content.filter(|_| !is_null) {
            let key = format!("{}.content", key.trim_end_matches(".members"));
            let rule = "only null members have it: other members have their purpose in the label";
            let remedy = "remove it; `kvrail volume create --kind store` makes a store";
            self.add(&key, format!("{content:?}").to_lowercase(), rule, remedy);
        }
        for member in &volume.members {
            if let Some(size) = volume.null_size(member) {
                self.null_member(key, member, &size, count);
                continue;
            }
            if member.path().is_some_and(Path::is_relative) {
                let remedy =
                    "write absolute paths; `--set` on the command line takes relative ones";
                let rule = "it must be an absolute path, pci:, serial: or wwid:";
                self.add(key, member, rule, remedy);
            }
            let owner = volume.name.to_string();
            let plain = member.path().map(|path| lexical(path).display().to_string());
            let plain = plain.unwrap_or_else(|| member.to_string());
            if let Some(other) = owners.insert(plain, owner) {
                let rule = format!("volume {other} has this member already");
                self.add(key, member, rule, "name each device or file once");
            }
        }
    }
}

impl ConfigProblems<'_> {
    fn gpu(&mut self, config: &Config) {
        let pollers = config.pollers.cpus.fixed();
        for (key, value, rule, remedy) in config.gpu.check(pollers, config.members()) {
            self.add(key, value, rule, remedy);
        }
    }

    fn target(&mut self, target: &TargetConfig) {
        for (key, path) in [("configfs", &target.configfs), ("state_dir", &target.state_dir)] {
            if !path.is_absolute() {
                let rule = "it must be an absolute path";
                self.add(&format!("target.{key}"), path.display(), rule, "write a full path");
            }
        }
        let often = Period::from_ms(100)..=Period::from_s(3600);
        self.range("target.reconcile_interval", &target.reconcile_interval, &often);
        for problem in kvrail_target::check(&target.wish()) {
            self.add(&problem.key, problem.value, problem.rule, &problem.remedy);
        }
    }

    /// A null member is the only one of its volume and has at least one stripe.
    fn null_member(
        &mut self,
        key: &str,
        member: &Selector,
        size: &Result<Size, String>,
        count: usize,
    ) {
        let remedy = "write one member such as \"null:1TiB\"";
        match size {
            Err(why) => self.add(key, member, why.clone(), remedy),
            Ok(size) if size.bytes() < 1 << 20 || size.bytes() > 1 << 50 => {
                self.add(key, member, "it must have 1 MiB to 1024 TiB", remedy);
            }
            Ok(_) if count > 1 => {
                self.add(key, member, "a null member must be the only one", remedy);
            }
            Ok(_) => {}
        }
    }
}

/// A table size of the pollers as the bound of a key.
fn bound(entries: usize) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}

fn quoted(mode: ModeName) -> String {
    format!("\"{}\"", mode.name())
}

/// The first word of a log filter in the place of a level. The library would take it for a target
/// and leave out everything else.
fn unknown_level(log: &str) -> Option<&str> {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let known = |word: &str| levels.iter().any(|level| level.eq_ignore_ascii_case(word));
    log.split(',').map(str::trim).find(|word| !word.contains('=') && !known(word))
}

fn first_twice<T: PartialEq>(list: &[T]) -> Option<&T> {
    list.iter().enumerate().find(|(at, item)| list[..*at].contains(item)).map(|(_, item)| item)
}

/// A name as a message has it, however long it is.
fn shortened(name: &str) -> String {
    if name.len() <= NAME_BYTES_MAX + 1 {
        return format!("{name:?}");
    }
    format!("{:?}...", name.chars().take(24).collect::<String>())
}

fn list_words<T: Display>(list: &[T]) -> String {
    let words: Vec<String> = list.iter().map(ToString::to_string).collect();
    format!("[{}]", words.join(", "))
}

/// The path without `.` and with `..` resolved by name. Links stay: the opener follows them.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}
