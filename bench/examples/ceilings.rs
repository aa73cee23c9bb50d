//! What this machine's storage and cores can do without kvrail: the raw arm (and fio) on a plain
//! file, and the lanes' ceilings. Takes the options of `kvrail bench`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use kvrail_bench::{BenchOptions, FileHarness, Format, Verdict, command};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    bench: BenchOptions,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Cli::parse().bench;
    let (mut harness, mut out) = (FileHarness::default(), std::io::stdout());
    let verdict = command(&options, &mut harness, Format::Table, &mut out)?;
    Ok(if verdict == Verdict::Clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
