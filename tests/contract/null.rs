//! The null device: the whole contract, except that bytes are not kept.

use kvrail_device::{NullDevice, NullOptions};

use crate::rig::{Bytes, Subject};

fn open() -> Option<Subject<NullDevice>> {
    let device = NullDevice::new(NullOptions::default());
    Some(Subject { device, bytes: Bytes::Ignored, keep: Box::new(()) })
}

conformance!(open);
