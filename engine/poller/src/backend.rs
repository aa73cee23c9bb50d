//! Which of a poller's devices a range of a volume lies on.

use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::{DeviceIndex, Geometry, Status, VolumeId};

/// A volume as every poller knows it.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its shape.
    pub geometry: Geometry,
    /// The device of each member, in the order of the geometry.
    pub members: Vec<DeviceIndex>,
}

/// Where a piece of a volume lies, seen from one poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The poller's own number of the device.
    pub(crate) device: u8,
    /// First byte on it.
    pub(crate) device_offset: u64,
}

/// One volume with its members as local devices; members of other pollers are `None`.
#[derive(Debug)]
pub(crate) struct LocalRoute {
    geometry: Geometry,
    members: Vec<Option<u8>>,
    capacity: u64,
    /// One less than the unit of offsets and lengths, and than that of places in memory.
    block_mask: u64,
    memory_mask: u64,
    /// The device of the only member.
    only: Option<u8>,
}

/// All volumes, seen from one poller.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) volumes: Vec<LocalRoute>,
}

impl Placement {
    /// `devices` are the sidecar-wide numbers of this poller's devices, in local order.
    pub(crate) fn new(routes: &[Route], devices: &[DeviceIndex]) -> Self {
        let local = |member: &DeviceIndex| {
            let place = devices.iter().position(|device| device == member)?;
            Some(u8::try_from(place).expect("a poller has few devices"))
        };
        let route = |route: &Route| {
            let members: Vec<_> = route.members.iter().map(local).collect();
            let only = if let [only] = members[..] { only } else { None };
            let geometry = route.geometry;
            let mask = |unit: u32| u64::from(unit) - 1; // powers of two
            LocalRoute {
                geometry,
                members,
                capacity: geometry.capacity(),
                block_mask: mask(geometry.logical_block),
                memory_mask: mask(geometry.memory_alignment),
                only,
            }
        };
        Self { volumes: routes.iter().map(route).collect() }
    }

    /// A volume; INVALID for an unknown one.
    #[inline(always)]
    pub(crate) fn route(&self, volume: VolumeId) -> Result<&LocalRoute, Status> {
        self.volumes.get(usize::from(volume.0)).ok_or(Status::Invalid)
    }
}

impl LocalRoute {
    /// Unit of offsets and lengths, in bytes.
    pub(crate) fn logical_block(&self) -> u32 {
        self.geometry.logical_block
    }

    /// Where a range lies. INVALID for a bad range, or one that belongs to another poller's lane.
    pub(crate) fn place(&self, offset: u64, length: u32) -> Result<Place, Status> {
        let extent = self.geometry.locate(offset, u64::from(length));
        let extent = extent.map_err(|_| Status::Invalid)?;
        let device = self.members[usize::from(extent.member)].ok_or(Status::Invalid)?;
        Ok(Place { device, device_offset: extent.device_offset })
    }

    /// As `place`, for a range of bytes to be moved; with what can be known beforehand computed
    /// beforehand.
    #[inline(always)]
    pub(crate) fn place_simple(&self, offset: u64, length: u32) -> Option<Place> {
        let bytes = u64::from(length);
        let end = offset.checked_add(bytes)?;
        let sized = length.wrapping_sub(1) < REQUEST_LENGTH_MAX; // 0 is more than any
        if !sized || (offset | bytes) & self.block_mask != 0 || end > self.capacity {
            return None;
        }
        match self.only {
            Some(device) => {
                Some(Place { device, device_offset: self.geometry.data_offset + offset })
            }
            None => self.place(offset, length).ok(),
        }
    }

    /// INVALID for bytes whose place in memory the devices cannot take.
    #[inline(always)]
    pub(crate) fn check_memory(&self, offset: u64) -> Result<(), Status> {
        if offset & self.memory_mask == 0 { Ok(()) } else { Err(Status::Invalid) }
    }
}
