//! Drives for a load: how many, how busy, and how long they last.

use clap::Args;
use kvrail_store::Sizing;
use kvrail_volume::{StoreMember, StoreShape};
use serde::Serialize;

use kvrail_cli::failure::{Exit, Failure};

/// Of its bandwidth, what a drive is planned to give: near all of it, reads wait for each other.
const BUSY_MAX: f64 = 0.7;
const TB: f64 = 1e12;
const GB: f64 = 1e9;
const DAY_S: f64 = 86_400.0;
const YEAR_DAYS: f64 = 365.0;
/// Drives that a plan may come to.
const DRIVES_MAX: f64 = 1e6;
/// Sessions that share a drive's poller, for what its tables take.
const OWNERS: u16 = 64;

/// A drive, as its data sheet has it; by default one of PCIe 4 for reads.
#[derive(Debug, Args)]
pub(super) struct DriveArgs {
    /// Capacity of a drive
    #[arg(long, value_name = "TB", default_value = "3.84", value_parser = positive)]
    drive_tb: f64,
    /// Read rate of a drive in large blocks
    #[arg(long, value_name = "GB/S", default_value = "6.8", value_parser = positive)]
    drive_read: f64,
    /// Sustained write rate of a drive in large blocks
    #[arg(long, value_name = "GB/S", default_value = "4", value_parser = positive)]
    drive_write: f64,
    /// Drive writes a day that it bears for --drive-years
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive)]
    drive_dwpd: f64,
    /// Years of that
    #[arg(long, value_name = "YEARS", default_value = "5", value_parser = positive)]
    drive_years: f64,
    /// Terabytes that it bears in all, instead of drive writes a day
    #[arg(long, value_name = "TB", value_parser = positive,
          conflicts_with_all = ["drive_dwpd"])]
    drive_tbw: Option<f64>,
}

/// A number above 0.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| *number > 0.0 && *number <= 1e15);
    number.ok_or_else(|| "write a number above 0 and up to 1e15, such as 3.84".into())
}

/// The load of a store, in bytes and bytes a second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct StoreLoad {
    pub(super) block_bytes: u32,
    pub(super) kept_bytes: f64,
    pub(super) read_bytes_per_second: f64,
    pub(super) written_bytes_per_second: f64,
}

/// Drives that bear a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Drives {
    pub(super) drives: u64,
    /// How many each need alone would take.
    pub(super) for_capacity: u64,
    pub(super) for_bandwidth: u64,
    pub(super) for_endurance: u64,
    /// Share of all drives' time that reads and writes take.
    pub(super) busy: f64,
    /// Drive writes a day, of each.
    pub(super) dwpd: f64,
    /// Days until each has written what it bears.
    pub(super) days: f64,
    /// Bytes of RAM of all drives' indexes and tables, and of each block.
    pub(super) index_bytes: u64,
    pub(super) index_bytes_per_block: u64,
}

impl DriveArgs {
    /// The drives that a load takes.
    pub(super) fn bear(&self, load: &StoreLoad) -> Result<Drives, Failure> {
        let StoreLoad { kept_bytes, read_bytes_per_second, written_bytes_per_second, .. } = *load;
        let written_day = written_bytes_per_second * DAY_S;
        let bears = self
            .drive_tbw
            .unwrap_or(self.drive_dwpd * self.drive_tb * YEAR_DAYS * self.drive_years);
        let time = read_bytes_per_second / (self.drive_read * GB)
            + written_bytes_per_second / (self.drive_write * GB);
        let life_days = YEAR_DAYS * self.drive_years;
        let [capacity, bandwidth, endurance] = [
            count(kept_bytes / (self.drive_tb * TB))?,
            count(time / BUSY_MAX)?,
            count(written_day * life_days / (bears * TB))?,
        ];
        let drives = capacity.max(bandwidth).max(endurance);
        let each = drives as f64;
        let sizing = self.sizing(load.block_bytes)?;
        Ok(Drives {
            drives,
            for_capacity: capacity,
            for_bandwidth: bandwidth,
            for_endurance: endurance,
            busy: time / each,
            dwpd: written_day / each / (self.drive_tb * TB),
            days: bears * TB * each / written_day,
            index_bytes: (sizing.index_bytes + sizing.table_bytes) * drives,
            index_bytes_per_block: sizing.per_block(),
        })
    }

    /// The tables of one drive's store, made for blocks of this length.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    fn sizing(&self, block_bytes: u32) -> Result<Sizing, Failure> {
        let member = StoreMember::new((self.drive_tb * TB) as u64, 4096);
        let usual = StoreShape::usual(member)?;
        let block_mean = block_bytes.next_multiple_of(4096).min(usual.block_bytes_max());
        let shape = StoreShape { block_mean, ..usual };
        Sizing::of(&shape.config(member, OWNERS)).map_err(|why| {
            let words = format!("--drive-tb {}: {why}", self.drive_tb);
            Failure::new(Exit::Usage, words).with_remedy("name the capacity of one drive")
        })
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "limited")]
fn count(drives: f64) -> Result<u64, Failure> {
    if (0.0..=DRIVES_MAX).contains(&drives) {
        return Ok((drives.ceil() as u64).max(1));
    }
    let words = format!("{drives:.0} drives would be needed, more than {DRIVES_MAX:.0}");
    Err(Failure::new(Exit::Usage, words)
        .with_remedy("look at --sessions, --context, the rates and --times: they multiply"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{DriveArgs, Drives, StoreLoad};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        drives: DriveArgs,
    }

    fn bear(line: &str, load: &StoreLoad) -> Result<Drives, String> {
        let words = std::iter::once("size").chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        cli.drives.bear(load).map_err(|failure| format!("{failure:?}"))
    }

    const LOAD: StoreLoad = StoreLoad {
        block_bytes: 5 << 20,
        kept_bytes: 10e12,
        read_bytes_per_second: 20e9,
        written_bytes_per_second: 1e9,
    };

    #[test]
    fn each_need_counts_alone() {
        let plan = bear("--drive-tb 4 --drive-read 5 --drive-write 2", &LOAD).unwrap();
        // 10 / 4; 4 + 0.5 drives' time in 0.7 of each; 86.4 TB a day in 4 a drive.
        assert_eq!((plan.for_capacity, plan.for_bandwidth, plan.for_endurance), (3, 7, 22));
        assert_eq!(plan.drives, 22);
        assert!((plan.dwpd - 86.4 / 88.0).abs() < 1e-9, "{plan:?}");
        assert!((plan.days - 1825.0 * 88.0 / 86.4).abs() < 1e-6, "{plan:?}");
        assert!((plan.busy - 4.5 / 22.0).abs() < 1e-9, "{plan:?}");
        let twice = bear("--drive-tb 4 --drive-tbw 14600", &LOAD).unwrap();
        assert_eq!(twice.for_endurance, 11, "2 drive writes a day for 5 years");
    }

    /// Small blocks take more of the index: each has its entry.
    #[test]
    fn the_index_follows_the_blocks() {
        let of = |block_bytes| bear("", &StoreLoad { block_bytes, ..LOAD }).unwrap();
        let (small, large) = (of(64 << 10), of(64 << 20));
        let blocks = 3.84e12 * small.drives as f64 / 65_536.0;
        let share = small.index_bytes as f64 / blocks;
        assert!((16.0..=52.0).contains(&share), "{share} bytes a block");
        assert!(small.index_bytes > 50 * large.index_bytes, "{small:?} {large:?}");
    }

    #[test]
    fn what_cannot_be_is_named() {
        let wrong = [
            ("--drive-tb 0", "above 0"),
            ("--drive-read nan", "above 0"),
            ("--drive-tb 0.000001", "--sessions"),
            ("--drive-tbw 1 --drive-dwpd 1", "cannot be used with"),
        ];
        for (line, named) in wrong {
            let said = bear(line, &LOAD).unwrap_err();
            assert!(said.contains(named), "{line}: {said}");
        }
    }
}
