//! Queues: submit, poll, wait.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary` and `sized` only, on the header's terms.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use kvrail_client::{Armed, Completed, Ticket};

use crate::block::BlockRequest;
use crate::boundary::{call, shared, store, take};
use crate::client::{Client, Memories, Session, session};
use crate::code::{Failure, KVRAIL_E_BUSY, KVRAIL_E_TIMEOUT};
use crate::namespace::{Namespace, opened};
use crate::request::{Completion, Request};
use crate::sized::{Array, SizedStruct, read};

/// One thread's way to the sidecar.
#[derive(Debug)]
pub struct Queue {
    session: Arc<Session>,
    held: Mutex<Held>,
}

/// What the thread that uses the queue holds.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) queue: kvrail_client::Queue,
    /// A copy of the session's, as of `changes`.
    memories: Memories,
    changes: u32,
    /// Ends that were fetched; those before `next` were handed out.
    done: Vec<Completed>,
    next: usize,
}

impl Queue {
    /// Waits until the sidecar gave up its side, too.
    fn close(self, timeout: Duration) -> Result<(), Failure> {
        self.session.birth.check()?;
        let held = self.held.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(held.queue.close(timeout)?)
    }
}

impl Held {
    /// Stages this number of requests, until one is refused, and publishes them.
    fn submit(
        &mut self,
        session: &Session,
        count: usize,
        mut stage: impl FnMut(&mut Self, usize) -> Result<Ticket, Failure>,
        each: &mut dyn FnMut(usize, u64),
    ) -> Result<(), Failure> {
        let changes = session.changes();
        if self.changes != changes {
            self.memories = session.memories();
            self.changes = changes;
        }
        let mut outcome = Ok(());
        for at in 0..count {
            match stage(self, at) {
                Ok(ticket) => each(at, ticket.0),
                Err(failure) => {
                    outcome = Err(failure);
                    break;
                }
            }
        }
        self.queue.publish();
        outcome
    }

    /// Ends that were fetched and not handed out yet.
    fn waiting(&self) -> usize {
        self.done.len() - self.next
    }

    /// Hands out as many ends as there are, up to the array's length.
    fn hand_out(&mut self, completions: Array<Completion>) -> usize {
        let count = self.waiting().min(completions.count());
        for (at, done) in self.done[self.next..][..count].iter().enumerate() {
            completions.put(at, &Completion::from(done));
        }
        self.next += count;
        if self.next == self.done.len() {
            self.done.clear();
            self.next = 0;
        }
        count
    }
}

/// The queue for this thread, for the length of the call.
///
/// # Safety
/// As for `boundary::shared`.
pub(crate) unsafe fn hold<'a>(
    queue: *const Queue,
) -> Result<(&'a Session, MutexGuard<'a, Held>), Failure> {
    // SAFETY: the caller's promise.
    let Queue { session, held } = unsafe { shared(queue, "queue") }?;
    session.birth.check()?;
    let held = held.try_lock().or_else(|taken| match taken {
        TryLockError::Poisoned(held) => Ok(held.into_inner()),
        TryLockError::WouldBlock => {
            let text = "another thread uses this queue now; open one for each thread";
            Err(Failure::new(KVRAIL_E_BUSY, text))
        }
    })?;
    Ok((session, held))
}

/// What queue to open.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QueueOptions {
    /// sizeof this structure.
    pub size: u32,
    /// Pieces of requests that can be in flight, rounded up to a power of two; 0 is 128.
    pub depth: u32,
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for QueueOptions {
    const NAME: &'static str = "kvrail_queue_options";
    const LEAST: usize = 8;
}

/// Opens a queue. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_queue_open(
    client: *const Client,
    options: *const QueueOptions,
    queue: *mut *mut Queue,
) -> i32 {
    const DEPTH: u32 = 128;
    call(|| {
        // SAFETY: the caller's variable; null on failure.
        unsafe { store(queue, std::ptr::null_mut(), "queue") }?;
        // SAFETY: the caller's handle.
        let session = unsafe { session(client) }?;
        // SAFETY: the caller's structure, or null.
        let wanted = if options.is_null() { 0 } else { unsafe { read(options) }?.depth };
        let depth = if wanted == 0 { DEPTH } else { wanted };
        let opened = session.client.open_queue(depth as usize)?;
        let (memories, done) = (Vec::new(), Vec::new());
        let held = Held { queue: opened, memories, changes: 0, done, next: 0 };
        let made = Queue { session: Arc::clone(session), held: Mutex::new(held) };
        // SAFETY: as above.
        unsafe { store(queue, Box::into_raw(Box::new(made)), "queue") }
    })
}

/// Waits until nothing is in flight, closes the queue, and sets the variable to NULL, whatever it
/// returns. KVRAIL_E_TIMEOUT: requests were still in flight at the end of the time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_queue_close(queue: *mut *mut Queue, timeout_ns: u64) -> i32 {
    call(|| {
        // SAFETY: the caller's variable with a handle that is not used any more.
        let queue = unsafe { take(queue, "queue") }?;
        queue.close(Duration::from_nanos(timeout_ns))
    })
}

/// Submits requests, all of them with one store for each device thread. Ends at the first that is
/// refused and returns why; those before it are in flight. `submitted` becomes their number, and
/// their tickets are written to the front of `tickets`; either may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_submit(
    queue: *mut Queue,
    requests: *const Request,
    count: usize,
    tickets: *mut u64,
    submitted: *mut usize,
) -> i32 {
    // SAFETY: the caller's variables.
    let out = unsafe { Submitted::new(tickets, submitted) };
    out.call(|each| {
        // SAFETY: the caller's handle.
        let (session, mut held) = unsafe { hold(queue) }?;
        // SAFETY: the caller's array, which is only read.
        let requests = unsafe { Array::new(requests.cast_mut(), count) }?;
        let stage = |held: &mut Held, at| {
            let request = requests.get(at)?.build(session, &held.memories)?;
            held.queue.stage(request).map_err(|refused| refused.reason.into())
        };
        held.submit(session, count, stage, each)
    })
}

/// As kvrail_submit, for blocks of one namespace. The checks of blocks that are put are computed
/// here: a pass over their bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_submit_blocks(
    queue: *mut Queue,
    space: *const Namespace,
    requests: *const BlockRequest,
    count: usize,
    tickets: *mut u64,
    submitted: *mut usize,
) -> i32 {
    // SAFETY: the caller's variables.
    let out = unsafe { Submitted::new(tickets, submitted) };
    out.call(|each| {
        // SAFETY: the caller's handle.
        let (session, mut held) = unsafe { hold(queue) }?;
        // SAFETY: the caller's handle.
        let space = unsafe { opened(space) }?;
        // SAFETY: the caller's array, which is only read.
        let requests = unsafe { Array::new(requests.cast_mut(), count) }?;
        let stage = |held: &mut Held, at| {
            let request = requests.get(at)?;
            // SAFETY: the caller's metadata.
            let request = unsafe { request.build(space, &held.memories) }?;
            held.queue.stage(request).map_err(|refused| refused.reason.into())
        };
        held.submit(session, count, stage, each)
    })
}

/// The caller's variables for the submitted requests; both may be null.
#[derive(Clone, Copy, Debug)]
struct Submitted {
    tickets: *mut u64,
    submitted: *mut usize,
}

impl Submitted {
    /// # Safety
    /// Not null means a place for each request, and a variable.
    unsafe fn new(tickets: *mut u64, submitted: *mut usize) -> Self {
        Self { tickets, submitted }
    }

    /// Runs a call that writes each ticket to the caller.
    fn call(self, body: impl FnOnce(&mut dyn FnMut(usize, u64)) -> Result<(), Failure>) -> i32 {
        let mut done = 0;
        let code = call(|| {
            body(&mut |at, ticket| {
                done = at + 1;
                if !self.tickets.is_null() {
                    // SAFETY: `new`'s caller has a place for each request.
                    unsafe { self.tickets.wrapping_add(at).write_unaligned(ticket) };
                }
            })
        });
        if !self.submitted.is_null() {
            // SAFETY: `new`'s caller has a variable.
            unsafe { self.submitted.write_unaligned(done) };
        }
        code
    }
}

/// The queue and the array of a call that fetches completions; `count` becomes 0.
///
/// # Safety
/// As for `hold`, `Array::new` and `store`.
unsafe fn fetch<'a>(
    queue: *const Queue,
    completions: *mut Completion,
    capacity: usize,
    count: *mut usize,
) -> Result<(MutexGuard<'a, Held>, Array<Completion>), Failure> {
    // SAFETY: the caller's promise, here and below.
    unsafe { store(count, 0, "count") }?;
    // SAFETY: as above.
    let (_, held) = unsafe { hold(queue) }?;
    // SAFETY: as above.
    Ok((held, unsafe { Array::new(completions, capacity) }?))
}

/// Fetches completions, without waiting: up to `capacity`; `count` becomes their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_poll(
    queue: *mut Queue,
    completions: *mut Completion,
    capacity: usize,
    count: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle, array and variable.
        let (mut held, completions) = unsafe { fetch(queue, completions, capacity, count) }?;
        let Held { queue, done, next, .. } = &mut *held;
        // No more blocks are verified than there are places for.
        while queue.poll_some(done) > 0 && done.len() - *next < completions.count() {}
        // SAFETY: as above.
        unsafe { store(count, held.hand_out(completions), "count") }
    })
}

/// Waits until `least` requests have ended (at most `capacity`), and fetches up to `capacity`
/// ends. KVRAIL_E_TIMEOUT: the time is over, `count` are there. KVRAIL_OK with fewer than `least`:
/// nothing is in flight that could end. Signals do not end a wait; KVRAIL_FOREVER waits as long
/// as the sidecar lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_wait(
    queue: *mut Queue,
    completions: *mut Completion,
    capacity: usize,
    least: usize,
    timeout_ns: u64,
    count: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle, array and variable.
        let (mut held, completions) = unsafe { fetch(queue, completions, capacity, count) }?;
        let least = least.min(capacity);
        let wanted = least.saturating_sub(held.waiting());
        if wanted > 0 {
            let Held { queue, done, .. } = &mut *held;
            queue.wait_for(wanted, done, Duration::from_nanos(timeout_ns))?;
        }
        let handed = held.hand_out(completions);
        // SAFETY: as above.
        unsafe { store(count, handed, "count") }?;
        if handed < least && held.queue.outstanding() > 0 {
            let text = format!("{handed} of {least} requests ended within {timeout_ns} ns");
            return Err(Failure::new(KVRAIL_E_TIMEOUT, text));
        }
        Ok(())
    })
}

/// A time limit that never comes.
pub const KVRAIL_FOREVER: u64 = u64::MAX;

/// A descriptor for event loops: it becomes readable when something has ended, after
/// kvrail_queue_arm. Only to be waited on, never to be read; it belongs to the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_queue_fd(queue: *mut Queue, fd: *mut c_int) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let (_, held) = unsafe { hold(queue) }?;
        // SAFETY: the caller's variable.
        unsafe { store(fd, held.queue.wait_fd().as_raw_fd(), "fd") }
    })
}

/// Prepares to wait on the descriptor. `ready` becomes 1 when something has ended already: then
/// poll, do not wait. Call kvrail_poll after each wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_queue_arm(queue: *mut Queue, ready: *mut c_int) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let (_, mut held) = unsafe { hold(queue) }?;
        let armed = held.waiting() == 0 && held.queue.arm() == Armed::Armed;
        // SAFETY: the caller's variable.
        unsafe { store(ready, c_int::from(!armed), "ready") }
    })
}

/// Pieces of requests that are in flight.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_queue_outstanding(queue: *mut Queue, count: *mut usize) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let (_, held) = unsafe { hold(queue) }?;
        // SAFETY: the caller's variable.
        unsafe { store(count, held.queue.outstanding(), "count") }
    })
}
