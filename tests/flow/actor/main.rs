//! A process of the flows: a well-behaved or hostile client, or another program under a
//! restriction. Its arguments define its work; the environment does not matter.
//!
//! ```text
//! kvrail-actor traffic PLAN.JSON-AS-TEXT
//! kvrail-actor gpu PLAN.JSON-AS-TEXT
//! kvrail-actor quiet SOCKET VOLUME
//! kvrail-actor keyed PLAN.JSON-AS-TEXT
//! kvrail-actor twin|hold|half|noise SOCKET VOLUME SPACE NUMBER
//! kvrail-actor control SOCKET
//! kvrail-actor steady SOCKET VOLUME SPACE
//! kvrail-actor fill SOCKET VOLUME SPACE FIRST COUNT BYTES
//! kvrail-actor hostile KIND SOCKET VOLUME SECONDS [FILE]
//! kvrail-actor confined on|off FOLDER
//! kvrail-actor under RESTRICTION... -- PROGRAM ARGUMENTS
//! ```
#![forbid(unsafe_code)]

mod confined;
mod hostile;
mod keyed;
mod rude;
mod under;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use kvrail_tests::{Control, GpuPlan, Plan, Quiet, drive, drive_gpu};
use serde::Serialize;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (verb, rest) = arguments.split_first().expect("a verb");
    match verb.as_str() {
        "traffic" => traffic(&rest[0]),
        "gpu" => gpu(&rest[0]),
        "quiet" => {
            let mut quiet = Quiet::attach(Path::new(&rest[0]), &rest[1]).expect("a session");
            rounds(|time| quiet.round(time));
        }
        "control" => {
            let mut control = Control::attach(Path::new(&rest[0])).expect("a session");
            rounds(|time| control.round(time));
        }
        "keyed" => keyed::process(&rest[0]),
        "fill" => keyed::fill(rest),
        "steady" => keyed::steady(Path::new(&rest[0]), &rest[1], &rest[2]),
        "twin" | "hold" | "half" | "noise" => keyed::role(verb, rest),
        "hostile" => hostile::run(rest),
        "confined" => confined::run(rest),
        "under" => under::run(rest),
        other => panic!("no verb {other}"),
    }
}

/// Runs a plan; prints `running` once all threads are at work, and the tally at the end.
fn traffic(plan: &str) {
    let plan: Plan = serde_json::from_str(plan).expect("a plan");
    let tally = drive(&plan, || print_line("running")).expect("a session");
    print_line(&serde_json::to_string(&tally).expect("plain figures"));
}

/// The same for blocks of a GPU; `running` once each block was written.
fn gpu(plan: &str) {
    let plan: GpuPlan = serde_json::from_str(plan).expect("a plan");
    let tally = drive_gpu(&plan, || print_line("running")).expect("a session");
    print_line(&serde_json::to_string(&tally).expect("plain figures"));
}

/// Prints `running`, then runs a round of the given seconds for each line of standard input, and
/// prints its figures.
fn rounds<T: Serialize>(mut round: impl FnMut(Duration) -> T) {
    print_line("running");
    for line in std::io::stdin().lines() {
        let seconds = line.expect("text").parse().expect("seconds");
        let figures = round(Duration::from_secs_f64(seconds));
        print_line(&serde_json::to_string(&figures).expect("plain figures"));
    }
}

/// Prints one line for the parent process.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("a reader");
}
