//! What this machine's storage and cores can do without kvrail: the raw arm (and fio) on a plain
//! file, and the lanes' ceilings. Takes the options of `kvrail bench`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use kvrail_bench::{BenchOptions, FileHarness, Verdict, command};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    bench: BenchOptions,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Cli::parse().bench;
    let verdict = command(&options, &mut FileHarness::default(), &mut std::io::stdout())?;
    Ok(if verdict == Verdict::Clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
