//! A sidecar process.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use kvrail_client::{AttachOptions, Client, StatusReport};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::{LONG, Place, eventually};

/// A running sidecar; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Sidecar {
    child: Child,
    pidfd: OwnedFd,
    log: PathBuf,
    /// Bytes that earlier sidecars of this place had logged.
    earlier: u64,
    socket: PathBuf,
}

/// Resources that a sidecar holds without sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Belongings {
    fds: usize,
    mappings: usize,
}

impl Sidecar {
    /// Starts one and waits until it serves and its start report is in the log.
    pub(crate) fn start(place: &Place) -> Self {
        Self::start_as(place, place.serve())
    }

    /// As [`Self::start`], with this command.
    pub(crate) fn start_as(place: &Place, command: Command) -> Self {
        let mut it = Self::launch(place, command);
        eventually("the sidecar serves", || {
            if let Some(status) = it.child.try_wait().expect("our child") {
                panic!("the sidecar ended with {status}: {}", it.stderr());
            }
            Client::attach(&it.socket).is_ok()
        });
        // A thread of its own writes the log, at times after the first client has attached.
        eventually("the log has the start report", || it.own_log().contains(" ready on "));
        it
    }

    /// Starts one with metrics and page, and waits until the log names their address:
    /// `address:port`.
    pub(crate) fn start_with_metrics(place: &Place) -> (Self, String) {
        let mut command = place.serve();
        command.args(["--set", "metrics.listen=127.0.0.1:0"]);
        let it = Self::start_as(place, command);
        let mark = "metrics and page: http://";
        eventually("the log names the address", || it.stderr().contains(mark));
        let log = it.stderr();
        let address = log.split_once(mark).expect("just seen").1.split_once('/');
        let address = address.expect("a path behind it").0.to_owned();
        (it, address)
    }

    /// Starts this command, which may fail to serve.
    pub(crate) fn launch(place: &Place, mut command: Command) -> Self {
        let log = place.path("log");
        let output = File::options().append(true).create(true).open(&log).expect("our folder");
        let earlier = output.metadata().expect("our file").len();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let child = command.spawn().expect("the program starts");
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("our child");
        Self { child, pidfd, log, earlier, socket: place.socket() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// All its standard error until now.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its standard error without that of earlier sidecars of this place.
    fn own_log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let earlier = usize::try_from(self.earlier).expect("a log that fits into memory");
        let own = log.get(earlier..).unwrap_or_default();
        String::from_utf8_lossy(own).into_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our child lives");
    }

    /// Its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our child")
    }

    /// Waits until it has ended, or serves; true when it has ended.
    pub(crate) fn wait_or_serve(&mut self) -> bool {
        let mut ended = false;
        eventually("it serves or ends", || {
            ended = self.child.try_wait().expect("our child").is_some();
            ended || Client::attach(&self.socket).is_ok()
        });
        ended
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return status;
            }
            assert!(start.elapsed() < LONG, "the sidecar does not end: {}", self.stderr());
            let mut ended = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
            let patience = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            let _woken = rustix::event::poll(&mut ended, Some(&patience));
        }
    }

    /// Sends SIGTERM, and checks that it ends well; returns its standard error.
    pub(crate) fn stop(mut self) -> String {
        self.signal(Signal::TERM);
        let status = self.wait();
        let log = self.stderr();
        assert!(status.success(), "{status} (signal {:?}): {log}", status.signal());
        log
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.signal(Signal::KILL);
        assert_eq!(self.wait().signal(), Some(9));
    }

    /// Panics unless it lives.
    pub(crate) fn assert_alive(&mut self) {
        let ended = self.child.try_wait().expect("our child");
        assert!(ended.is_none(), "the sidecar ended with {ended:?}: {}", self.stderr());
    }

    pub(crate) fn attach(&self) -> Client {
        let name = "the test".to_owned();
        let options = AttachOptions { name, ..AttachOptions::default() };
        Client::attach_with(&self.socket, &options).expect("the sidecar lets us in")
    }

    pub(crate) fn status(&self) -> StatusReport {
        self.attach().status().expect("the sidecar answers")
    }

    /// Resources with no session but this call's own.
    pub(crate) fn belongings(&self) -> Belongings {
        let watcher = self.attach();
        eventually("all sessions are reclaimed", || {
            let report = watcher.status().expect("the sidecar answers");
            let alone = report.sessions.len() == 1;
            alone && report.regions.arenas == 0 && report.regions.bytes == 0
        });
        let proc = PathBuf::from(format!("/proc/{}", self.pid()));
        let fds = fs::read_dir(proc.join("fd")).expect("our child's").count();
        let maps = fs::read_to_string(proc.join("maps")).expect("our child's");
        let mappings = maps.lines().filter(|line| line.contains("kvrail-")).count();
        Belongings { fds, mappings }
    }

    /// Waits until it holds no more than before: the resources of a session are freed a little
    /// after its end, maybe also those of a session that ended before the first look.
    pub(crate) fn wait_for_belongings(&self, before: &Belongings) {
        eventually(&format!("it has no more than {before:?}"), || {
            let now = self.belongings();
            now.fds <= before.fds && now.mappings <= before.mappings
        });
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
