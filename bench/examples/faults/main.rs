//! Latencies of clients under a fault beside the data path, in turns with none:
//! `faults SECONDS ROUNDS (NAME SOCKET COMMAND)...`. `scripts/dev faults` starts the sidecars.
//!
//! Each round reads for some seconds at each socket while its command runs, which is one of bash,
//! or empty. Every read must end OK.
#![forbid(unsafe_code)]

#[path = "../scrape/reader.rs"]
mod reader;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kvrail_protocol::SessionReport;
use rustix::process::{Pid, Signal, kill_process_group};

use reader::{Reader, Round, medians};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The fault's process; its whole process group ends with it.
struct Disturbance(Child);

impl Disturbance {
    fn begin(command: &str) -> Result<Self, Failure> {
        let mut bash = Command::new("bash");
        bash.args(["-c", command]).process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(bash.spawn()?))
    }
}

impl Drop for Disturbance {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = kill_process_group(Pid::from_child(&self.0), Signal::TERM);
        let _ended = self.0.wait();
    }
}

/// One case: where is read, beside what, and what that took.
struct FaultArm<'a> {
    name: &'a str,
    reader: Reader,
    command: &'a str,
    rounds: Vec<Round>,
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, seconds, rounds, cases @ ..] = arguments.as_slice() else {
        return Err("usage: faults SECONDS ROUNDS (NAME SOCKET COMMAND)...".into());
    };
    let (time, rounds): (_, usize) = (Duration::from_secs_f64(seconds.parse()?), rounds.parse()?);
    let mut arms = Vec::new();
    for (number, case) in cases.chunks(3).enumerate() {
        let [name, socket, command] = case else {
            return Err("each case has a name, a socket and a command".into());
        };
        let reader = Reader::attach(Path::new(socket), number)?;
        arms.push(FaultArm { name, reader, command, rounds: Vec::new() });
    }
    for round in 0..rounds {
        // To and fro: what drifts hits all.
        if round % 2 == 1 {
            arms.reverse();
        }
        for arm in &mut arms {
            let disturbance = Disturbance::begin(arm.command)?;
            arm.rounds.push(arm.reader.read(time)?);
            drop(disturbance);
        }
        if round % 2 == 1 {
            arms.reverse();
        }
    }
    println!("a read of 4 KiB, us: median of {rounds} rounds (least, most)");
    for arm in &arms {
        println!("{:26} {}", arm.name, medians(&arm.rounds));
    }
    println!("what the sidecars count at the end");
    for arm in &arms {
        let report = arm.reader.status()?;
        let sum = |of: fn(&SessionReport) -> Option<u64>| {
            report.sessions.iter().filter_map(of).sum::<u64>()
        };
        println!(
            "{:26} {} requests accepted, {} completed, {} failed; {} log lines lost",
            arm.name,
            sum(|session| session.counters.accepted),
            sum(|session| session.counters.completed),
            sum(|session| session.counters.failed),
            report.sidecar.counters.log_lines_lost.map_or("-".to_owned(), |lost| lost.to_string())
        );
    }
    Ok(())
}
