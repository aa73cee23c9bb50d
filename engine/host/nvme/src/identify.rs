//! Answers of drives, byte for byte: the data structures Identify Controller and the log pages
//! SMART / Health Information and Endurance Group Information of the NVM Express base
//! specification, and Identify Namespace of its NVM command set specification (the kernel has them
//! too, in linux/nvme.h). Only fields that are used have names. All numbers are little endian; the
//! types have no alignment, so that there is no padding either.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes of an Identify answer.
const IDENTIFY_BYTES: usize = 4096;

/// Data of an admin command: zeros, until the kernel has filled it in.
pub(crate) trait AdminData: FromZeros + FromBytes + IntoBytes {}

/// Identify Controller.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawController {
    before: [u8; 77],
    /// Largest transfer, a power of two in units of the smallest page; 0 is no limit.
    pub(crate) mdts: u8,
    between_1: [u8; 266 - 78],
    /// Kelvin; 0 is not reported.
    pub(crate) wctemp: U16,
    pub(crate) cctemp: U16,
    between_2: [u8; 520 - 270],
    pub(crate) oncs: U16,
    between_3: [u8; 525 - 522],
    /// Bit 0: there is a volatile write cache.
    pub(crate) vwc: u8,
    /// Logical blocks less one, as the two below.
    pub(crate) awun: U16,
    pub(crate) awupf: U16,
    after: [u8; IDENTIFY_BYTES - 530],
}

impl AdminData for RawController {}

const _: () = assert!(size_of::<RawController>() == IDENTIFY_BYTES);
const _: () = assert!(offset_of!(RawController, mdts) == 77);
const _: () = assert!(offset_of!(RawController, wctemp) == 266);
const _: () = assert!(offset_of!(RawController, oncs) == 520);
const _: () = assert!(offset_of!(RawController, vwc) == 525);
const _: () = assert!(offset_of!(RawController, awupf) == 528);

/// One LBA format of a namespace.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawFormat {
    /// Metadata bytes of a block.
    pub(crate) ms: U16,
    /// Power of two: data bytes of a block; below 9 the format is not there.
    pub(crate) lbads: u8,
    /// Bits 1:0, 0 is the fastest.
    pub(crate) rp: u8,
}

/// Identify Namespace of the NVM command set.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawNamespace {
    /// Blocks.
    pub(crate) nsze: U64,
    before: [u8; 24 - 8],
    pub(crate) nsfeat: u8,
    /// Formats less one.
    pub(crate) nlbaf: u8,
    pub(crate) flbas: u8,
    pub(crate) mc: u8,
    pub(crate) dpc: u8,
    pub(crate) dps: u8,
    between: [u8; 34 - 30],
    /// Logical blocks less one, as the one below; valid with bit 1 of `nsfeat`.
    pub(crate) nawun: U16,
    pub(crate) nawupf: U16,
    between_2: [u8; 102 - 38],
    /// Its endurance group; 0 is none.
    pub(crate) endgid: U16,
    after: [u8; 128 - 104],
    pub(crate) lbaf: [RawFormat; 64],
    vendor: [u8; IDENTIFY_BYTES - 384],
}

impl AdminData for RawNamespace {}

const _: () = assert!(size_of::<RawNamespace>() == IDENTIFY_BYTES);
const _: () = assert!(offset_of!(RawNamespace, nsfeat) == 24);
const _: () = assert!(offset_of!(RawNamespace, dps) == 29);
const _: () = assert!(offset_of!(RawNamespace, nawupf) == 36);
const _: () = assert!(offset_of!(RawNamespace, endgid) == 102);
const _: () = assert!(offset_of!(RawNamespace, lbaf) == 128);

/// The SMART / Health Information log page.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawHealth {
    pub(crate) critical_warning: u8,
    /// Kelvin.
    pub(crate) temperature: U16,
    /// Percent, as the two below.
    pub(crate) available_spare: u8,
    pub(crate) spare_threshold: u8,
    /// 255 is 255 or more.
    pub(crate) percentage_used: u8,
    before: [u8; 32 - 6],
    /// Units of 1000 blocks of 512 bytes, rounded up, as the one below.
    pub(crate) data_units_read: U128,
    pub(crate) data_units_written: U128,
    between: [u8; 112 - 64],
    pub(crate) power_cycles: U128,
    pub(crate) power_on_hours: U128,
    pub(crate) unsafe_shutdowns: U128,
    pub(crate) media_errors: U128,
    after: [u8; 512 - 176],
}

impl AdminData for RawHealth {}

const _: () = assert!(size_of::<RawHealth>() == 512);
const _: () = assert!(offset_of!(RawHealth, data_units_read) == 32);
const _: () = assert!(offset_of!(RawHealth, power_cycles) == 112);
const _: () = assert!(offset_of!(RawHealth, media_errors) == 160);

/// The Endurance Group Information log page.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawEndurance {
    before: [u8; 5],
    /// Percent; 255 is 255 or more.
    pub(crate) percentage_used: u8,
    between: [u8; 32 - 6],
    /// Bytes in billions, as those below; 0 is not reported.
    pub(crate) estimate: U128,
    pub(crate) read: U128,
    pub(crate) written: U128,
    pub(crate) media_written: U128,
    after: [u8; 512 - 96],
}

impl AdminData for RawEndurance {}

const _: () = assert!(size_of::<RawEndurance>() == 512);
const _: () = assert!(offset_of!(RawEndurance, percentage_used) == 5);
const _: () = assert!(offset_of!(RawEndurance, estimate) == 32);
const _: () = assert!(offset_of!(RawEndurance, media_written) == 80);
