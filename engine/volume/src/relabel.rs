//! Another list of members in the labels of a volume that has some.

use rustix::fs::fsync;
use rustix::io::Errno;

use crate::bytes::{AlignedBytes, write_at};
use crate::claim::Claim;
use crate::content::Content;
use crate::error::VolumeError;
use crate::label::{COPIES_AT, COPY_BYTES, Label};

/// Writes a label over the one of the same member, a copy at a time, each durable before the next:
/// a label whose copies differ in the list of members only is the newer of the two.
pub(crate) fn relabel(claim: &Claim, label: &Label) -> Result<(), VolumeError> {
    let failed = |errno| claim.failed("writing its label", errno);
    let area = label.encode();
    for at in COPIES_AT {
        let bytes = AlignedBytes::copy_of(&area[at..at + COPY_BYTES]);
        write_at(claim, &bytes, at as u64).and_then(|()| fsync(claim)).map_err(failed)?;
    }
    match claim.content()? {
        Content::Ours(found) if found == *label => Ok(()),
        // The label differs when it is read back.
        _ => Err(failed(Errno::IO)),
    }
}
