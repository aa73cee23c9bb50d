//! The setup of a run: a folder, two volumes behind one poller, a sidecar.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kvrail_client::Client;
use kvrail_tests::{Fuse, FuseRequest};
use tempfile::TempDir;

use crate::catalog::{VOLUME, WIDE};
use crate::seats::{Seats, on};

/// User and group id of abusers: the user `nobody` on most systems.
pub(crate) const GUEST: u32 = 65_534;
/// User and group id of the abuser that may not attach.
pub(crate) const STRANGER: u32 = 65_533;

/// How long a start may take.
const START: Duration = Duration::from_secs(30);

/// Volumes with their stripes and sizes.
const VOLUMES: [(&str, &str, &str); 2] = [(VOLUME, "1MiB", "258MiB"), (WIDE, "64MiB", "194MiB")];

/// A running sidecar; dropped, it is killed and its folders are removed.
#[derive(Debug)]
pub(crate) struct Ground {
    child: Child,
    /// Socket, log and actor: every user may enter.
    run: TempDir,
    /// The volumes.
    data: TempDir,
}

/// Whether this process may change its user id.
pub(crate) fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

impl Ground {
    /// Makes the volumes below `data` and starts `programs/kvrail` on them.
    pub(crate) fn start(programs: &Path, data: &Path, seats: &Seats) -> Result<Self> {
        let run = tempfile::tempdir()?;
        fs::set_permissions(run.path(), Permissions::from_mode(0o755))?;
        // The folder of the build may be closed to abusers.
        fs::copy(programs.join("kvrail-actor"), run.path().join("actor"))
            .with_context(|| format!("no kvrail-actor in {}", programs.display()))?;
        let data = tempfile::tempdir_in(data)?;
        for (name, stripe, size) in VOLUMES {
            let mut create = kvrail(programs);
            create.args(["volume", "create", name, "--stripe", stripe, "--size", size]);
            create.args(["--direct", "optional", "--quiet"]).arg(data.path().join(name));
            let made = create.output()?;
            ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        let config = run.path().join("kvrail.toml");
        fs::write(&config, configuration(run.path(), data.path(), seats))?;
        let mut serve = kvrail(programs);
        serve.args(["serve", "--exit-with-parent", "--config"]).arg(&config);
        serve.stdin(Stdio::null()).stdout(Stdio::null());
        serve.stderr(File::create(run.path().join("log"))?);
        let child = on(&seats.sidecar(), || serve.spawn())?;
        let mut ground = Self { child, run, data };
        ground.wait()?;
        Ok(ground)
    }

    fn wait(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let Err(error) = Client::attach(self.socket()) else { return Ok(()) };
            let waits = self.lives() && start.elapsed() < START;
            ensure!(waits, "no client can attach: {error}; the sidecar wrote: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.run.path().join("s")
    }

    /// The helper program, in a folder where every user may execute it.
    pub(crate) fn actor(&self) -> Command {
        Command::new(self.run.path().join("actor"))
    }

    /// A new file for a process's standard error.
    pub(crate) fn transcript(&self, name: &str) -> Result<(PathBuf, File)> {
        let path = self.run.path().join(name);
        let file = File::create(&path)?;
        Ok((path, file))
    }

    /// A file system whose file can never be closed.
    ///
    /// # Errors
    /// Why this machine has none to give.
    pub(crate) fn unanswering_files(&self) -> Result<Fuse, String> {
        let at = self.run.path().join("fuse");
        let ready = fs::create_dir_all(&at).and_then(|()| tempfile::tempfile());
        let fuse = Fuse::mount(&at, ready.map_err(|error| error.to_string())?)?;
        fuse.withhold_answers(FuseRequest::Flush);
        Ok(fuse)
    }

    pub(crate) fn members(&self) -> Vec<PathBuf> {
        VOLUMES.iter().map(|(name, ..)| self.data.path().join(name)).collect()
    }

    pub(crate) fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The sidecar's standard error.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.run.path().join("log")).unwrap_or_default()
    }

    /// Sends SIGTERM and waits; an error unless the sidecar ends well.
    pub(crate) fn stop(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let start = Instant::now();
        while self.lives() {
            ensure!(start.elapsed() < START, "SIGTERM is not followed: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        let (status, stderr) = (self.child.wait()?, self.stderr());
        if !status.success() || stderr.contains("panicked") {
            bail!("the sidecar ended with {status}: {stderr}");
        }
        Ok(())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// `kvrail`, without anything that this environment may configure.
fn kvrail(programs: &Path) -> Command {
    let mut command = Command::new(programs.join("kvrail"));
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.to_string_lossy().starts_with("KVRAIL_")) {
        command.env_remove(name);
    }
    command.env("KVRAIL_CONFIG", "/dev/null");
    command
}

/// One poller for both volumes, so every client shares it with the others.
fn configuration(run: &Path, data: &Path, seats: &Seats) -> String {
    let mut text = format!("sidecar.socket = {:?}\n", run.join("s"));
    text += "sidecar.socket_mode = \"0666\"\n";
    if is_root() {
        text += &format!("sidecar.allow_uids = [{GUEST}]\n");
    }
    text += &match seats.poller() {
        Some(core) => format!("pollers.cpus = [{core}]\n"),
        None => String::new(),
    };
    text += "metrics.listen = \"off\"\n";
    text += "pollers.count = 1\ndevice.direct = \"optional\"\ndevice.mode = \"interrupt\"\n";
    for (name, ..) in VOLUMES {
        let member = data.join(name);
        text += &format!("[[volume]]\nname = {name:?}\nmembers = [{member:?}]\n");
    }
    text
}
