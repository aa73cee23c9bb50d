//! A sidecar with a volume and a store of its own, for the length of a benchmark. It is configured
//! as `kvrail serve` would be, but for socket, volumes and what would reach beyond this process.
//!
//! Everything lies in a temporary directory: the files of volume and store, the configuration, the
//! socket and the sidecar's log. Further files of striped members have a directory each. They are
//! removed at the end, also when a signal ends the benchmark. A volume on devices is wiped then.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kvrail_bench::memory::TieredStore;
use kvrail_bench::plan::CLIENTS_MAX;
use kvrail_bench::sidecar::{ServingSidecar, attach};
use kvrail_bench::{BenchError, BenchOptions, Ground, Harness, STRIPE_BYTES};
use kvrail_client::Client;
use kvrail_metrics::Listen;
use kvrail_nvme::Selector;
use kvrail_store::Sizing;
use kvrail_units::Size;
use kvrail_volume::{
    DirectIo, Fill, FillProgress, NewVolume, Overwrite, Reason, StoreMember, StoreShape,
    VolumeLayout, VolumeName, create,
};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use crate::members::paths;
use kvrail_cli::config::{
    Config, NullContent, SOCKET_PATH_BYTES_MAX, TIER_BYTES_MIN, VolumeConfig, WriteBudget,
};
use kvrail_cli::context::Verbosity;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::say;
use kvrail_cli::progress::bar_for;
use kvrail_cli::stop::ending_signals;

/// The folder of the volume without `--dir`: on disk, unlike /tmp on many hosts.
const DEFAULT_DIR: &str = "/var/tmp";

/// The store's name in the sidecar.
const STORE: &str = "store";
/// The same of the one without storage.
const NULL_STORE: &str = "null-store";

/// Mean of the store's blocks: of each size that is measured an eighth of the store is blocks, at
/// most half of it of the smallest.
const STORE_BLOCK_MEAN: u64 = 16 << 10;

/// Bytes before a store's first segment at most.
const FRONT_BYTES_MAX: u64 = 8 << 20;

/// How long the sidecar may take to be ready; its own promise is well below a second.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// How long it may take to end: its drain timeout and a little.
const END_WITHIN: Duration = Duration::from_secs(35);

/// The files that a signal must remove.
#[derive(Debug, Default)]
struct CleanupList {
    dirs: Vec<PathBuf>,
    child: Option<Pid>,
    /// Labelled by us.
    devices: Vec<PathBuf>,
}

/// The harness of `kvrail bench`.
#[derive(Debug)]
pub(crate) struct Embedded {
    verbosity: Verbosity,
    config: Config,
    debris: Arc<Mutex<CleanupList>>,
    dirs: Vec<TempDir>,
    /// How many of them have files of members; the socket's comes behind.
    parents: usize,
    child: Option<Child>,
}

impl Embedded {
    pub(crate) fn new(verbosity: Verbosity, config: Config) -> Self {
        let (debris, dirs) = (Arc::default(), Vec::new());
        Self { verbosity, config, debris, dirs, parents: 0, child: None }
    }

    fn note(&self, change: impl FnOnce(&mut CleanupList)) {
        change(&mut self.debris.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn make_volume(&self, new: &NewVolume) -> Result<()> {
        let template = "writing the volume {bar:40} {binary_bytes}/{binary_total_bytes}";
        let bar = bar_for(self.verbosity, template, None);
        let made = create(new, &mut |progress: FillProgress| {
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
            ControlFlow::Continue(())
        });
        bar.finish_and_clear();
        made.map(|_| ()).map_err(|error| match error.reason {
            Reason::Foreign { .. }
            | Reason::Remains { .. }
            | Reason::Unknown { .. }
            | Reason::Written => Failure::from(error)
                .with_remedy("name another one, or add --overwrite if its content is not needed")
                .into(),
            _ => Failure::from(error).into(),
        })
    }

    fn make_dir(&mut self, parent: &Path) -> Result<PathBuf> {
        let dir = TempDir::with_prefix_in("kvrail-bench-", parent).with_context(|| {
            format!("{}: no directory can be made; name another with --dir", parent.display())
        })?;
        let path = dir.path().to_owned();
        self.note(|debris| debris.dirs.push(path.clone()));
        self.dirs.push(dir);
        Ok(path)
    }

    fn store_files(&self) -> Vec<PathBuf> {
        self.dirs.iter().take(self.parents).map(|dir| dir.path().join("store.img")).collect()
    }

    /// Where the sidecar's socket is: beside the files, or in /tmp where that path is too long.
    fn socket_for(&mut self, dir: &Path) -> Result<PathBuf> {
        let beside = dir.join("kvrail.sock");
        if beside.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
            return Ok(beside);
        }
        Ok(self.make_dir(Path::new("/tmp"))?.join("kvrail.sock"))
    }

    fn start(&mut self, served: &Served<'_>, mode: Option<&str>) -> Result<PathBuf> {
        let dir = self.dirs[0].path().to_owned();
        let socket = self.socket_for(&dir)?;
        let (config, log) = (dir.join("kvrail.toml"), dir.join("kvrail.log"));
        let text = toml::to_string(&own_config(&self.config, &socket, served, mode)?)?;
        fs::write(&config, text).with_context(|| format!("{}", config.display()))?;
        let output = File::create(&log).with_context(|| format!("{}", log.display()))?;
        let program = std::env::current_exe().context("the path of this program")?;
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KVRAIL_") {
                command.env_remove(name);
            }
        }
        command.args(["serve", "--exit-with-parent", "--config"]).arg(&config);
        for dir in &self.dirs {
            command.arg("--remove").arg(dir.path());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let child = command.spawn().context("starting the sidecar")?;
        let pid = Pid::from_child(&child);
        self.note(|debris| debris.child = Some(pid));
        self.child = Some(child);
        self.wait_until_ready(&socket, &log)?;
        Ok(socket)
    }

    fn wait_until_ready(&mut self, socket: &Path, log: &Path) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        let child = self.child.as_mut().context("no sidecar was started")?;
        loop {
            if let Some(status) = child.try_wait().context("waiting for the sidecar")? {
                let said = fs::read_to_string(log).unwrap_or_default();
                bail!("the sidecar did not start ({status}):\n{}", said.trim_end());
            }
            if Client::attach(socket).is_ok() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the sidecar was not ready within {READY_WITHIN:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        self.note(|debris| debris.child = None);
        let asked = kill_process(Pid::from_child(&child), Signal::TERM);
        asked.context("asking the sidecar to stop")?;
        let deadline = Instant::now() + END_WITHIN;
        loop {
            if let Some(status) = child.try_wait().context("waiting for the sidecar")? {
                ensure!(status.success(), "the sidecar ended with {status}: {}", self.log_tail());
                return Ok(());
            }
            if Instant::now() >= deadline {
                let _killed = child.kill();
                bail!("the sidecar did not stop within {END_WITHIN:?}: {}", self.log_tail());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Takes our label off the devices.
    fn wipe(&self) -> Result<()> {
        let mut devices = Vec::new();
        self.note(|debris| devices = std::mem::take(&mut debris.devices));
        if !devices.is_empty() {
            kvrail_volume::wipe(&name(), &devices).map_err(anyhow::Error::msg)?;
        }
        Ok(())
    }

    fn log_tail(&self) -> String {
        let log = self.dirs.first().map(|dir| dir.path().join("kvrail.log"));
        let text = log.and_then(|log| fs::read_to_string(log).ok()).unwrap_or_default();
        let from = text.len().saturating_sub(2000);
        text.get(from..).unwrap_or(&text).to_owned()
    }
}

impl Harness for Embedded {
    fn open(&mut self, options: &BenchOptions, volume_bytes: u64) -> Result<Ground> {
        clean_up_on_signals(Arc::clone(&self.debris))?;
        for parent in options.dirs_or(Path::new(DEFAULT_DIR)) {
            self.make_dir(&parent)?;
        }
        self.parents = self.dirs.len();
        let paths: Vec<_> = self.dirs.iter().map(|dir| dir.path().to_owned()).collect();
        let members = if options.members.is_empty() {
            paths.iter().map(|path| path.join("volume.img")).collect()
        } else {
            devices(&options.members)?
        };
        let store = own_store(options, paths.len() as u64)?;
        if options.progress == kvrail_bench::Progress::Shown {
            let store_bytes = store.map(|(bytes, _)| bytes);
            say(&intention(options, &paths, (volume_bytes, store_bytes)));
        }
        let overwrite = if options.overwrite { Overwrite::Foreign } else { Overwrite::Nothing };
        let raw = VolumeLayout::Raw { stripe_bytes: STRIPE_BYTES };
        self.make_volume(&new_volume(name(), &members, (volume_bytes, raw), overwrite))?;
        let files = self.store_files();
        if let Some(new) = store {
            self.make_volume(&new_volume(store_name(), &files, new, overwrite))?;
        }
        if !options.members.is_empty() {
            self.note(|debris| debris.devices.clone_from(&members));
        }
        let store = store.map(|_| &files[..]);
        let served = Served { volume: Some(&members), store, tier_bytes: 0 };
        let socket = self.start(&served, options.mode.as_deref())?;
        let [null_store, store] = [NULL_STORE, STORE].map(|name| store.map(|_| name.to_owned()));
        let (volume, null_volume) = ("bench".to_owned(), Some("null".to_owned()));
        attach(&ServingSidecar { socket, volume, store, null_volume, null_store }, options)
    }

    /// Another sidecar for the same store.
    fn open_tiered(
        &mut self,
        options: &BenchOptions,
        tier_bytes: u64,
    ) -> Result<Result<TieredStore, String>> {
        if options.store_bytes().is_none() {
            let why = "--member's devices hold the volume; use --dir, or --attach to a sidecar";
            return Ok(Err(why.to_owned()));
        }
        self.stop()?;
        let files = self.store_files();
        let tier_bytes = tier_bytes.max(TIER_BYTES_MIN);
        let served = Served { volume: None, store: Some(&files), tier_bytes };
        let socket = self.start(&served, options.mode.as_deref())?;
        Ok(Ok(TieredStore { client: Client::attach(socket)?, name: STORE.to_owned() }))
    }

    fn close(&mut self) -> Result<()> {
        self.stop()?;
        self.wipe()?;
        self.note(|debris| debris.dirs.clear());
        let close = |dir: TempDir| dir.close().context("removing the benchmark's files");
        self.dirs.drain(..).try_for_each(close)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The error was reported already; nothing may stay behind.
            let _killed = child.kill();
            let _reaped = child.wait();
        }
        let _wiped = self.wipe();
    }
}

/// The store to make: its bytes on all members, and how they are cut. A trace has the store that
/// `kvrail store replay` has.
fn own_store(options: &BenchOptions, members: u64) -> Result<Option<(u64, VolumeLayout)>> {
    let Some(bytes) = options.store_bytes() else { return Ok(None) };
    if options.trace.is_none() {
        let layout =
            VolumeLayout::Store { segment_bytes: None, block_mean: Some(STORE_BLOCK_MEAN) };
        return Ok(Some((bytes, layout)));
    }
    let shape = options.store_shape(members).map_err(BenchError::Options)?;
    let block_bytes = options.serving()?.block_bytes.next_multiple_of(512);
    let cut = StoreShape { segment_bytes: shape.segment_bytes, block_mean: block_bytes };
    let enough = |area: &u64| {
        let sizing = Sizing::of(&cut.config(StoreMember::new(*area, 512), 1));
        sizing.is_ok_and(|sizing| u64::from(sizing.segments) >= shape.segments)
    };
    let data = shape.segments * shape.segment_bytes;
    let mut areas = (0..=FRONT_BYTES_MAX >> 16).map(|step| data + (step << 16));
    let area = areas.find(enough).context("no area has enough segments")?;
    let segment_bytes = Some(shape.segment_bytes);
    let layout = VolumeLayout::Store { segment_bytes, block_mean: Some(block_bytes.into()) };
    Ok(Some((area * members, layout)))
}

/// The announcement of the files to be written.
fn intention(
    options: &BenchOptions,
    dirs: &[PathBuf],
    (volume_bytes, store): (u64, Option<u64>),
) -> String {
    let mib = |bytes: u64| Size::new(bytes.next_multiple_of(1 << 20));
    let dirs = dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ");
    let files = match (options.members.is_empty(), store) {
        (true, Some(bytes)) => {
            format!("{} for a volume and {} for a store", mib(volume_bytes), mib(bytes))
        }
        (true, None) => format!("{} for a volume", mib(volume_bytes)),
        (false, _) => {
            let members = options.members.iter().map(ToString::to_string).collect::<Vec<_>>();
            let members = members.join(", ");
            return format!(
                "writes {} to {members} and wipes its label there at the end; its log is in \
                 {dirs}, which is removed",
                mib(volume_bytes)
            );
        }
    };
    format!("writes {files} below {dirs}, and removes them at the end")
}

/// What a sidecar serves.
struct Served<'a> {
    /// Members of the volume; without it there are no null devices either.
    volume: Option<&'a [PathBuf]>,
    /// Members of the store.
    store: Option<&'a [PathBuf]>,
    /// Bytes of the memory tier: 0 where gets are to reach the drives.
    tier_bytes: u64,
}

/// The name in the label.
fn name() -> VolumeName {
    "bench".parse().expect("a valid name")
}

/// The same of the store.
fn store_name() -> VolumeName {
    STORE.parse().expect("a valid name")
}

fn new_volume(
    name: VolumeName,
    members: &[PathBuf],
    (bytes, layout): (u64, VolumeLayout),
    overwrite: Overwrite,
) -> NewVolume {
    NewVolume {
        name,
        members: members.to_vec(),
        capacity_bytes: Some(bytes),
        layout,
        fill: Fill::Files,
        overwrite,
        direct: DirectIo::Required,
    }
}

/// The sidecar's configuration: the one in force with these volumes, and no others.
fn own_config(
    base: &Config,
    socket: &Path,
    served: &Served<'_>,
    mode: Option<&str>,
) -> Result<Config> {
    let none = Config::default();
    let mut config =
        Config { gpu: none.gpu, target: none.target, volume: none.volume, ..base.clone() };
    config.sidecar.socket = socket.to_owned();
    config.metrics.listen = Listen::Off;
    config.memory_tier.bytes = Size::new(served.tier_bytes);
    let has_tier = served.tier_bytes > 0;
    config.memory_tier.write_late =
        if has_tier { vec![format!("{}*", kvrail_bench::memory::LATE_NAMES)] } else { Vec::new() };
    if let Some(mode) = mode {
        config.device.mode = toml::Value::from(mode).try_into().context("--mode")?;
    }
    // All threads are one client's, each with an arena and a queue; the lanes are one more.
    let threads = CLIENTS_MAX + 1;
    let limits = &mut config.limits;
    limits.arenas_per_session = limits.arenas_per_session.max(threads);
    limits.queues_per_session = limits.queues_per_session.max(threads);
    let null = [PathBuf::from("null:1TiB")];
    let null_member = served.volume.map(|_| &null[..]);
    let null_store = null_member.filter(|_| served.store.is_some());
    let volumes = [
        ("bench", served.volume, None),
        ("null", null_member, None),
        (STORE, served.store, None),
        (NULL_STORE, null_store, Some(NullContent::Store)),
    ];
    let there = volumes.into_iter().filter_map(|(name, it, content)| Some((name, it?, content)));
    for (name, members, content) in there {
        let members = members.iter().cloned().map(Selector::Path).collect();
        // A measurement does not spare a drive's endurance.
        let write_budget =
            if name == STORE { WriteBudget::Unlimited } else { WriteBudget::default() };
        let name = name.parse().map_err(anyhow::Error::msg)?;
        config.volume.push(VolumeConfig {
            name,
            members,
            content,
            write_budget,
            tenant: Vec::new(),
            pool: Vec::new(),
            device: Default::default(),
        });
    }
    Ok(config)
}

/// Where the devices named are. A file that is not there would be made, and stay.
fn devices(named: &[Selector]) -> Result<Vec<PathBuf>> {
    let found = paths(named)?;
    if let Some(missing) = found.iter().find(|path| !path.exists()) {
        let message = format!("--member {}: there is no such device or file", missing.display());
        let remedy = "name one that is there, or let --dir hold a file for the time of the run";
        return Err(Failure::new(Exit::Usage, message).with_remedy(remedy).into());
    }
    // The sidecar's configuration takes absolute paths only.
    found.iter().map(|path| std::path::absolute(path).context("the working directory")).collect()
}

/// A signal ends the benchmark at once, and leaves nothing behind.
fn clean_up_on_signals(debris: Arc<Mutex<CleanupList>>) -> Result<()> {
    let mut signals = Signals::new(ending_signals()).context("catching signals")?;
    let life = move || {
        if signals.forever().next().is_some() {
            let debris = debris.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(child) = debris.child {
                let _killed = kill_process(child, Signal::KILL);
            }
            for dir in &debris.dirs {
                let _removed = fs::remove_dir_all(dir);
            }
            if !debris.devices.is_empty() {
                // The claim waits until the killed sidecar's is gone.
                let _wiped = kvrail_volume::wipe(&name(), &debris.devices);
            }
            std::process::exit(130);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(life).context("starting a thread")?;
    Ok(())
}
