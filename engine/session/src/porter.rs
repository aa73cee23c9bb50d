//! A separate process receives the descriptors of clients' messages, and closes rejected ones.
//!
//! The close of a descriptor may block: on a socket that lingers, or on an unresponsive file system
//! in user space. A blocked thread cannot be stopped, and the end of its process waits for it. Such
//! a descriptor therefore never reaches this process: another one, started for the message alone,
//! examines the descriptors and passes on memory only. The sidecar does not wait for the end of
//! that process.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{Error, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvrail_protocol::{Channel, ChannelError, ClientMessage, FDS_MAX, PacketBuffer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Stat, fcntl_get_seals, fstat, fstatfs, major};
use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};

/// The word for taking descriptors in.
const FETCH: &str = "fetch";

/// The word for closing.
const CLOSE: &str = "close";

/// How long a process may take to look at descriptors, in seconds; it needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Devices of NVIDIA's driver, which are handles of GPU memory.
const NVIDIA_MAJOR: u32 = 195;

/// `DMA_BUF_MAGIC` of linux/magic.h: buffers of drivers, which are handles of GPU memory too.
const DMA_BUF_MAGIC: i64 = 0x444d_4142;

/// How this program is started once more, to call `porter`.
#[derive(Clone, Debug)]
pub struct Porter {
    program: PathBuf,
    arguments: Vec<OsString>,
    /// Held while sockets are inherited: they are for one process only.
    starting: Arc<Mutex<()>>,
}

/// The descriptors that came with a message.
#[derive(Debug)]
pub(crate) enum Received {
    /// These, which are memory.
    Fit(Vec<OwnedFd>),
    /// The number of descriptors, and the place and kind of an unsuitable one. All of them were
    /// closed.
    Unfit(usize, (usize, String)),
}

/// Why descriptors were not taken in.
#[derive(Debug)]
pub(crate) enum Stuck {
    /// No process could be started: the packet still lies in the socket.
    NotStarted(String),
    /// The process failed, and the packet may be gone.
    Failed(String),
}

/// The process's result: number of descriptors, and place and kind of an unsuitable one.
type Findings = (usize, Option<(usize, String)>);

impl Porter {
    /// A program that calls `porter` with its last argument, which is added to these.
    pub fn new(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(OsString::from).collect();
        Self { program: program.into(), arguments, starting: Arc::default() }
    }

    fn command(&self, job: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(job).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn start(&self, command: &mut Command) -> Result<Child, Error> {
        let _others_inherit_nothing = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        command.spawn()
    }

    /// Starts a process that takes the next packet out of a client's socket, and reads its verdict
    /// on the descriptors. Suitable are memory and handles of a GPU's memory.
    pub(crate) fn fetch(
        &self,
        socket: &OwnedFd,
        children: &mut Vec<Child>,
    ) -> Result<Received, Stuck> {
        let stuck = |what: String| format!("no descriptors can be taken: {what}");
        let not = |error: &dyn Display| Stuck::NotStarted(stuck(not_started(error)));
        let (link, other) = Channel::pair().map_err(|error| not(&error))?;
        let mut command = self.command(FETCH);
        let stdin = socket.try_clone().map_err(|error| not(&error))?;
        command.stdin(stdin).stderr(OwnedFd::from(other));
        let child = self.start(&mut command).map_err(|error| not(&error))?;
        children.push(child);
        drop(command); // and with it our copy of the other end
        let patience = Timespec::try_from(PATIENCE).ok();
        let mut said = [PollFd::new(&link, PollFlags::IN)];
        let _in_time = retry_on_intr(|| poll(&mut said, patience.as_ref()));
        match link.receive::<Findings>(&mut PacketBuffer::default(), FDS_MAX) {
            Ok(packet) => Ok(match packet.message {
                (_, None) => Received::Fit(packet.fds),
                (present, Some(unfit)) => Received::Unfit(present, unfit),
            }),
            Err(error) => {
                if let Some(child) = children.last_mut() {
                    let _dead_already = child.kill();
                }
                let why = format!("the process that looks at them failed: {error}");
                Err(Stuck::Failed(stuck(why)))
            }
        }
    }

    /// Starts a process that has these sockets and ends, which closes what lies in their queues.
    /// They come back if it cannot be started.
    pub(crate) fn close(&self, sockets: Vec<OwnedFd>) -> Result<Child, (Vec<OwnedFd>, Error)> {
        let lock = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let inherit = |flags| sockets.iter().try_for_each(|socket| fcntl_setfd(socket, flags));
        let started = match inherit(FdFlags::empty()) {
            Ok(()) => self.command(CLOSE).stdin(Stdio::piped()).spawn(),
            Err(errno) => Err(errno.into()),
        };
        let _ours_again = inherit(FdFlags::CLOEXEC);
        drop(lock);
        match started {
            Ok(mut child) => {
                // It waits for the end of its input, so that ours is never the last close.
                drop(sockets);
                drop(child.stdin.take());
                Ok(child)
            }
            Err(error) => Err((sockets, error)),
        }
    }
}

fn not_started(error: &dyn Display) -> String {
    format!(
        "the process that looks at them does not start ({error}); raise the sidecar's limits of \
         processes and open files (TasksMax=, LimitNOFILE=)"
    )
}

/// The process that the sidecar starts for descriptors: `job` is its last argument. Standard input
/// is a client's socket, or ends when it is time; standard error is the sidecar's.
#[must_use]
pub fn porter(job: &str) -> ExitCode {
    let done = match job {
        FETCH => fetch().is_ok(),
        CLOSE => std::io::stdin().read(&mut [0]).is_ok(),
        _ => false,
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fetch() -> Result<(), ChannelError> {
    let again = |fd: std::io::Result<OwnedFd>| {
        fd.map(Channel::from_fd).map_err(|error| ChannelError::Malformed(error.to_string()))
    };
    let link = again(std::io::stderr().as_fd().try_clone_to_owned())?;
    let socket = again(std::io::stdin().as_fd().try_clone_to_owned())?;
    let packet = socket.receive::<ClientMessage>(&mut PacketBuffer::default(), FDS_MAX)?;
    let mut looks = packet.fds.iter().enumerate();
    let unfit = looks.find_map(|(place, fd)| Some((place, unfit(fd)?)));
    let fit = if unfit.is_none() { &packet.fds[..] } else { &[] };
    let fds: Vec<_> = fit.iter().map(AsFd::as_fd).collect();
    let verdict: Findings = (packet.fds.len(), unfit);
    link.send(&verdict, &fds)
}

/// The kind of a descriptor that is neither a file in memory nor a handle of GPU memory.
fn unfit(fd: &OwnedFd) -> Option<String> {
    // Files of tmpfs and hugetlbfs have seals, and no others. No other file system is called.
    if fcntl_get_seals(fd).is_ok() || is_gpu_handle(fd) {
        return None;
    }
    let number = std::os::fd::AsRawFd::as_raw_fd(fd);
    let name = std::fs::read_link(Path::new("/proc/self/fd").join(number.to_string()));
    let name = name.map_or_else(|_| "a descriptor".into(), |name| name.display().to_string());
    Some(name)
}

fn is_gpu_handle(fd: &OwnedFd) -> bool {
    let nvidia = |stat: Stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && major(stat.st_rdev) == NVIDIA_MAJOR
    };
    let dma_buf = || fstatfs(fd).is_ok_and(|stat| stat.f_type == DMA_BUF_MAGIC);
    fstat(fd).is_ok_and(nvidia) || dma_buf()
}
