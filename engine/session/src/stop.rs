//! Requests to stop, from whoever listens to signals.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kvrail_ring::{Bell, hush};
use rustix::fd::AsFd;
use rustix::io::Errno;

#[derive(Debug)]
struct Shared {
    bell: Bell,
    requests: AtomicU32,
}

/// Asks the server to stop: the first time it drains, the second time it stops now. Cheap to
/// clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct StopSender(Arc<Shared>);

/// The server's end.
#[derive(Debug)]
pub struct StopReceiver(Arc<Shared>);

/// Two ends of a way to stop a server.
///
/// # Errors
/// The kernel's, when descriptors run out.
pub fn stop_channel() -> Result<(StopSender, StopReceiver), Errno> {
    let shared = Arc::new(Shared { bell: Bell::eventfd()?, requests: AtomicU32::new(0) });
    Ok((StopSender(Arc::clone(&shared)), StopReceiver(shared)))
}

impl StopSender {
    /// Asks once more.
    pub fn request(&self) {
        // Release pairs with Acquire in `requests`: what the asker did before is seen.
        self.0.requests.fetch_add(1, Ordering::Release);
        self.0.bell.ring();
    }
}

impl StopReceiver {
    /// Readable after a request.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }

    /// How often a stop was asked for so far.
    pub(crate) fn requests(&self) -> u32 {
        hush(self.fd());
        self.0.requests.load(Ordering::Acquire) // pairs with Release in `request`
    }
}
