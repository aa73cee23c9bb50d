//! The endpoint's thread: which connections it serves, their number, and their time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
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

use crate::history::History;
use crate::hosts::Hosts;
use crate::listen::Listen;
use crate::place::{ListenPlace, Socket, SocketName};
use crate::routes::Site;
use crate::snapshot::{SidecarLife, Snapshots};

/// Connections at once. One more closes the oldest: a reader needs milliseconds, so the oldest one
/// is no active reader.
const CONNECTIONS_MAX: usize = 64;

/// How long a connection may last: it is there for one request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// How long is waited when the kernel has no descriptor for a connection.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// How long is waited before a place that is not free is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// Below all that moves bytes.
const NICENESS: i32 = 19;

/// Why there is no endpoint.
#[derive(Debug, Error)]
pub enum EndpointError {
    /// There can be no socket for this place.
    #[error("metrics.listen = \"{listen}\": {cause}")]
    Listen {
        /// Where.
        listen: String,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Threads or descriptors ran out.
    #[error("the metrics endpoint cannot start: {0}")]
    Start(#[from] io::Error),
}

/// Gets where the endpoint listens now, or why it does not yet; once for each change, on the
/// endpoint's thread but for the first time.
pub type OnListening = Box<dyn Fn(Result<&Listen, &str>) + Send>;

/// An endpoint; it ends when this is dropped.
#[derive(Debug)]
pub struct Endpoint {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// An address to listen at as soon as it is free, and the receiver of the result.
struct Entrance {
    place: ListenPlace,
    listen: Listen,
    listening: OnListening,
    /// The last value of `OnListening`.
    last: Option<String>,
}

/// A door with a kernel's queue before it.
enum Door {
    Tcp(tokio::net::TcpListener),
    /// With its name, which goes with it.
    Unix {
        socket: tokio::net::UnixListener,
        _name: SocketName,
    },
}

impl Endpoint {
    /// Listens from now on, or tries again until it can; a Unix socket gets this mode, and no
    /// browser gets there. `None` where nothing is to be listened at.
    ///
    /// # Errors
    /// `EndpointError` where trying again would not help.
    pub fn start(
        listen: &Listen,
        mode: u32,
        hosts: Hosts,
        life: SidecarLife,
        listening: OnListening,
    ) -> Result<Option<Self>, EndpointError> {
        let place = ListenPlace::new(listen, mode).map_err(|cause| cannot(listen, cause))?;
        let Some(place) = place else { return Ok(None) };
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("kvrail-metrics".into());
        let hosts = (!matches!(listen, Listen::Unix(_))).then_some(hosts);
        let history = Mutex::new(History::new());
        let site = Site { snapshots: Snapshots::new(life), history, hosts };
        let mut entrance = Entrance { place, listen: listen.clone(), listening, last: None };
        let entered = runtime.enter();
        let first = entrance.take();
        drop(entered);
        let thread = thread.spawn(move || serve(&runtime, (entrance, first), site, stopped))?;
        Ok(Some(Self { stop: Some(stop), thread: Some(thread) }))
    }
}

fn cannot(listen: &Listen, cause: io::Error) -> EndpointError {
    EndpointError::Listen { listen: listen.to_string(), cause }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join(); // a panic there was reported by the thread itself
        }
    }
}

impl Entrance {
    /// Listens if that can be now.
    fn take(&mut self) -> Option<Door> {
        match self.place.take().and_then(|(socket, at)| Ok((Door::new(socket)?, at))) {
            Ok((door, at)) => {
                (self.listening)(Ok(&at));
                Some(door)
            }
            Err(cause) => {
                let why = cannot(&self.listen, cause).to_string();
                if self.last.as_ref() != Some(&why) {
                    (self.listening)(Err(&why));
                    self.last = Some(why);
                }
                None
            }
        }
    }

    /// Tries again until it listens.
    async fn wait(mut self) -> Door {
        loop {
            tokio::time::sleep(AGAIN).await;
            if let Some(door) = self.take() {
                return door;
            }
        }
    }
}

/// The whole life of the thread. Connections that are open at its end are cut off.
fn serve(
    runtime: &Runtime,
    (entrance, first): (Entrance, Option<Door>),
    site: Site,
    stopped: oneshot::Receiver<()>,
) {
    // Of this thread alone; where that is not allowed it is as important as others.
    let _lowered = setpriority_process(None, NICENESS);
    let site = Arc::new(site);
    let remembered = Arc::clone(&site);
    runtime.spawn(async move { remembered.remember().await });
    runtime.spawn(async move {
        let door = match first {
            Some(door) => door,
            None => entrance.wait().await,
        };
        door.listen(site).await;
    });
    let _dropped = runtime.block_on(stopped); // it is never sent anything
}

impl Door {
    fn new(socket: Socket) -> io::Result<Self> {
        Ok(match socket {
            Socket::Tcp(socket) => Self::Tcp(tokio::net::TcpListener::from_std(socket)?),
            Socket::Unix(socket, name) => {
                let socket = tokio::net::UnixListener::from_std(socket)?;
                Self::Unix { socket, _name: name }
            }
        })
    }

    /// Takes connections, without end.
    async fn listen(self, site: Arc<Site>) {
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let Ok(connection) = self.admit(&site).await else {
                tokio::time::sleep(EXHAUSTED).await;
                continue;
            };
            open.retain(|task| !task.is_finished());
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
            Self::Unix { socket, .. } => begin(socket.accept().await?.0, site),
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
        // A client that breaks off, or takes too long, gets no answer.
        let _over = tokio::time::timeout(PATIENCE, served).await;
    };
    tokio::spawn(connection).abort_handle()
}
