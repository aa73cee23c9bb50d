//! Volumes: found by name or by number.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary` and `sized` only, on the header's terms.

use std::ffi::c_char;

use kvrail_client::Volume;

use crate::boundary::{call, letters, text};
use crate::client::{Client, session};
use crate::code::{Failure, KVRAIL_E_NO_VOLUME};
use crate::sized::{SizedStruct, write};

/// Bytes of a volume's name with the zero at its end; a longer one is cut.
pub const KVRAIL_NAME_BYTES: usize = 64;

/// A volume.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VolumeInfo {
    /// sizeof this structure.
    pub size: u32,
    /// Its number, for requests.
    pub volume: u32,
    /// Bytes it holds.
    pub capacity: u64,
    /// Bytes of one stripe; a request within one stripe goes to one device.
    pub stripe_bytes: u64,
    /// Unit of offsets and lengths in bytes, a power of two.
    pub logical_block: u32,
    /// Unit of positions in arenas in bytes, a power of two.
    pub memory_alignment: u32,
    /// Devices it is striped over.
    pub members: u32,
    /// Must be ignored.
    pub reserved: u32,
    /// From its label; another one means other data.
    pub uuid: [u8; 16],
    /// Its name, ended by a zero.
    pub name: [c_char; KVRAIL_NAME_BYTES],
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for VolumeInfo {
    const NAME: &'static str = "kvrail_volume_info";
    const LEAST: usize = 8;
}

fn describe(volume: &Volume) -> VolumeInfo {
    let geometry = volume.geometry();
    VolumeInfo {
        size: 0,
        volume: u32::from(volume.id().0),
        capacity: volume.capacity(),
        stripe_bytes: geometry.stripe_bytes,
        logical_block: geometry.logical_block,
        memory_alignment: geometry.memory_alignment,
        members: u32::from(geometry.members),
        reserved: 0,
        uuid: volume.uuid().into_bytes(),
        name: letters(volume.name()),
    }
}

/// The volume of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_volume_find(
    client: *const Client,
    name: *const c_char,
    info: *mut VolumeInfo,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let session = unsafe { session(client) }?;
        // SAFETY: the caller's text.
        let volume = session.client.volume(unsafe { text(name, "name") }?)?;
        // SAFETY: the caller's structure.
        unsafe { write(info, &describe(&volume)) }
    })
}

/// The volume of this number; numbers count from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_volume_at(
    client: *const Client,
    number: u32,
    info: *mut VolumeInfo,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let volumes = unsafe { session(client) }?.client.volumes();
        let volume =
            volumes.get(number as usize).ok_or_else(|| no_volume(number, volumes.len()))?;
        // SAFETY: the caller's structure.
        unsafe { write(info, &describe(volume)) }
    })
}

pub(crate) fn no_volume(number: u32, count: usize) -> Failure {
    let text = format!("volume {number} does not exist; the sidecar has {count}, counted from 0");
    Failure::new(KVRAIL_E_NO_VOLUME, text)
}
