//! The options of `kvrail bench`.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use kvrail_device::{ModeName, UnknownMode};
use kvrail_nvme::Selector;
use kvrail_replay::{MemberShape, SEGMENTS_MAX, SEGMENTS_MIN};
use kvrail_units::Size;
use rustix::fs::{Access, access};
use serde::Serialize;

use crate::plan::{Arrivals, Axes, Case, Op, Rate, keyed_case, parse_rate};
use crate::sidecar::ClientWait;

/// Longest run of an arm, in seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;

/// Sizes of hot blocks, where none are named: a block in its smaller and its larger form.
const HOT_BLOCKS: [u32; 2] = [64 << 10, 1 << 20];

/// Smallest store: its segments hold two of the largest blocks.
const STORE_BYTES_MIN: u64 = 256 << 20;

/// The default for playing a trace of requests.
const SERVED_BLOCK_BYTES: u32 = 1 << 20;
const SERVED_DEPTH: u32 = 32;
const SERVED_CLIENTS: u32 = 4;

/// Fastest replay, and one over the slowest.
const SPEED_MAX: f64 = 1e6;

/// The arms of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmName {
    /// The sidecar's volume, over the lanes.
    Kvrail,
    /// The same, with the checksum of every request computed: what gets and puts do, too.
    Checked,
    /// Its store: gets and puts of the same sizes, and lookups.
    Store,
    /// The same with a plain file for each block.
    Files,
    /// A bare ring in this process; in the sidecar's mode, or in the mode named.
    Raw(Option<ModeName>),
    /// fio on the same file.
    Fio,
    /// Round trips between two cores, and kvrail's lanes.
    Lanes,
    /// Gets of hot blocks from a memory tier, beside memcpy, the page cache and the drive.
    Memory,
}

impl FromStr for ArmName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("raw", mode)) => {
                let mode = mode.parse().map_err(|unknown: UnknownMode| unknown.to_string())?;
                Ok(Self::Raw(Some(mode)))
            }
            None if text == "kvrail" => Ok(Self::Kvrail),
            None if text == "checked" => Ok(Self::Checked),
            None if text == "store" => Ok(Self::Store),
            None if text == "files" => Ok(Self::Files),
            None if text == "raw" => Ok(Self::Raw(None)),
            None if text == "fio" => Ok(Self::Fio),
            None if text == "lanes" => Ok(Self::Lanes),
            None if text == "memory" => Ok(Self::Memory),
            _ => Err(format!(
                "`{text}` is no arm; write kvrail, checked, raw, raw:MODE, store, files, fio, \
                 lanes or memory"
            )),
        }
    }
}

/// Measure kvrail's volumes and its keyed store against a bare io_uring loop (and fio) on the same
/// storage, in one interleaved run, with every block verified.
#[derive(Clone, Debug, Args)]
pub struct BenchOptions {
    /// Arms to run, by default all that this machine has but `checked` and `files`; `files` takes
    /// depth 1 with any number of clients, `memory` the blocks' sizes alone
    /// [kvrail, checked, raw, raw:MODE, store, files, fio, lanes, memory]
    #[arg(long, value_delimiter = ',', value_name = "ARM")]
    pub arms: Vec<ArmName>,
    /// Operations; the store puts and gets instead of writing and reading, and lookups ask it for
    /// 1,000 keys at once; choosing any of op, block, depth, clients or open replaces the default
    /// cases by every combination of what was chosen
    #[arg(long, value_enum, value_delimiter = ',', value_name = "OP")]
    pub op: Vec<Op>,
    /// Block sizes from 4KiB to 4MiB; those that are no multiple of 512 bytes are the store's alone
    #[arg(long, value_parser = block, value_delimiter = ',', value_name = "SIZE")]
    pub block: Vec<u32>,
    /// Operations each client keeps in flight, 1 to 128
    #[arg(long, value_delimiter = ',', value_name = "N")]
    pub depth: Vec<u32>,
    /// Client threads, 1 to 64
    #[arg(long, value_delimiter = ',', value_name = "N")]
    pub clients: Vec<u32>,
    /// Open loop at this number of operations per second, or percent of the slowest arm's maximum
    /// (80%)
    #[arg(long, value_parser = parse_rate, value_delimiter = ',', value_name = "RATE")]
    pub open: Vec<Rate>,
    /// Spacing of the planned starts of an open loop
    #[arg(long, value_enum, default_value = "poisson")]
    pub arrivals: Arrivals,
    /// Of 100 mixed operations, how many read
    #[arg(long, default_value = "70", value_name = "PERCENT",
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,
    /// Timed seconds of each arm in each round of each case
    #[arg(long, default_value = "0.4", value_name = "SECONDS")]
    pub seconds: f64,
    /// Seconds before the timed ones
    #[arg(long, default_value = "0.1", value_name = "SECONDS")]
    pub warm_up: f64,
    /// Rounds of each case; the order of the arms is reversed in every other one, so take an even
    /// number: a disk that allows bursts gives them to the first arm
    #[arg(long, default_value = "4", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Bytes of the volume that carry the pattern and are read and written; the store has twice as
    /// many, and a fourth of it blocks of each size
    #[arg(long, default_value = "1GiB", value_parser = bytes, value_name = "SIZE")]
    pub volume_size: u64,
    /// Move blocks between a volume in --dir and the memory of this GPU, by every mechanism there
    /// is, instead of measuring host memory; --op, --block, --rounds, --seconds, --json and
    /// --hdr-log are heeded
    #[arg(long, value_name = "INDEX")]
    pub gpu: Option<u32>,
    /// Directory of the embedded file volume; given more than once, the volume is striped over a
    /// file in each
    #[arg(long = "dir", value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Make the embedded volume on these devices instead, named as for `kvrail volume create`;
    /// they must be blank (but see --overwrite) and carry no label afterwards
    #[arg(long = "member", value_name = "MEMBER", value_delimiter = ',',
          conflicts_with_all = ["dirs", "attach"])]
    pub members: Vec<Selector>,
    /// Use the sidecar that listens here instead of starting one
    #[arg(long, value_name = "SOCKET")]
    pub attach: Option<PathBuf>,
    /// Volume of that sidecar; --trace needs --store-volume alone
    #[arg(long, value_name = "NAME", requires = "attach")]
    pub volume: Option<String>,
    /// Another volume of it on a null device, for the lanes
    #[arg(long, value_name = "NAME", requires = "attach")]
    pub null_volume: Option<String>,
    /// A store of that sidecar, for blocks in a namespace of the benchmark's own
    #[arg(long, value_name = "NAME", requires = "attach")]
    pub store_volume: Option<String>,
    /// Allow the benchmark to overwrite that volume, or foreign data on the members
    #[arg(long)]
    pub overwrite: bool,
    /// Ring mode of the sidecar that is started, or `auto`; by default the configured one
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub mode: Option<String>,
    /// How kvrail's client threads wait for completions
    #[arg(long, value_enum, default_value = "adaptive")]
    pub client_wait: ClientWait,
    /// Cores of the client threads of every arm, in turn; by default raw's run where the pollers
    /// do, and kvrail's where no poller does, or with less than 4 cores where the kernel puts them
    #[arg(long, value_delimiter = ',', value_name = "CORE")]
    pub client_cores: Vec<u32>,
    /// Play a trace of an engine's requests against the store instead: each looks its blocks up,
    /// gets the prefix that is there and puts the rest, all bytes compared. One JSON object a line,
    /// as for `kvrail store replay`, whose hits for this store are shown beside. --block (1MiB),
    /// --depth (32) and --clients (4) take one value; --volume-size is what the store's blocks take
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["op", "open", "gpu", "members", "hdr_log"])]
    pub trace: Option<PathBuf>,
    /// Play at most this number of requests from the start of that trace
    #[arg(long, value_name = "N", requires = "trace")]
    pub requests: Option<usize>,
    /// Measure the keyed store: alone, or beside the arm `files` of --arms, where `kvrail` then is
    /// the store, with 1 MiB, 70 % gets and 8 clients unless a case is chosen
    #[arg(long)]
    pub store: bool,
    /// How much faster than recorded a trace is replayed; 1e6 is as fast as it goes
    #[arg(long, default_value = "1", value_name = "FACTOR")]
    pub speed: f64,
    /// Seed of all offsets and schedules
    #[arg(long, default_value = "1", value_name = "N")]
    pub seed: u64,
    /// Write the results as JSON too, whatever is printed
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write all histograms as an HdrHistogram interval log
    #[arg(long, value_name = "FILE")]
    pub hdr_log: Option<PathBuf>,
    /// Set by the program: the reader of standard error.
    #[arg(skip)]
    pub progress: Progress,
}

/// Messages on standard error while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Nothing.
    #[default]
    Hidden,
    /// A bar on a terminal, else a line for each stage and case.
    Shown,
}

/// How a trace of requests is played.
#[derive(Clone, Debug, Serialize)]
pub struct TraceOptions {
    /// Its file.
    pub trace: PathBuf,
    /// Bytes of each block.
    pub block_bytes: u32,
    /// Blocks in flight, of each client.
    pub depth: u32,
    /// Clients, each with a thread and a queue of its own.
    pub clients: u32,
    /// Requests that are played at most.
    #[serde(rename = "requests_max")]
    pub requests: Option<usize>,
}

/// The one value of an option, or the usual one.
fn one(name: &str, values: &[u32], usual: u32, least: u32, most: u32) -> Result<u32> {
    ensure!(values.len() <= 1, "{name}: --trace takes one value, not {}", values.len());
    let value = values.first().copied().unwrap_or(usual);
    ensure!((least..=most).contains(&value), "{name} {value}: must be {least} to {most}");
    Ok(value)
}

/// Checks what is given on as it stands: the sidecar reads it from its configuration.
fn parse_mode(text: &str) -> Result<String, UnknownMode> {
    if text != "auto" {
        text.parse::<ModeName>()?;
    }
    Ok(text.to_owned())
}

fn bytes(text: &str) -> Result<u64, String> {
    text.parse().map(Size::bytes)
}

fn block(text: &str) -> Result<u32, String> {
    u32::try_from(bytes(text)?).map_err(|_| format!("{text:?} is too large for a block"))
}

impl BenchOptions {
    /// The directories of the embedded volume's files, or this one where none is named.
    #[must_use]
    pub fn dirs_or(&self, usual: &Path) -> Vec<PathBuf> {
        if self.dirs.is_empty() { vec![usual.to_owned()] } else { self.dirs.clone() }
    }

    /// The arms that were named; none: all that this machine has.
    #[must_use]
    pub fn named_arms(&self) -> Vec<ArmName> {
        match (self.store, self.arms.as_slice()) {
            (false, named) => named.to_vec(),
            (true, []) => vec![ArmName::Store],
            (true, named) => {
                let keyed = |arm: &ArmName| match arm {
                    ArmName::Kvrail => ArmName::Store,
                    other => *other,
                };
                named.iter().map(keyed).collect()
            }
        }
    }

    /// Checks that the arms beside a store have keys.
    fn check_arms(&self) -> Result<()> {
        let keyed = [ArmName::Store, ArmName::Files];
        ensure!(
            !self.store || self.named_arms().iter().all(|arm| keyed.contains(arm)),
            "--store measures arms that have keys: kvrail and files; leave --store out for the \
             others"
        );
        Ok(())
    }

    /// Whether an arm takes part where the machine has it.
    #[must_use]
    pub fn wants(&self, arm: ArmName) -> bool {
        self.named_arms().is_empty() || self.named_arms().contains(&arm)
    }

    /// Bytes of the store to make; none where the arm is not wanted. It cannot share devices with
    /// the volume, only the file system of its files.
    #[must_use]
    pub fn store_bytes(&self) -> Option<u64> {
        let wanted =
            self.trace.is_some() || self.wants(ArmName::Store) || self.wants(ArmName::Memory);
        (wanted && self.members.is_empty()).then(|| self.store_bytes_min())
    }

    /// The layout of each member of a store for a trace: as `kvrail store replay` has it for a
    /// store of the same number of blocks.
    ///
    /// # Errors
    /// Names the option and the limit where no store can have this layout.
    pub fn store_shape(&self, members: u64) -> Result<MemberShape> {
        let serving = self.serving()?;
        let blocks = self.volume_size / u64::from(serving.block_bytes) / members;
        MemberShape::of(blocks, serving.block_bytes).with_context(|| {
            format!(
                "--volume-size {}: no store has {blocks} blocks of --block {} on each of {members} \
                 members: it has {SEGMENTS_MIN} to {SEGMENTS_MAX} segments of one or more; name \
                 another size",
                Size::new(self.volume_size),
                Size::new(serving.block_bytes.into())
            )
        })
    }

    /// Sizes of the blocks that the memory tier is asked for.
    #[must_use]
    pub fn hot_blocks(&self) -> Vec<u32> {
        let mut sizes = self.block.clone();
        sizes.dedup();
        if sizes.is_empty() { HOT_BLOCKS.to_vec() } else { sizes }
    }

    /// Bytes of a store, ours or another's.
    #[must_use]
    pub fn store_bytes_min(&self) -> u64 {
        (2 * self.volume_size).max(STORE_BYTES_MIN)
    }

    /// How a trace of requests is to be played.
    ///
    /// # Errors
    /// Names the option, the value and the limit.
    pub fn serving(&self) -> Result<TraceOptions> {
        self.check_speed()?;
        let trace = self.trace.clone().context("--trace names no file")?;
        ensure!(
            self.named_arms().iter().all(|arm| [ArmName::Kvrail, ArmName::Store].contains(arm)),
            "--arms: --trace is played against the store alone; leave --arms out"
        );
        ensure!(
            self.attach.is_none() || self.store_volume.is_some(),
            "--attach: name the store to play --trace against with --store-volume"
        );
        let [block_bytes, depth, clients] = [
            one("--block", &self.block, SERVED_BLOCK_BYTES, 1, u32::MAX)?,
            one("--depth", &self.depth, SERVED_DEPTH, 1, crate::plan::DEPTH_MAX)?,
            one("--clients", &self.clients, SERVED_CLIENTS, 1, crate::plan::CLIENTS_MAX)?,
        ];
        Ok(TraceOptions { trace, block_bytes, depth, clients, requests: self.requests })
    }

    /// Checks the options against each other; the cases that they ask for.
    ///
    /// # Errors
    /// Names the option, the value and the limit.
    pub fn cases(&self) -> Result<Vec<Case>> {
        self.check_times()?;
        self.check_arms()?;
        ensure!(
            (self.speed - 1.0).abs() < f64::EPSILON,
            "--speed {}: there is nothing to be replayed; name a file with --trace",
            self.speed
        );
        ensure!(self.attach.is_none() || self.volume.is_some(), "--attach: name a --volume of it");
        ensure!(
            self.attach.is_none() || self.overwrite,
            "the benchmark overwrites the volume it runs on with its pattern; add --overwrite if \
             the content of {} may go",
            self.volume.as_deref().unwrap_or("the volume")
        );
        ensure!(
            !self.overwrite || self.attach.is_some() || !self.members.is_empty(),
            "--overwrite is for --attach or --member; the embedded file is new"
        );
        let axes = Axes {
            ops: self.op.clone(),
            blocks: self.block.clone(),
            depths: self.depth.clone(),
            clients: self.clients.clone(),
            rates: self.open.clone(),
        };
        let beside = self.store && !self.arms.is_empty() && !axes.chosen();
        let cases = if beside { vec![keyed_case()] } else { axes.cases()? };
        for case in &cases {
            ensure!(
                case.span_bytes_min() <= self.volume_size,
                "{case} needs {} so that no two operations meet; give --volume-size {} or more",
                Size::new(case.span_bytes_min()),
                Size::new(case.span_bytes_min())
            );
        }
        Ok(cases)
    }

    fn check_speed(&self) -> Result<()> {
        let (speed, least) = (self.speed, 1.0 / SPEED_MAX);
        ensure!(
            (least..=SPEED_MAX).contains(&speed),
            "--speed {speed}: must be {least} to {SPEED_MAX}"
        );
        Ok(())
    }

    /// Checks the times of a run.
    ///
    /// # Errors
    /// Names the option, the value and the limit.
    pub fn check_times(&self) -> Result<()> {
        let (seconds, warm_up) = (self.seconds, self.warm_up);
        ensure!(
            seconds > 0.0 && seconds <= SECONDS_MAX,
            "--seconds {seconds}: must be above 0 and at most {SECONDS_MAX}"
        );
        ensure!(
            (0.0..=SECONDS_MAX).contains(&warm_up),
            "--warm-up {warm_up}: must be 0 to {SECONDS_MAX}"
        );
        Ok(())
    }

    /// Looks whether the files of results can be written, before minutes are spent on them.
    ///
    /// # Errors
    /// Names the file and the reason.
    pub fn check_files(&self) -> Result<()> {
        for path in [&self.json, &self.hdr_log].into_iter().flatten() {
            let named = || format!("{}: cannot be written", path.display());
            ensure!(!path.is_dir(), "{}: it is a directory", named());
            let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let place = if path.exists() { path } else { folder.unwrap_or(Path::new(".")) };
            access(place, Access::WRITE_OK).with_context(named)?;
        }
        Ok(())
    }

    /// The timed part of a run.
    #[must_use]
    pub fn timed(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// The part before it.
    #[must_use]
    pub fn warm_up(&self) -> Duration {
        Duration::from_secs_f64(self.warm_up)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kvrail_device::ModeName;

    use super::{ArmName, BenchOptions};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchOptions,
    }

    fn parse(line: &str) -> Result<BenchOptions, String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.bench).map_err(|error| error.to_string())
    }

    #[test]
    fn without_options_the_default_cases_run() {
        let options = parse("").unwrap();
        let cases = options.cases().unwrap();
        assert_eq!(cases, crate::plan::default_cases());
        assert_eq!(options.rounds, 4);
    }

    #[test]
    fn a_matrix_and_arms_are_read() {
        let options = parse("--arms kvrail,raw,raw:sqpoll --block 4KiB,1MiB --depth 1,8");
        let options = options.unwrap();
        let cases = options.cases().unwrap();
        assert_eq!(cases.len(), 4);
        let wanted = [ArmName::Kvrail, ArmName::Raw(None), ArmName::Raw(Some(ModeName::Sqpoll))];
        assert_eq!(options.arms, wanted);
    }

    #[test]
    fn arms_beside_a_store_have_keys_and_a_case_of_their_own() {
        let options = parse("--store --arms kvrail,files").unwrap();
        assert_eq!(options.named_arms(), [ArmName::Store, ArmName::Files]);
        let cases = options.cases().unwrap();
        assert_eq!(cases, [crate::plan::keyed_case()]);
        let options = parse("--store --arms kvrail,files --op read --block 4KiB --depth 1");
        let cases = options.unwrap().cases().unwrap();
        assert_eq!(cases.len(), 1);
        assert_eq!(parse("--store").unwrap().named_arms(), [ArmName::Store]);
        let said = parse("--store --arms kvrail,raw").unwrap().cases().unwrap_err().to_string();
        assert!(said.contains("leave --store out"), "{said}");
    }

    #[test]
    fn what_cannot_be_is_said() {
        let cases = [
            ("--block 4K", "256KiB"),
            ("--arms spdk", "raw:MODE"),
            ("--open fast", "80%"),
            ("--trace t --op read", "--op"),
            ("--member pci:zz", "0000:3b:00.0"),
            ("--mode uring", "sqpoll+iopoll"),
            ("--member /dev/nvme0n1 --dir /x", "--dir"),
        ];
        for (line, named) in cases {
            let said = parse(line).unwrap_err();
            assert!(said.contains(named), "{line}: {said}");
        }
        let cases = [
            ("--seconds 0", "--seconds 0"),
            ("--seconds 1e300", "86400"),
            ("--seconds nan", "86400"),
            ("--warm-up inf", "86400"),
            ("--speed 2", "--trace"),
            ("--open 1e12", "100000000"),
            ("--open 1e300%", "1000"),
            ("--depth 200", "--depth 200"),
            ("--block 4MiB --depth 128 --clients 8", "--volume-size 4GiB"),
            ("--attach /s", "--volume"),
            ("--attach /s --volume v", "--overwrite"),
            ("--overwrite", "--member"),
        ];
        for (line, named) in cases {
            let said = parse(line).unwrap().cases().unwrap_err().to_string();
            assert!(said.contains(named), "{line}: {said}");
        }
        let cases = [
            ("--trace t --speed 0", "--speed 0"),
            ("--trace t --speed 1e-300", "0.000001"),
            ("--trace t --arms kvrail,files", "leave --arms out"),
            ("--trace t --attach /s --volume v", "--store-volume"),
        ];
        for (line, named) in cases {
            let said = parse(line).unwrap().serving().unwrap_err().to_string();
            assert!(said.contains(named), "{line}: {said}");
        }
        parse("--trace t --arms store --attach /s --store-volume v").unwrap().serving().unwrap();
    }
}
