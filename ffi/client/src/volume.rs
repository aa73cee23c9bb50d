//! Volumes, as requests name them.

use std::sync::Arc;

use kvrail_protocol::{VolumeContent, VolumeInfo};
use kvrail_ring::{Geometry, PollerIndex, VolumeId};
use uuid::Uuid;

use crate::tag::ClientTag;

/// A volume of the sidecar. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Which client's it is: an id means nothing to another sidecar.
    pub(crate) tag: ClientTag,
    pub(crate) id: VolumeId,
    pub(crate) geometry: Geometry,
    pub(crate) info: Arc<VolumeInfo>,
}

impl Volume {
    /// What requests on the wire name it.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.id
    }

    /// Its name in the sidecar's configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// From its label; another one means other data.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.info.uuid
    }

    /// Its shape: capacity, stripe, units of offsets and buffers.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Bytes it holds.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.geometry.capacity()
    }

    /// Whether its blocks have keys.
    #[must_use]
    pub fn is_store(&self) -> bool {
        matches!(self.info.content, VolumeContent::Store(_))
    }

    /// The poller that serves the member on which this byte lies.
    #[must_use]
    pub fn poller_at(&self, offset: u64) -> Option<PollerIndex> {
        let block = u64::from(self.geometry.logical_block);
        let extent = self.geometry.locate(offset / block * block, block).ok()?;
        self.info.poller_of(extent.member)
    }
}
