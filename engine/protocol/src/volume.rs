//! Volumes as clients see them.

use kvrail_ring::{Geometry, PollerIndex, VolumeId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::ChannelError;
use crate::store::{StoreInfo, VolumeContent};

/// A `kvrail_ring::Geometry` in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeometryInfo {
    /// Devices the volume is striped over.
    pub members: u16,
    /// Bytes of one stripe.
    pub stripe_bytes: u64,
    /// Usable bytes of each member.
    pub member_bytes: u64,
    /// Where they begin.
    pub data_offset: u64,
    /// Unit of offsets and lengths.
    pub logical_block: u32,
    /// Unit of buffer positions.
    pub memory_alignment: u32,
}

impl From<Geometry> for GeometryInfo {
    fn from(geometry: Geometry) -> Self {
        let Geometry {
            members,
            stripe_bytes,
            member_bytes,
            data_offset,
            logical_block,
            memory_alignment,
        } = geometry;
        Self { members, stripe_bytes, member_bytes, data_offset, logical_block, memory_alignment }
    }
}

impl TryFrom<GeometryInfo> for Geometry {
    type Error = ChannelError;

    fn try_from(info: GeometryInfo) -> Result<Self, ChannelError> {
        let GeometryInfo {
            members,
            stripe_bytes,
            member_bytes,
            data_offset,
            logical_block,
            memory_alignment,
        } = info;
        let units = logical_block.is_power_of_two() && memory_alignment.is_power_of_two();
        let block = u64::from(logical_block.max(1));
        let sizes = members > 0
            && stripe_bytes > 0
            && stripe_bytes.is_multiple_of(block)
            && member_bytes.is_multiple_of(stripe_bytes)
            && member_bytes.checked_mul(u64::from(members)).is_some();
        if !units || !sizes {
            return Err(ChannelError::Malformed(format!("impossible volume geometry {info:?}")));
        }
        Ok(Self {
            members,
            stripe_bytes,
            member_bytes,
            data_offset,
            logical_block,
            memory_alignment,
        })
    }
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Its place in the sidecar's list; what requests name.
    pub id: u16,
    /// Its name in the configuration.
    pub name: String,
    /// From its label.
    pub uuid: Uuid,
    /// Its shape.
    pub geometry: GeometryInfo,
    /// The poller of each member: which lane its requests go to.
    pub pollers: Vec<u16>,
    /// Path of each member, for status.
    pub members: Vec<String>,
    /// Its content.
    pub content: VolumeContent,
}

impl VolumeInfo {
    /// The volume as an id.
    #[must_use]
    pub const fn volume_id(&self) -> VolumeId {
        VolumeId(self.id)
    }

    /// The poller that owns a member.
    #[must_use]
    pub fn poller_of(&self, member: u16) -> Option<PollerIndex> {
        self.pollers.get(usize::from(member)).copied().map(PollerIndex)
    }

    /// Checks that the volume makes sense on a sidecar with this many pollers.
    ///
    /// # Errors
    /// `Malformed` names what does not.
    pub fn check(&self, pollers: usize) -> Result<Geometry, ChannelError> {
        let geometry = Geometry::try_from(self.geometry)?;
        let owned = self.pollers.len() == usize::from(geometry.members)
            && self.pollers.iter().all(|poller| usize::from(*poller) < pollers);
        let numbered = match self.content {
            VolumeContent::Store(StoreInfo { members: Some(bits), .. }) => bits.count_ones(),
            _ => geometry.members.into(),
        };
        let owned = owned && numbered == u32::from(geometry.members);
        if owned {
            return Ok(geometry);
        }
        Err(ChannelError::Malformed(format!(
            "volume {:?}: {} members, owned by pollers {:?} of {pollers}",
            self.name, geometry.members, self.pollers
        )))
    }
}
