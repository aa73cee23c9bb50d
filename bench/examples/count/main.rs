//! Instructions a request costs in user space, counted under valgrind: they repeat where times do
//! not. `scripts/dev count` compares them with the stored baseline and fails on a regression. One
//! way through: `arms` lists the counted parts, `counter` runs this program once for each part
//! under callgrind, `subject` is what runs there, `baseline` compares.
#![forbid(unsafe_code)]

mod arms;
mod baseline;
mod counter;
mod keyed;
mod local;
mod sidecar;
mod subject;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::arms::{Arm, Part};
use crate::baseline::Known;
use crate::counter::Count;

/// How often an arm is counted that costs more than it may.
const TRIES: u32 = 3;

/// Counts user-space instructions per 4 KiB request, part by part.
///
/// Examples: `count`; `count --record`; `count --device /dev/nvme0n1 --arm iopoll`
#[derive(Debug, Parser)]
struct Cli {
    /// The arm to count; again for more. Without it: null, get, put, lookup, interrupt and
    /// raw:interrupt.
    #[arg(long = "arm", value_name = "null|get|put|lookup|MODE|raw:MODE")]
    arms: Vec<Arm>,
    /// File or device to read from; never written. Without it: a file of its own.
    #[arg(long)]
    device: Option<PathBuf>,
    /// The stored counts to compare with.
    #[arg(long, default_value = "bench/results/instructions.json")]
    baseline: PathBuf,
    /// Store what was counted as the new baseline.
    #[arg(long)]
    record: bool,
    /// Run what is to be counted; used by this program on itself, under valgrind.
    #[arg(long, hide = true)]
    part: Option<Part>,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let arms = if cli.arms.is_empty() { arms::usual() } else { cli.arms };
    if cli.part.is_some() {
        for arm in arms {
            subject::run(arm, cli.device.as_deref())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let scratch = tempfile::tempdir()?;
    let device = counter::device(cli.device)?;
    let known = baseline::read(&cli.baseline)?;
    let counts = arms
        .into_iter()
        .map(|arm| count(arm, (&device, scratch.path()), &known))
        .collect::<Result<Vec<_>>>()?;
    println!("{}", baseline::table(&counts, &known));
    if cli.record {
        baseline::write(&cli.baseline, known, &counts)?;
        return Ok(ExitCode::SUCCESS);
    }
    let worse = baseline::regressions(&counts, &known);
    worse.iter().for_each(|line| eprintln!("{line}"));
    Ok(if worse.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Counts an arm. A device that is slow for a moment ends requests one by one, and its poller looks
/// in vain: that only ever adds, so of several tries the least counts.
fn count(arm: Arm, (device, scratch): (&Path, &Path), known: &Known) -> Result<Count> {
    let mut least = counter::count(arm, device, scratch)?;
    for _ in 1..TRIES {
        if !baseline::is_worse(&least, known) {
            break;
        }
        let again = counter::count(arm, device, scratch)?;
        if again.total() < least.total() {
            least = again;
        }
    }
    Ok(least)
}
