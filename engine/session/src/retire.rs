//! Operators' requests to take members out of a store. The owner of the claims does it; the answer
//! comes back through the server's handle.

use std::fmt;

use kvrail_protocol::{ControlReply, MembersChanged};
use kvrail_ring::Status;

use crate::reply::Reply;

/// An operator's request, which waits for its answer (`ServerHandle::retired`).
#[derive(Debug)]
pub struct RetireAsk {
    session: u64,
    seq: u64,
    pid: u32,
    uid: u32,
    /// The store's name.
    pub store: String,
    /// Numbers of members.
    pub members: Vec<u16>,
}

impl RetireAsk {
    pub(crate) fn new(
        (session, seq): (u64, u64),
        (pid, uid): (u32, u32),
        (store, members): (String, Vec<u16>),
    ) -> Self {
        Self { session, seq, pid, uid, store, members }
    }

    pub(crate) fn reply(&self, verdict: Result<MembersChanged, String>) -> Reply {
        match verdict {
            Ok(changed) => {
                Reply::new(self.session, self.seq, ControlReply::MembersChanged(changed))
            }
            Err(why) => Reply::failure(self.session, self.seq, (Status::Invalid, why)),
        }
    }
}

/// The operator, for a log.
impl fmt::Display for RetireAsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}, pid {}", self.uid, self.pid)
    }
}

/// Passes such requests on.
pub(crate) struct RetireHook(pub(crate) Box<dyn Fn(RetireAsk) + Send>);

impl fmt::Debug for RetireHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RetireHook")
    }
}
