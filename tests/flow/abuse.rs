//! `scripts/dev abuse`, with three abusers and one short round each: no byte is wrong, no resource
//! leaks, and the figures are there. Their values are not tested.

use std::process::Command;

use serde_json::Value;

use crate::rig::{run, without_configuration};

const ABUSERS: [&str; 3] = ["linger-surplus", "nops", "slots"];

#[test]
fn a_quiet_client_among_abusers() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvrail-abuse"));
    without_configuration(&mut command);
    command.args(ABUSERS).args(["--rounds", "1", "--seconds", "0.2", "--format", "json"]);
    let outcome = run(command.args(["--dir", env!("CARGO_TARGET_TMPDIR")]));
    outcome.expect(0, &ABUSERS);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let trials = report["trials"].as_array().expect("a list");
    assert_eq!(trials.len(), ABUSERS.len());
    for trial in trials {
        if let Some(why) = trial["skipped"].as_str() {
            println!("skipped: {}: {why}", trial["name"]);
            continue;
        }
        for side in [&trial["without"], &trial["beside"]] {
            assert!(side["operations"].as_u64() > Some(0), "{trial:#}");
            assert!(side["control"]["attach"]["count"].as_u64() > Some(0), "{trial:#}");
        }
    }
}

#[test]
fn abusers_are_listed_and_unknown_ones_refused() {
    let abuse = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvrail-abuse"));
        run(command.args(arguments))
    };
    let listed = abuse(&["--list"]);
    listed.expect(0, &[]);
    assert!(ABUSERS.iter().all(|name| listed.stdout.contains(name)), "{}", listed.stdout);
    abuse(&["unknown"]).expect(1, &["\"unknown\"", "--list"]);
}
