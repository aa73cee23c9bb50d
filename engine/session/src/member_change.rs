//! Operators' requests to change the members of a store. The owner of the claims does it; the
//! answer comes back through the server's handle.

use std::fmt;

use kvrail_protocol::{ControlReply, MemberChange, MembersChanged};
use kvrail_ring::Status;

use crate::reply::Reply;

/// An operator's request, which waits for its answer (`ServerHandle::members_changed`).
#[derive(Debug)]
pub struct MemberAsk {
    session: u64,
    seq: u64,
    pid: u32,
    uid: u32,
    /// The store's name.
    pub store: String,
    /// The change.
    pub change: MemberChange,
}

impl MemberAsk {
    pub(crate) fn new(
        (session, seq): (u64, u64),
        (pid, uid): (u32, u32),
        (store, change): (String, MemberChange),
    ) -> Self {
        Self { session, seq, pid, uid, store, change }
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
impl fmt::Display for MemberAsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}, pid {}", self.uid, self.pid)
    }
}

/// Passes such requests on.
pub(crate) struct MemberHook(pub(crate) Box<dyn Fn(MemberAsk) + Send>);

impl fmt::Debug for MemberHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemberHook")
    }
}
