//! Clients: attach, query, close.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary` and `sized` only, on the header's terms.

use std::ffi::{c_char, c_int};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use kvrail_client::{Arena, AttachOptions as Options, GpuRegion};

use crate::boundary::{call, placed, shared, store, take, text};
use crate::code::{Failure, KVRAIL_E_NO_ARENA};
use crate::fork::ForkGeneration;
use crate::sized::{SizedStruct, read, write};

/// A session with a sidecar.
#[derive(Debug)]
pub struct Client {
    pub(crate) session: Arc<Session>,
}

/// Memory that requests move.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// Memory of this host.
    Arena(Arc<Arena>),
    /// Memory of a GPU.
    Gpu(Arc<GpuRegion>),
}

impl Memory {
    pub(crate) fn arena(&self) -> Option<Arc<Arena>> {
        match self {
            Self::Arena(arena) => Some(Arc::clone(arena)),
            Self::Gpu(_) => None,
        }
    }

    pub(crate) fn gpu(&self) -> Option<Arc<GpuRegion>> {
        match self {
            Self::Arena(_) => None,
            Self::Gpu(region) => Some(Arc::clone(region)),
        }
    }
}

/// Memories of a client by number, ascending.
pub(crate) type Memories = Vec<(u32, Memory)>;

/// What a client and its queues share.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: kvrail_client::Client,
    pub(crate) birth: ForkGeneration,
    /// By number, ascending.
    memories: RwLock<Memories>,
    /// Changes of `memories`.
    changes: AtomicU32,
    looking: Mutex<()>,
}

impl Session {
    /// How often memories came or went. Queues keep copies of the list and compare.
    #[inline]
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire) // pairs with Release in `change`
    }

    pub(crate) fn memories(&self) -> Memories {
        self.memories.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Held by the thread that looks up the memory behind an address and may import it.
    pub(crate) fn look_for_memory(&self) -> MutexGuard<'_, ()> {
        self.looking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Memories) -> T) -> T {
        let mut memories = self.memories.write().unwrap_or_else(PoisonError::into_inner);
        let outcome = change(&mut memories);
        self.changes.fetch_add(1, Ordering::Release); // pairs with Acquire in `changes`
        outcome
    }

    pub(crate) fn add(&self, number: u32, memory: Memory) {
        self.change(|memories| {
            let place = memories.partition_point(|(other, _)| *other < number);
            memories.insert(place, (number, memory));
        });
    }

    /// Removes a memory of the kind that `pick` picks.
    pub(crate) fn remove<T>(
        &self,
        number: u32,
        pick: impl FnOnce(&Memory) -> Option<T>,
    ) -> Result<T, Failure> {
        self.change(|memories| {
            let place = memories.binary_search_by_key(&number, |(other, _)| *other);
            let place = place.map_err(|_| no_memory(number))?;
            let picked = pick(&memories[place].1).ok_or_else(|| other_kind(number))?;
            memories.remove(place);
            Ok(picked)
        })
    }
}

pub(crate) fn no_memory(number: u32) -> Failure {
    let text = format!("memory {number} is not attached; it may be detached already");
    Failure::new(KVRAIL_E_NO_ARENA, text)
}

fn other_kind(number: u32) -> Failure {
    let text = format!(
        "memory {number} is of the other kind; kvrail_arena_detach is for arenas, \
         kvrail_gpu_region_detach for GPU regions"
    );
    Failure::new(KVRAIL_E_NO_ARENA, text)
}

/// How to attach. All members but `size` may be 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AttachOptions {
    /// sizeof this structure.
    pub size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Longest wait for the sidecar's answers in nanoseconds; 0 is 30 seconds.
    pub timeout_ns: u64,
    /// Name of this client in `kvrail status`; NULL is the program's name.
    pub name: *const c_char,
    /// Longest wait in nanoseconds for a sidecar where there is none or one that is stopping, as
    /// while it is upgraded; 0: that is KVRAIL_E_NO_SIDECAR or KVRAIL_E_GONE at once.
    pub wait_ns: u64,
}

// SAFETY: integers and a pointer without padding, the size first; zeroes are a value of it.
unsafe impl SizedStruct for AttachOptions {
    const NAME: &'static str = "kvrail_attach_options";
    const LEAST: usize = 8;
}

/// Properties of a session.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ClientInfo {
    /// sizeof this structure.
    pub size: u32,
    /// Pollers of the sidecar.
    pub pollers: u32,
    /// Number of the sidecar's run.
    pub epoch: u64,
    /// Number of the session within it.
    pub session: u64,
    /// Volumes of the sidecar.
    pub volumes: u32,
    /// Queues this client may have at once.
    pub queues_max: u32,
    /// Most requests one queue can have in flight.
    pub queue_depth_max: u32,
    /// Arenas this client may have at once.
    pub arenas_max: u32,
    /// Bytes all its arenas may have together.
    pub arena_bytes_max: u64,
    /// Bytes that stay out of reach because hardware may still write them.
    pub quarantined_bytes: u64,
    /// GPUs that the sidecar serves.
    pub gpus: u32,
    /// GPU regions this client may have at once.
    pub gpu_regions_max: u32,
    /// Bytes all its GPU regions may have together.
    pub gpu_bytes_max: u64,
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for ClientInfo {
    const NAME: &'static str = "kvrail_client_info";
    const LEAST: usize = 8;
}

/// The handle's client, in the process that attached.
///
/// # Safety
/// As for `boundary::shared`.
pub(crate) unsafe fn session<'a>(client: *const Client) -> Result<&'a Arc<Session>, Failure> {
    // SAFETY: the caller's promise.
    let Client { session } = unsafe { shared(client, "client") }?;
    session.birth.check()?;
    Ok(session)
}

unsafe fn options(from: *const AttachOptions) -> Result<Options, Failure> {
    let mut options = Options::default();
    if from.is_null() {
        return Ok(options);
    }
    // SAFETY: the caller's structure, on the header's terms.
    let AttachOptions { reserved, timeout_ns, name, wait_ns, .. } = unsafe { read(from) }?;
    if reserved != 0 {
        return Err(Failure::argument("kvrail_attach_options.reserved must be 0"));
    }
    options.wait = Duration::from_nanos(wait_ns);
    if timeout_ns > 0 {
        options.timeout = Duration::from_nanos(timeout_ns);
    }
    if !name.is_null() {
        // SAFETY: the caller's text.
        options.name = unsafe { text(name, "kvrail_attach_options.name") }?.to_owned();
    }
    Ok(options)
}

/// Attaches to the sidecar behind the socket at this path. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_attach(
    socket: *const c_char,
    options: *const AttachOptions,
    client: *mut *mut Client,
) -> i32 {
    call(|| {
        // SAFETY: the caller's variable; null on failure.
        unsafe { store(client, std::ptr::null_mut(), "client") }?;
        // SAFETY: the caller's structure, or null.
        let options = unsafe { self::options(options) }?;
        // SAFETY: the caller's text.
        let socket = unsafe { text(socket, "socket") }?;
        let birth = ForkGeneration::now()?;
        let attached = kvrail_client::Client::attach_with(socket, &options)?;
        let (memories, changes) = (RwLock::default(), AtomicU32::new(1));
        let looking = Mutex::default();
        let session = Session { client: attached, birth, memories, changes, looking };
        let handle = Box::into_raw(Box::new(Client { session: Arc::new(session) }));
        // SAFETY: as above.
        unsafe { store(client, handle, "client") }
    })
}

/// Closes the client and sets the variable to NULL. The session ends, and the memory of its
/// arenas is unmapped, when its queues, stores and namespaces are closed too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_close(client: *mut *mut Client) -> i32 {
    call(|| {
        // SAFETY: the caller's variable with a handle that is not used any more.
        drop(unsafe { take(client, "client") }?);
        Ok(())
    })
}

/// Properties of the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_client_describe(
    client: *const Client,
    info: *mut ClientInfo,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let client = &unsafe { session(client) }?.client;
        let limits = client.limits();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let value = ClientInfo {
            size: 0,
            pollers: count(client.pollers()),
            epoch: client.epoch().0,
            session: client.session().0,
            volumes: count(client.volumes().len()),
            queues_max: limits.queues,
            queue_depth_max: limits.queue_depth,
            arenas_max: limits.arenas,
            arena_bytes_max: limits.arena_bytes,
            quarantined_bytes: client.quarantined_bytes(),
            gpus: count(client.gpus().len()),
            gpu_regions_max: limits.gpu_regions,
            gpu_bytes_max: limits.gpu_bytes,
        };
        // SAFETY: the caller's structure.
        unsafe { write(info, &value) }
    })
}

/// A descriptor that reports a hang-up (POLLRDHUP) when the session ends. Only to be waited on; it
/// belongs to the client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_client_hangup_fd(client: *const Client, fd: *mut c_int) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let session = unsafe { session(client) }?;
        // SAFETY: the caller's variable.
        unsafe { store(fd, session.client.hangup_fd().as_raw_fd(), "fd") }
    })
}

/// A descriptor that hangs up (POLLHUP) once the sidecar's process has ended and no device reads or
/// writes memory of this host for it any more: then memory of requests that ended as
/// KVRAIL_RESTARTED is the program's again. That is some milliseconds behind a kill, where drives
/// answer. It is the program's to close, and only to be waited on, never to be read. -1 where
/// nothing shows it: from a sidecar of an earlier release, and on some kernels; wait for 5 s then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_client_watch_transfers(
    client: *const Client,
    fd: *mut c_int,
) -> i32 {
    call(|| {
        placed(fd, "fd")?; // or there would be a descriptor, and no place for it
        // SAFETY: the caller's handle.
        let session = unsafe { session(client) }?;
        let pipe = session.client.watch_transfers()?;
        // SAFETY: the caller's variable.
        unsafe { store(fd, pipe.map_or(-1, IntoRawFd::into_raw_fd), "fd") }
    })
}
