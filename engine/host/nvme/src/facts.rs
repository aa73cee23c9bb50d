//! A drive's description of itself, in units people use.

use serde::Serialize;

use crate::identify::{RawController, RawEndurance, RawFormat, RawHealth, RawNamespace};

/// Unit of MDTS. It counts in the controller's smallest page (CAP.MPSMIN), which no interface of
/// the kernel shows; the driver takes 4 KiB too (`NVME_CTRL_PAGE_SIZE`, drivers/nvme/host/nvme.h).
const MDTS_UNIT_BYTES: u64 = 4096;

/// Unit of the SMART log's data counters.
const DATA_UNIT_BYTES: u128 = 512_000;

/// Unit of the endurance group log's counters.
const BILLION: u128 = 1_000_000_000;

/// A rated life in days: five years.
const LIFE_DAYS: u128 = 5 * 365;

/// 0 degrees Celsius in the kelvins of drives.
const FREEZING_KELVIN: i32 = 273;

/// A controller, by Identify Controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ControllerFacts {
    /// Largest transfer of one command in bytes (MDTS); None is no limit.
    pub transfer_bytes_max: Option<u64>,
    /// Whether what is written may be lost with the power until it is flushed.
    pub volatile_write_cache: bool,
    /// Blocks written as one whole while the power stays (AWUN).
    pub atomic_blocks: u32,
    /// Blocks written as one whole even when the power fails (AWUPF).
    pub atomic_blocks_power_fail: u32,
    /// Degrees Celsius from which on the drive warns, where it reports them.
    pub warning_celsius: Option<i32>,
    /// Degrees Celsius from which on it may shut down, where it reports them.
    pub critical_celsius: Option<i32>,
    /// Whether it takes Dataset Management (discard).
    pub discard: bool,
    /// Whether it takes Verify.
    pub verify: bool,
}

/// A namespace, by Identify Namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamespaceFacts {
    /// The format it has now.
    pub format: LbaFormat,
    /// Every format it can be given.
    pub formats: Vec<LbaFormat>,
    /// Protection information in use: type 1, 2 or 3.
    pub protection: Option<u8>,
    /// Types it can be formatted with.
    pub protections: Vec<u8>,
    /// Whether the metadata is interleaved with the data; without metadata it is not.
    pub metadata_in_data: bool,
    /// Blocks written as one whole even when the power fails (NAWUPF), where it differs from the
    /// controller's.
    pub atomic_blocks_power_fail: Option<u32>,
    /// Its endurance group, where the drive has some.
    pub endurance_group: Option<u16>,
}

/// An LBA format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LbaFormat {
    /// Its number, as `nvme format --lbaf` takes it.
    pub index: u8,
    /// Data bytes of a block.
    pub block_bytes: u32,
    /// Metadata bytes beside each block.
    pub metadata_bytes: u16,
    /// 0 (fastest) to 3.
    pub relative_performance: u8,
}

/// The SMART log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SmartLog {
    /// Present faults, in words.
    pub warnings: Vec<&'static str>,
    /// Degrees Celsius.
    pub celsius: i32,
    /// Percent of the spare blocks that are left.
    pub spare_percent: u8,
    /// Percent of spare below which the drive warns.
    pub spare_threshold_percent: u8,
    /// Percent of the life that is used; may pass 100.
    pub used_percent: u8,
    /// Bytes read by hosts, in units of 512,000.
    pub read_bytes: u128,
    /// Bytes written by hosts, in units of 512,000.
    pub written_bytes: u128,
    /// Times it was switched on.
    pub power_cycles: u128,
    /// Hours it was on.
    pub power_on_hours: u128,
    /// Times the power went without a word before.
    pub unsafe_shutdowns: u128,
    /// Times data was found damaged beyond repair.
    pub media_errors: u128,
}

/// Endurance of a drive, by the log of its endurance group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Endurance {
    /// Bytes that hosts may write in its whole life, written as a store does: in large runs.
    pub life_bytes: u128,
    /// Bytes that hosts have written.
    pub written_bytes: u128,
    /// Bytes that went to the medium for them, where it reports them.
    pub media_written_bytes: Option<u128>,
}

impl Endurance {
    /// `None` where the drive reports no endurance.
    pub(crate) fn of(raw: &RawEndurance) -> Option<Self> {
        let bytes = |billions: u128| billions.saturating_mul(BILLION);
        let life_bytes = Some(bytes(raw.estimate.get())).filter(|bytes| *bytes > 0)?;
        let (written, media) = (raw.written.get(), raw.media_written.get());
        let media_written_bytes = (media > 0).then(|| bytes(media));
        Some(Self { life_bytes, written_bytes: bytes(written), media_written_bytes })
    }

    /// Bytes that may still be written.
    #[must_use]
    pub fn left_bytes(&self) -> u128 {
        self.life_bytes.saturating_sub(self.written_bytes)
    }

    /// How often a drive of this size may be written each day for five years, in thousandths.
    #[must_use]
    pub fn drive_writes_a_day(&self, size_bytes: u64) -> u32 {
        let five_years = u128::from(size_bytes.max(1)) * LIFE_DAYS;
        u32::try_from(self.life_bytes.saturating_mul(1000) / five_years).unwrap_or(u32::MAX)
    }
}

impl From<&RawController> for ControllerFacts {
    fn from(raw: &RawController) -> Self {
        let oncs = raw.oncs.get();
        let pages = 1_u64.checked_shl(u32::from(raw.mdts)).filter(|_| raw.mdts != 0);
        Self {
            transfer_bytes_max: pages.and_then(|pages| pages.checked_mul(MDTS_UNIT_BYTES)),
            volatile_write_cache: raw.vwc & 1 == 1,
            atomic_blocks: u32::from(raw.awun.get()) + 1,
            atomic_blocks_power_fail: u32::from(raw.awupf.get()) + 1,
            warning_celsius: celsius(raw.wctemp.get()),
            critical_celsius: celsius(raw.cctemp.get()),
            discard: oncs & 1 << 2 != 0,
            verify: oncs & 1 << 7 != 0,
        }
    }
}

fn celsius(kelvin: u16) -> Option<i32> {
    (kelvin != 0).then(|| i32::from(kelvin) - FREEZING_KELVIN)
}

impl TryFrom<&RawNamespace> for NamespaceFacts {
    type Error = String;

    /// Fails where the namespace is not active or has a format that is not in its list.
    fn try_from(raw: &RawNamespace) -> Result<Self, String> {
        if raw.nsze.get() == 0 {
            return Err("the namespace is not active".into());
        }
        let numbered = raw.lbaf.iter().zip(0_u8..);
        let listed = numbered.take(usize::from(raw.nlbaf) + 1).filter_map(format);
        let formats: Vec<LbaFormat> = listed.collect();
        // Bits 3:0 and, above 16 formats, 6:5.
        let index = raw.flbas & 0x0f | (raw.flbas & 0x60) >> 1;
        let now = formats.iter().find(|format| format.index == index).copied();
        let format = now.ok_or_else(|| format!("it has format {index}, which it does not list"))?;
        let protection = raw.dps & 0x7;
        Ok(Self {
            format,
            protection: (1..=3).contains(&protection).then_some(protection),
            protections: (1..=3).filter(|kind| raw.dpc & 1 << (kind - 1) != 0).collect(),
            metadata_in_data: format.metadata_bytes > 0 && raw.flbas & 1 << 4 != 0,
            atomic_blocks_power_fail: (raw.nsfeat & 1 << 1 != 0)
                .then(|| u32::from(raw.nawupf.get()) + 1),
            endurance_group: Some(raw.endgid.get()).filter(|group| *group != 0),
            formats,
        })
    }
}

fn format((raw, index): (&RawFormat, u8)) -> Option<LbaFormat> {
    let block_bytes = 1_u32.checked_shl(raw.lbads.into()).filter(|_| raw.lbads >= 9)?;
    let (metadata_bytes, relative_performance) = (raw.ms.get(), raw.rp & 3);
    Some(LbaFormat { index, block_bytes, metadata_bytes, relative_performance })
}

/// Bits of the critical warning, in their order.
const WARNINGS: [&str; 6] = [
    "spare blocks below threshold",
    "temperature beyond a threshold",
    "reliability degraded",
    "media read-only",
    "volatile memory backup failed",
    "persistent memory region read-only or unreliable",
];

impl From<&RawHealth> for SmartLog {
    fn from(raw: &RawHealth) -> Self {
        let set = |(bit, words): (usize, &'static str)| {
            (raw.critical_warning & 1 << bit != 0).then_some(words)
        };
        Self {
            warnings: WARNINGS.into_iter().enumerate().filter_map(set).collect(),
            celsius: i32::from(raw.temperature.get()) - FREEZING_KELVIN,
            spare_percent: raw.available_spare,
            spare_threshold_percent: raw.spare_threshold,
            used_percent: raw.percentage_used,
            read_bytes: raw.data_units_read.get().saturating_mul(DATA_UNIT_BYTES),
            written_bytes: raw.data_units_written.get().saturating_mul(DATA_UNIT_BYTES),
            power_cycles: raw.power_cycles.get(),
            power_on_hours: raw.power_on_hours.get(),
            unsafe_shutdowns: raw.unsafe_shutdowns.get(),
            media_errors: raw.media_errors.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};
    use zerocopy::{FromBytes, FromZeros};

    use super::{ControllerFacts, Endurance, NamespaceFacts, SmartLog};
    use crate::identify::{RawController, RawEndurance, RawHealth, RawNamespace};

    fn bytes<const SIZE: usize>(set: &[(usize, &[u8])]) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        for (at, value) in set {
            bytes[*at..at + value.len()].copy_from_slice(value);
        }
        bytes
    }

    #[test]
    fn a_controller_is_read() {
        let raw: [u8; 4096] = bytes(&[
            (77, &[7]),
            (266, &343_u16.to_le_bytes()),
            (520, &0x84_u16.to_le_bytes()),
            (525, &[7]),
            (526, &255_u16.to_le_bytes()),
            (528, &7_u16.to_le_bytes()),
        ]);
        let facts = ControllerFacts::from(&RawController::read_from_bytes(&raw).unwrap());
        assert_eq!(facts.transfer_bytes_max, Some(512 << 10));
        assert!(facts.volatile_write_cache && facts.discard && facts.verify);
        assert_eq!((facts.atomic_blocks, facts.atomic_blocks_power_fail), (256, 8));
        assert_eq!((facts.warning_celsius, facts.critical_celsius), (Some(70), None));
        let silent = ControllerFacts::from(&RawController::new_zeroed());
        assert_eq!(silent.transfer_bytes_max, None);
        assert!(!silent.volatile_write_cache && silent.atomic_blocks == 1);
    }

    #[test]
    fn a_namespace_with_formats_and_protection_is_read() {
        let raw: [u8; 4096] = bytes(&[
            (0, &1000_u64.to_le_bytes()),
            (24, &[1 << 1, 2, 0x11, 3, 0x1b, 0x01]),
            (36, &15_u16.to_le_bytes()),
            (102, &3_u16.to_le_bytes()),
            (128, &[0, 0, 9, 2, 8, 0, 9, 1, 8, 0, 12, 0]),
            (128 + 12, &[64, 0, 12, 0]),
        ]);
        let facts =
            NamespaceFacts::try_from(&RawNamespace::read_from_bytes(&raw).unwrap()).unwrap();
        let sizes = facts
            .formats
            .iter()
            .map(|format| (format.index, format.block_bytes, format.metadata_bytes));
        assert_eq!(sizes.collect::<Vec<_>>(), [(0, 512, 0), (1, 512, 8), (2, 4096, 8)]);
        assert_eq!(facts.format, facts.formats[1]);
        assert_eq!((facts.protection, &facts.protections[..]), (Some(1), &[1, 2][..]));
        assert!(facts.metadata_in_data);
        assert_eq!(facts.atomic_blocks_power_fail, Some(16));
        assert_eq!(facts.endurance_group, Some(3));
    }

    #[test]
    fn a_format_beyond_sixteen_is_found() {
        let mut raw: [u8; 4096] = bytes(&[(0, &[1]), (25, &[16, 0x20])]);
        raw[128 + 4 * 16 + 2] = 12;
        let facts =
            NamespaceFacts::try_from(&RawNamespace::read_from_bytes(&raw).unwrap()).unwrap();
        assert_eq!((facts.format.index, facts.format.block_bytes), (16, 4096));
    }

    #[test]
    fn an_inactive_namespace_and_a_missing_format_are_told() {
        let raw = RawNamespace::new_zeroed();
        assert!(NamespaceFacts::try_from(&raw).unwrap_err().contains("not active"));
        let raw: [u8; 4096] = bytes(&[(0, &[1])]);
        let raw = RawNamespace::read_from_bytes(&raw).unwrap();
        assert!(NamespaceFacts::try_from(&raw).unwrap_err().contains("format 0"));
    }

    #[test]
    fn health_is_read() {
        let raw: [u8; 512] = bytes(&[
            (0, &[0b1010]),
            (1, &323_u16.to_le_bytes()),
            (3, &[99, 10, 3]),
            (32, &2_u128.to_le_bytes()),
            (48, &3_u128.to_le_bytes()),
            (112, &4_u128.to_le_bytes()),
            (128, &5_u128.to_le_bytes()),
            (144, &6_u128.to_le_bytes()),
            (160, &7_u128.to_le_bytes()),
        ]);
        let health = SmartLog::from(&RawHealth::read_from_bytes(&raw).unwrap());
        assert_eq!(health.warnings, ["temperature beyond a threshold", "media read-only"]);
        assert_eq!((health.celsius, health.spare_percent), (50, 99));
        assert_eq!((health.spare_threshold_percent, health.used_percent), (10, 3));
        assert_eq!((health.read_bytes, health.written_bytes), (1_024_000, 1_536_000));
        assert_eq!((health.power_cycles, health.power_on_hours), (4, 5));
        assert_eq!((health.unsafe_shutdowns, health.media_errors), (6, 7));
    }

    #[test]
    fn endurance_is_read_where_the_drive_says_it() {
        // 14,016 TB, of which 2,000 are written; 2,100 went to the medium.
        let raw: [u8; 512] = bytes(&[
            (5, &[15]),
            (32, &14_016_000_u128.to_le_bytes()),
            (64, &2_000_000_u128.to_le_bytes()),
            (80, &2_100_000_u128.to_le_bytes()),
        ]);
        let endurance = Endurance::of(&RawEndurance::read_from_bytes(&raw).unwrap()).unwrap();
        assert_eq!(endurance.left_bytes(), 12_016 * 10_u128.pow(12));
        assert_eq!(endurance.media_written_bytes, Some(2_100 * 10_u128.pow(12)));
        assert_eq!(endurance.drive_writes_a_day(7_680_000_000_000), 1000);
        assert_eq!(endurance.drive_writes_a_day(15_360_000_000_000), 500);
        assert_eq!(endurance.drive_writes_a_day(0), u32::MAX);
        assert_eq!(Endurance::of(&RawEndurance::new_zeroed()), None);
        let mut worn = endurance;
        worn.written_bytes = u128::MAX;
        assert_eq!(worn.left_bytes(), 0);
    }

    proptest! {
        /// Drives lie; no answer of theirs may end the program.
        #[test]
        fn any_answer_is_survived(byte in any::<u8>(), at in 0_usize..4096, all in any::<u8>()) {
            let mut raw = [all; 4096];
            raw[at] = byte;
            let _ = ControllerFacts::from(&RawController::read_from_bytes(&raw).unwrap());
            let _ = NamespaceFacts::try_from(&RawNamespace::read_from_bytes(&raw).unwrap());
            let _ = SmartLog::from(&RawHealth::read_from_bytes(&raw[..512]).unwrap());
            let endurance = Endurance::of(&RawEndurance::read_from_bytes(&raw[..512]).unwrap());
            let _ = endurance.map(|known| (known.left_bytes(), known.drive_writes_a_day(1)));
        }
    }
}
