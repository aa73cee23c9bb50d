//! Clients' requests to read the configuration again. Another thread reads it; the answer comes
//! back through the server's handle.

use std::fmt;

use kvrail_protocol::{ConfigEntry, ControlReply, Reloaded};
use kvrail_ring::Status;

use crate::reply::Reply;

/// A client's request, which waits for its answer (`ServerHandle::reloaded`).
#[derive(Debug)]
pub struct ReloadAsk {
    session: u64,
    seq: u64,
    pid: u32,
    uid: u32,
}

impl ReloadAsk {
    pub(crate) fn new((session, seq): (u64, u64), (pid, uid): (u32, u32)) -> Self {
        Self { session, seq, pid, uid }
    }

    pub(crate) fn reply(&self, verdict: Result<Reloaded, String>) -> Reply {
        match verdict {
            Ok(reloaded) => Reply::new(self.session, self.seq, ControlReply::Reloaded(reloaded)),
            Err(why) => Reply::failure(self.session, self.seq, (Status::Invalid, why)),
        }
    }
}

/// The client, for a log.
impl fmt::Display for ReloadAsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}, pid {}", self.uid, self.pid)
    }
}

/// The owner of the configuration.
pub(crate) struct ConfigReader {
    /// Passes on a request to read it again.
    pub(crate) read: Box<dyn Fn(ReloadAsk) + Send>,
    /// The values in force.
    pub(crate) show: Box<dyn Fn() -> Vec<ConfigEntry> + Send>,
}

impl fmt::Debug for ConfigReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reader")
    }
}
