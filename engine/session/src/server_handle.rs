//! A handle to a running server, for other threads: stop, take a new policy, report the status.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvrail_protocol::{MembersChanged, Reloaded, StatusReport};
use kvrail_ring::{Doorbell, drain_doorbell};
use rustix::fd::AsFd;
use rustix::io::Errno;

use crate::member_change::MemberAsk;
use crate::policy::Policy;
use crate::reload::ReloadAsk;
use crate::reply::Reply;

/// Status requests in the queue at most. Further ones are dropped: the server does not turn.
const ASKERS_MAX: usize = 64;

#[derive(Debug)]
struct ServerRequests {
    bell: Doorbell,
    stops: AtomicU32,
    /// The newest policy that the server has not taken yet.
    policy: Mutex<Option<Policy>>,
    /// Requests for a status report.
    askers: Mutex<Vec<StatusCallback>>,
    /// Answers to clients whose requests other threads have handled.
    replies: Mutex<Vec<Reply>>,
}

/// The receiver of a report.
struct StatusCallback(Box<dyn FnOnce(StatusReport) + Send>);

impl fmt::Debug for StatusCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusCallback")
    }
}

/// A panic elsewhere leaves a whole value, so poison means nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Controls a running server. Cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct ServerHandle(Arc<ServerRequests>);

/// The server's end.
#[derive(Debug)]
pub struct HandleReceiver(Arc<ServerRequests>);

/// A handle, and the end that the server runs with.
///
/// # Errors
/// The kernel's, when descriptors run out.
pub fn server_handle() -> Result<(ServerHandle, HandleReceiver), Errno> {
    let (stops, policy, askers) = (AtomicU32::new(0), Mutex::new(None), Mutex::default());
    let (bell, replies) = (Doorbell::eventfd()?, Mutex::default());
    let shared = Arc::new(ServerRequests { bell, stops, policy, askers, replies });
    Ok((ServerHandle(Arc::clone(&shared)), HandleReceiver(shared)))
}

impl ServerHandle {
    /// Requests a stop: the first call drains, the second stops at once.
    pub fn stop(&self) {
        // Release pairs with Acquire in `stops`: what the asker did before is seen.
        self.0.stops.fetch_add(1, Ordering::Release);
        self.0.bell.ring();
    }

    /// Gives the server a new policy. Clients keep their resources, even above the new limits.
    pub fn renew(&self, policy: Policy) {
        *lock(&self.0.policy) = Some(policy);
        self.0.bell.ring();
    }

    /// Answers a client that had the configuration read again. Policies that were renewed before
    /// are in force when the client has its answer.
    pub fn reloaded(&self, ask: &ReloadAsk, verdict: Result<Reloaded, String>) {
        self.reply(ask.reply(verdict));
    }

    /// Answers an operator that had the members of a store changed.
    pub fn members_changed(&self, ask: &MemberAsk, verdict: Result<MembersChanged, String>) {
        self.reply(ask.reply(verdict));
    }

    fn reply(&self, reply: Reply) {
        lock(&self.0.replies).push(reply);
        self.0.bell.ring();
    }

    /// Requests a status report. `callback` runs on the server's thread, so it must be quick; it is
    /// dropped uncalled when the server does not turn and the queue is full.
    pub fn ask(&self, callback: impl FnOnce(StatusReport) + Send + 'static) {
        let mut askers = lock(&self.0.askers);
        if askers.len() < ASKERS_MAX {
            askers.push(StatusCallback(Box::new(callback)));
        }
        drop(askers);
        self.0.bell.ring();
    }
}

impl HandleReceiver {
    /// Readable after a call of the handle.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }

    /// Number of stop requests.
    pub(crate) fn stops(&self) -> u32 {
        drain_doorbell(self.fd());
        self.0.stops.load(Ordering::Acquire) // pairs with Release in `stop`
    }

    /// The newest policy, once.
    pub(crate) fn policy(&self) -> Option<Policy> {
        lock(&self.0.policy).take()
    }

    /// Answers to clients, once.
    pub(crate) fn replies(&self) -> Vec<Reply> {
        std::mem::take(&mut *lock(&self.0.replies))
    }

    /// Answers all requests for a status report.
    pub(crate) fn answer(&self, report: impl FnOnce() -> StatusReport) {
        let askers = std::mem::take(&mut *lock(&self.0.askers));
        if askers.is_empty() {
            return;
        }
        let report = report();
        askers.into_iter().for_each(|StatusCallback(callback)| callback(report.clone()));
    }
}
