//! The first words with a sidecar.

use std::path::Path;
use std::time::{Duration, Instant};

use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, FDS_MAX, Hello,
    PacketBuffer, RefusalCode, SidecarMessage, Version, Welcome, unspill,
};
use kvrail_ring::limits::LANE_VERSION;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::ClientError;

/// Number of the hello.
pub(crate) const HELLO_SEQ: u64 = 1;

/// Between two tries to attach while there is no sidecar: short compared with a restart.
const RETRY: Duration = Duration::from_millis(5);

/// Name and version of this library, for the sidecar's logs.
const LIBRARY: &str = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));

/// How to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    /// How this client calls itself in `kvrail status` and in logs.
    pub name: String,
    /// Longest wait for the sidecar's answers, those aside that wait for devices.
    pub timeout: Duration,
    /// Longest wait for a sidecar where there is none or one that is stopping, as while it is
    /// upgraded. Zero: that is an error at once.
    pub wait: Duration,
}

impl Default for AttachOptions {
    /// The program's name; 30 seconds for answers, for making a large arena takes long; no wait
    /// for a sidecar.
    fn default() -> Self {
        let program = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&program).file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        Self { name, timeout: Duration::from_secs(30), wait: Duration::ZERO }
    }
}

/// Connects and sends the hello, repeatedly while the options wait for a sidecar.
pub(crate) fn attach(
    socket: &Path,
    options: &AttachOptions,
) -> Result<(Channel, Welcome), ClientError> {
    let start = Instant::now();
    loop {
        match try_attach(socket, options) {
            Err(error) if is_absent(&error) && start.elapsed() < options.wait => {
                std::thread::sleep(RETRY);
            }
            outcome => return outcome,
        }
    }
}

/// Whether the next sidecar may let this client in.
fn is_absent(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::NoSidecar { .. }
            | ClientError::SidecarGone { .. }
            | ClientError::NotAdmitted { code: RefusalCode::Draining, .. }
    )
}

fn try_attach(socket: &Path, options: &AttachOptions) -> Result<(Channel, Welcome), ClientError> {
    let deadline = Instant::now() + options.timeout;
    let channel = connect(socket, options, deadline)?;
    let hello = Hello {
        protocol: Version::CURRENT,
        lane_version: LANE_VERSION,
        name: options.name.clone(),
        library: LIBRARY.into(),
    };
    match channel.send(&ClientMessage { seq: HELLO_SEQ, ask: ControlRequest::Hello(hello) }, &[]) {
        // A refusal may be waiting although the other end is closed.
        Ok(()) | Err(ChannelError::Closed) => {}
        Err(error) => return Err(error.into()),
    }
    let welcome = listen(&channel, options, deadline)?;
    check(&welcome)?;
    Ok((channel, welcome))
}

fn connect(
    socket: &Path,
    options: &AttachOptions,
    deadline: Instant,
) -> Result<Channel, ClientError> {
    let what = "connecting to the sidecar";
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match Channel::connect_within(socket, left) {
            Ok(channel) => return Ok(channel),
            // A signal, if there is time left.
            Err(ChannelError::WouldBlock) if Instant::now() < deadline => {}
            Err(ChannelError::WouldBlock) => {
                return Err(ClientError::Timeout { what, after: options.timeout });
            }
            Err(ChannelError::Socket(errno)) => return Err(no_sidecar(socket, errno)),
            Err(error) => return Err(error.into()),
        }
    }
}

fn no_sidecar(socket: &Path, errno: Errno) -> ClientError {
    let remedy = match errno {
        // A unit that waits for a drive, or fails again and again, has no socket yet.
        Errno::NOENT => {
            "start one (kvrail serve), or name its socket; `systemctl status kvrail` shows why a \
             service does not serve yet"
        }
        Errno::CONNREFUSED => {
            "the one that made this socket is gone; start one (kvrail serve); `systemctl status \
             kvrail` shows why a service does not serve yet"
        }
        Errno::ACCESS | Errno::PERM => {
            "this user may not open the socket; join its group, or change sidecar.socket_mode in \
             the configuration"
        }
        Errno::PROTOTYPE => "something else listens there; name the sidecar's socket",
        _ => "check the path",
    };
    ClientError::NoSidecar { socket: socket.into(), cause: errno.to_string(), remedy }
}

/// Waits for the answer to the hello.
fn listen(
    channel: &Channel,
    options: &AttachOptions,
    deadline: Instant,
) -> Result<Welcome, ClientError> {
    let mut buffer = PacketBuffer::default();
    loop {
        match channel.receive::<SidecarMessage>(&mut buffer, FDS_MAX).and_then(unspill) {
            Ok(packet) => return admitted(packet.message),
            Err(ChannelError::WouldBlock) => {}
            Err(ChannelError::Closed) => {
                let reason = "the sidecar closed the connection without a word".into();
                return Err(ClientError::SidecarGone { reason });
            }
            Err(error) => return Err(error.into()),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let what = "attaching to the sidecar";
            return Err(ClientError::Timeout { what, after: options.timeout });
        }
        let left = Timespec::try_from(left).ok();
        let _woken = poll(&mut [PollFd::new(channel, PollFlags::IN)], left.as_ref());
    }
}

fn admitted(message: SidecarMessage) -> Result<Welcome, ClientError> {
    match message {
        SidecarMessage::Reply { answer: ControlReply::Welcome(welcome), .. } => Ok(*welcome),
        SidecarMessage::Reply { answer: ControlReply::Refused { code, message }, .. } => {
            Err(ClientError::NotAdmitted { code, message })
        }
        SidecarMessage::Closing { reason, .. } => Err(ClientError::SidecarGone { reason }),
        other => Err(ClientError::protocol(format!("answer to hello: {other:?}"))),
    }
}

/// A welcome that cannot be true would lead to panics later.
fn check(welcome: &Welcome) -> Result<(), ClientError> {
    if welcome.protocol.major != Version::CURRENT.major {
        return Err(ClientError::protocol(format!("it speaks protocol {}", welcome.protocol)));
    }
    for (place, volume) in welcome.volumes.iter().enumerate() {
        volume.check(welcome.pollers.len())?;
        if usize::from(volume.id) != place {
            return Err(ClientError::protocol(format!("volume {:?} out of place", volume.name)));
        }
    }
    Ok(())
}
