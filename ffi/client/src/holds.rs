//! Holds of this client, in memory that its sidecar gives and looks at.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kvrail_memory::{Pinned, Region, Sealing};
use kvrail_protocol::{ControlReply, ControlRequest};
use kvrail_ring::Holds;

use crate::control::Control;
use crate::error::ClientError;

/// How long the first view waits for its memory: a copy is there at once.
const WAIT: Duration = Duration::from_millis(100);
/// From a wait in vain until another one.
const PAUSE: Duration = Duration::from_secs(1);

/// The holds of a session, from its first view on.
#[derive(Debug, Default)]
pub(crate) struct SharedHolds {
    known: OnceLock<Option<Arc<Holds>>>,
    /// When a wait in vain ended.
    in_vain: Mutex<Option<Instant>>,
}

impl SharedHolds {
    /// None where the sidecar gives none, or does not answer: blocks are copied then. After a
    /// failure that may pass a later view asks again.
    pub(crate) fn of(&self, control: &Control, volume: u16) -> Option<Arc<Holds>> {
        if let Some(known) = self.known.get() {
            return known.clone();
        }
        let mut in_vain = self.in_vain.lock().unwrap_or_else(PoisonError::into_inner);
        if in_vain.is_some_and(|ended| ended.elapsed() < PAUSE) {
            return None;
        }
        let holds = match ask(control, volume) {
            Ok(holds) => holds,
            Err(ClientError::Denied { .. } | ClientError::Protocol { .. }) => None,
            Err(_) => {
                *in_vain = Some(Instant::now());
                return None;
            }
        };
        self.known.get_or_init(|| holds).clone()
    }
}

fn ask(control: &Control, volume: u16) -> Result<Option<Arc<Holds>>, ClientError> {
    let ask = ControlRequest::HoldBlocks { volume };
    let (answer, [file]) = control.call_within(WAIT, "asking for holds", ask)?.exactly()?;
    let ControlReply::Holds { bytes } = answer else {
        return Err(ClientError::protocol(format!("answer about holds: {answer:?}")));
    };
    let memory: Arc<dyn Pinned> = Arc::new(Region::import_with(file, bytes, Sealing::Size)?);
    match control.call("mapping holds", ControlRequest::HoldsMapped, &[])?.message {
        ControlReply::HoldsServed => Ok(Holds::new(&memory).map(Arc::new)),
        other => Err(ClientError::protocol(format!("answer to mapped holds: {other:?}"))),
    }
}
