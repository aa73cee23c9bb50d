//! Volumes of ranges, seen from one poller: an offset in a volume is an offset on a device.

use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::{DeviceIndex, Geometry, Status};

use crate::task::DeviceExtent;

/// A volume as every poller knows it.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its shape.
    pub geometry: Geometry,
    /// The device of each member, in the order of the geometry.
    pub members: Vec<DeviceIndex>,
}

/// A volume with its members as local devices; members of other pollers are `None`.
#[derive(Debug)]
pub(crate) struct LocalVolume {
    geometry: Geometry,
    members: Vec<Option<u8>>,
    capacity: u64,
    /// One less than the unit of offsets and lengths, and than that of offsets in memory.
    block_mask: u64,
    memory_mask: u64,
    /// The device of the only member.
    only: Option<u8>,
}

impl LocalVolume {
    /// `devices` are the sidecar-wide numbers of this poller's devices, in local order.
    pub(crate) fn new(route: &Route, devices: &[DeviceIndex]) -> Self {
        let local = |member: &DeviceIndex| {
            let index = devices.iter().position(|device| device == member)?;
            Some(u8::try_from(index).expect("a poller has few devices"))
        };
        let members: Vec<_> = route.members.iter().map(local).collect();
        let only = if let [only] = members[..] { only } else { None };
        let geometry = route.geometry;
        assert!(geometry.logical_block.is_power_of_two(), "masks are made of powers of two");
        assert!(geometry.memory_alignment.is_power_of_two(), "masks are made of powers of two");
        let mask = |unit: u32| u64::from(unit) - 1;
        Self {
            geometry,
            members,
            capacity: geometry.capacity(),
            block_mask: mask(geometry.logical_block),
            memory_mask: mask(geometry.memory_alignment),
            only,
        }
    }

    /// Where a range of 1 to `max` bytes lies. INVALID for a bad range, or one that belongs to
    /// another poller's lane.
    #[inline(always)]
    pub(crate) fn locate(
        &self,
        offset: u64,
        length: u32,
        max: u32,
    ) -> Result<DeviceExtent, Status> {
        let bytes = u64::from(length);
        let end = offset.checked_add(bytes).ok_or(Status::Invalid)?;
        let sized = length.wrapping_sub(1) < max; // 0 is more than any
        if !sized || (offset | bytes) & self.block_mask != 0 || end > self.capacity {
            return Err(Status::Invalid);
        }
        match self.only {
            Some(device) => Ok(DeviceExtent { device, offset: self.geometry.data_offset + offset }),
            None => self.locate_member(offset, bytes),
        }
    }

    #[inline(never)]
    fn locate_member(&self, offset: u64, bytes: u64) -> Result<DeviceExtent, Status> {
        let extent = self.geometry.locate(offset, bytes).map_err(|_| Status::Invalid)?;
        let device = self.members[usize::from(extent.member)].ok_or(Status::Invalid)?;
        Ok(DeviceExtent { device, offset: extent.device_offset })
    }

    /// The whole of the device that the block at `offset` lies on.
    pub(crate) fn device_at(&self, offset: u64) -> Result<DeviceExtent, Status> {
        Ok(DeviceExtent {
            offset: 0,
            ..self.locate(offset, self.geometry.logical_block, REQUEST_LENGTH_MAX)?
        })
    }

    /// INVALID for an offset in memory that the devices cannot take.
    #[inline(always)]
    pub(crate) fn check_alignment(&self, offset: u64) -> Result<(), Status> {
        if offset & self.memory_mask == 0 { Ok(()) } else { Err(Status::Invalid) }
    }
}
