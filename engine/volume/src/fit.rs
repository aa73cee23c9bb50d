//! Whether a member still matches its label.

use crate::alignment::MemberKind;
use crate::claim::Claim;
use crate::error::{Reason, VolumeError};
use crate::label::{GUARD_BYTES, Label};

/// Whether the device is still what it was labelled as. A file gets the block behind its data that
/// it lacks where it was made without one.
pub(crate) fn check_fit(claim: &mut Claim, label: &Label) -> Result<(), VolumeError> {
    let path = claim.path().to_owned();
    let refuse = |reason| Err(VolumeError::at(&path, reason));
    let (have_bytes, data_end) = (claim.bytes(), label.data_end());
    match claim.kind() {
        MemberKind::Block if have_bytes < data_end => {
            return refuse(Reason::Shrunk { have_bytes, need_bytes: data_end });
        }
        MemberKind::File if have_bytes < data_end + GUARD_BYTES => {
            let need_bytes = label.device_bytes.max(data_end + GUARD_BYTES);
            if have_bytes != label.device_bytes {
                return refuse(Reason::Truncated { have_bytes, need_bytes });
            }
            claim.grow(need_bytes)?;
        }
        MemberKind::Block | MemberKind::File => {}
    }
    claim.take_blocks(label.logical_block)?;
    let (volume_bytes, device_bytes) = (label.logical_block, claim.alignment().logical_block);
    if !volume_bytes.is_multiple_of(device_bytes) {
        return refuse(Reason::Block { volume_bytes, device_bytes });
    }
    Ok(())
}
