//! The endpoint's thread: who is listened to, how many, and for how long.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::process::setpriority_process;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::hosts::Hosts;
use crate::listen::Listen;
use crate::routes::Site;
use crate::snapshot::{Life, Snapshots};

/// Connections at once. One more cuts the oldest off: who reads takes milliseconds, so the oldest
/// is one who does not.
const CONNECTIONS_MAX: usize = 64;

/// How long a connection may last: it is there for one request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// How long is waited when the kernel has no descriptor for a connection.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Below all that moves bytes.
const NICENESS: i32 = 19;

/// Why there is no endpoint.
#[derive(Debug, Error)]
pub enum EndpointError {
    /// Somebody else listens there, or nobody may.
    #[error("metrics.listen = \"{listen}\": {cause}")]
    Listen {
        /// Where.
        listen: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// Threads or descriptors ran out.
    #[error("the metrics endpoint cannot start: {0}")]
    Start(#[from] io::Error),
}

/// A running endpoint; it ends when this is dropped.
#[derive(Debug)]
pub struct Endpoint {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    place: Listen,
    /// Removed at the end.
    path: Option<PathBuf>,
}

/// A door with a kernel's queue before it.
enum Door {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Endpoint {
    /// Listens from now on; a Unix socket gets this mode, and no browser gets there. `None` where
    /// nothing is listened to.
    ///
    /// # Errors
    /// `EndpointError` names the place and the cause.
    pub fn start(
        listen: &Listen,
        mode: u32,
        hosts: Hosts,
        life: Life,
    ) -> Result<Option<Self>, EndpointError> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let cannot = |cause| EndpointError::Listen { listen: listen.to_string(), cause };
        let entered = runtime.enter();
        let (door, place, path) = match listen {
            Listen::Off => return Ok(None),
            Listen::Tcp(address) => {
                let socket = std::net::TcpListener::bind(address).map_err(cannot)?;
                let place = Listen::Tcp(socket.local_addr()?);
                socket.set_nonblocking(true)?;
                (Door::Tcp(tokio::net::TcpListener::from_std(socket)?), place, None)
            }
            Listen::Unix(path) => {
                let socket = bind(path, mode).map_err(cannot)?;
                let door = Door::Unix(tokio::net::UnixListener::from_std(socket)?);
                (door, listen.clone(), Some(path.clone()))
            }
        };
        drop(entered);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("kvrail-metrics".into());
        let hosts = path.is_none().then_some(hosts);
        let site = Site { snapshots: Snapshots::new(life), hosts };
        let thread = thread.spawn(move || serve(&runtime, door, site, stopped))?;
        Ok(Some(Self { stop: Some(stop), thread: Some(thread), place, path }))
    }

    /// Where it listens: with the port that was free where any would do.
    #[must_use]
    pub fn place(&self) -> &Listen {
        &self.place
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join(); // a panic there was reported by the thread itself
        }
        if let Some(path) = &self.path {
            let _gone = fs::remove_file(path); // somebody may have been quicker
        }
    }
}

/// Takes the place of a socket that nobody listens at any more, and of nothing else.
fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).as_ref().is_err_and(refused) {
        fs::remove_file(path)?;
    }
    let socket = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The whole life of the thread. What is still open at its end is cut off.
fn serve(runtime: &Runtime, door: Door, site: Site, stopped: oneshot::Receiver<()>) {
    // Of this thread alone; where that is not allowed it is as important as others.
    let _lowered = setpriority_process(None, NICENESS);
    runtime.spawn(door.listen(Arc::new(site)));
    let _dropped = runtime.block_on(stopped); // it is never sent anything
}

impl Door {
    /// Takes connections, without end.
    async fn listen(self, site: Arc<Site>) {
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let Ok(connection) = self.admit(&site).await else {
                tokio::time::sleep(EXHAUSTED).await;
                continue;
            };
            open.retain(|it| !it.is_finished());
            if open.len() == CONNECTIONS_MAX {
                open.pop_front().expect("there are some").abort();
            }
            open.push_back(connection);
        }
    }

    /// Takes the next connection, which is served from now on.
    async fn admit(&self, site: &Arc<Site>) -> io::Result<AbortHandle> {
        Ok(match self {
            Self::Tcp(socket) => begin(socket.accept().await?.0, site),
            Self::Unix(socket) => begin(socket.accept().await?.0, site),
        })
    }
}

/// Serves one request of a connection.
fn begin<S>(stream: S, site: &Arc<Site>) -> AbortHandle
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let site = Arc::clone(site);
    let connection = async move {
        let answer = service_fn(|request| {
            let site = Arc::clone(&site);
            async move { Ok::<_, Infallible>(site.answer(&request).await) }
        });
        let mut http = http1::Builder::new();
        let http = http.keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
        let served = http.serve_connection(TokioIo::new(stream), answer);
        // Whoever breaks off, or takes too long, has lost its answer.
        let _over = tokio::time::timeout(PATIENCE, served).await;
    };
    tokio::spawn(connection).abort_handle()
}
