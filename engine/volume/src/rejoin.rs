//! A member that comes back: claimed and checked again before it is used.

use std::path::Path;

use uuid::Uuid;

use crate::alignment::MemberKind;
use crate::claim::{Claim, DirectIo};
use crate::error::{Reason, VolumeError};
use crate::fit::check_fit;
use crate::open::{Member, labelled};

impl Member {
    /// Claims what is at `path` now and checks that it is this member of that volume. A device
    /// that never left, and only lost bytes, is looked at through the claim there is; a file that
    /// lost some never has them again, whatever its length is now.
    ///
    /// # Errors
    /// `VolumeError` when it is in use, its label is damaged or another's, or it shrank.
    pub fn claim_again(
        &self,
        path: &Path,
        volume: Uuid,
        direct: DirectIo,
    ) -> Result<Self, VolumeError> {
        let mut claim = match self.claim.still_at(path)? {
            Some(same) if same.kind() == MemberKind::File => {
                return Err(VolumeError::at(path, Reason::Lost));
            }
            Some(same) => same,
            None => Claim::open(path, direct)?,
        };
        let label = labelled(&claim)?;
        let found = label.member_uuid();
        if label.volume_uuid != volume || found != self.uuid {
            let reason = Reason::OtherMember { expected: self.uuid, found };
            return Err(VolumeError::at(path, reason));
        }
        check_fit(&mut claim, &label)?;
        Ok(Self { uuid: found, claim })
    }
}
