//! Holds of this client, in memory that its sidecar gives and looks at.

use std::sync::{Arc, OnceLock};

use kvrail_memory::{Pinned, Region, Sealing};
use kvrail_protocol::{ControlReply, ControlRequest};
use kvrail_ring::Holds;

use crate::control::Control;
use crate::error::ClientError;

/// The holds of a session, from its first view on.
#[derive(Debug, Default)]
pub(crate) struct SharedHolds(OnceLock<Option<Arc<Holds>>>);

impl SharedHolds {
    /// None where the sidecar gives none: blocks are copied then. The next view asks again after
    /// a failure that may pass.
    pub(crate) fn of(&self, control: &Control, volume: u16) -> Option<Arc<Holds>> {
        if let Some(known) = self.0.get() {
            return known.clone();
        }
        let holds = match ask(control, volume) {
            Ok(holds) => holds,
            Err(ClientError::Denied { .. } | ClientError::Protocol { .. }) => None,
            Err(_) => return None,
        };
        self.0.get_or_init(|| holds).clone()
    }
}

fn ask(control: &Control, volume: u16) -> Result<Option<Arc<Holds>>, ClientError> {
    let ask = ControlRequest::HoldBlocks { volume };
    let (answer, [file]) = control.call("asking for holds", ask, &[])?.exactly()?;
    let ControlReply::Holds { bytes } = answer else {
        return Err(ClientError::protocol(format!("answer about holds: {answer:?}")));
    };
    let memory: Arc<dyn Pinned> = Arc::new(Region::import_with(file, bytes, Sealing::Size)?);
    match control.call("mapping holds", ControlRequest::HoldsMapped, &[])?.message {
        ControlReply::HoldsServed => Ok(Holds::new(&memory).map(Arc::new)),
        other => Err(ClientError::protocol(format!("answer to mapped holds: {other:?}"))),
    }
}
