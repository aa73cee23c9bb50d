//! `scripts/dev abuse`: measures a quiet client and a client of the control thread with and without
//! each abuser, one abuser after the other.
//!
//! Starts a sidecar, two well-behaved clients and the abusers as processes of their own. Fails when
//! a byte was wrong, when the sidecar died, or when it kept a resource of an abuser; the aims for
//! latencies are printed, and only `--strict` fails for them.
#![forbid(unsafe_code)]

mod belongings;
mod catalog;
mod ground;
mod report;
mod seats;
mod table;
mod trial;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use kvrail_bench::environment::Environment;
use kvrail_client::Client;

use crate::catalog::{ABUSERS, Abuser};
use crate::ground::Ground;
use crate::report::{Report, Trial};
use crate::seats::Seats;
use crate::trial::Scene;

/// Measures a quiet client while each abuser runs.
#[derive(Debug, Parser)]
#[command(name = "scripts/dev abuse")]
struct Options {
    /// Only these abusers.
    names: Vec<String>,
    /// Prints the abusers and ends.
    #[arg(long)]
    list: bool,
    /// Seconds of one round.
    #[arg(long, default_value_t = 0.7)]
    seconds: f64,
    /// Rounds without each abuser, and the number of rounds with it.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// How the report is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Fails when an aim is missed, too.
    #[arg(long)]
    strict: bool,
    /// Folder of the volumes; by default that of the programs.
    #[arg(long)]
    dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if options.list {
        for abuser in ABUSERS {
            println!("{:16} {}", abuser.name, abuser.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let report = run(&options)?;
    match options.format {
        Format::Table => print!("{}", table::table(&report)),
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    let failed = report.faults() > 0 || (options.strict && report.missed() > 0);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The abusers on the command line, in the order of the table.
fn chosen(names: &[String]) -> Result<Vec<&'static Abuser>> {
    if let Some(name) = names.iter().find(|name| ABUSERS.iter().all(|abuser| abuser.name != **name))
    {
        bail!("no abuser {name:?}; `scripts/dev abuse --list` shows those there are");
    }
    let wanted =
        |abuser: &&Abuser| names.is_empty() || names.iter().any(|name| name == abuser.name);
    Ok(ABUSERS.iter().filter(wanted).collect())
}

fn run(options: &Options) -> Result<Report> {
    let abusers = chosen(&options.names)?;
    let time = Duration::try_from_secs_f64(options.seconds).context("--seconds")?;
    let programs = worker::programs()?;
    let data = options.dir.as_ref().unwrap_or(&programs);
    let seats = Seats::find();
    let mut ground = Ground::start(&programs, data, &seats)?;
    let mut report = Report {
        machine: Environment {
            rounds: options.rounds,
            seconds: options.seconds,
            ..Environment::probe(&ground.members())
        },
        mode: mode(&ground)?,
        cores: seats.words(),
        trials: Vec::new(),
        fault: None,
    };
    let mut scene = Scene::set(&mut ground, &seats, time)?;
    for (abuser, number) in abusers.iter().zip(1..) {
        eprintln!("{number}/{}: {}: {}", abusers.len(), abuser.name, abuser.what);
        let rounds = scene.trial(abuser, options.rounds)?;
        report.trials.push(Trial::new(abuser, rounds, &seats));
        if !scene.lives() {
            break; // the trial records the fault
        }
    }
    drop(scene);
    if ground.lives() {
        report.fault = ground.stop().err().map(|error| error.to_string());
    }
    Ok(report)
}

/// The ring mode in force.
fn mode(ground: &Ground) -> Result<String> {
    let status = Client::attach(ground.socket())?.status()?;
    let device = status.devices.first().context("a sidecar without devices")?;
    Ok(format!("mode {} ({}), {}", device.mode, device.reason, device.io))
}
