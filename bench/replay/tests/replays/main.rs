//! Replays of generated traces: what must hold for any of them. Every scenario prints its seed
//! when it fails; `KVRAIL_STORE_SEED` is the first one, `KVRAIL_STORE_CASES` how many.

mod chats;
mod odd;
mod prefix;

use kvrail_replay::{Placement, Plan, Policy, Report, Run, Trace, replay};

/// Runs a scenario for one seed after another.
fn each_seed(name: &str, cases: u64, scenario: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first: u64 = number("KVRAIL_STORE_SEED").unwrap_or(1);
    let cases: u64 = number("KVRAIL_STORE_CASES").unwrap_or(cases);
    println!("{name}: seeds {first} to {}", first + cases - 1);
    for seed in first..first + cases {
        let run = std::panic::AssertUnwindSafe(|| scenario(seed));
        if let Err(why) = std::panic::catch_unwind(run) {
            eprintln!("{name}: failed with KVRAIL_STORE_SEED={seed} KVRAIL_STORE_CASES=1");
            std::panic::resume_unwind(why);
        }
    }
}

fn read(text: &str) -> Trace {
    Trace::read(text.as_bytes(), "generated".as_ref(), &mut |_| {}).unwrap()
}

fn run(trace: &Trace, sizes: &str, policies: &[Policy], block_bytes: u32) -> Report {
    run_on(1, trace, sizes, policies, block_bytes)
}

/// As `run`, with a store of so many members.
fn run_on(
    members: u16,
    trace: &Trace,
    sizes: &str,
    policies: &[Policy],
    block_bytes: u32,
) -> Report {
    let sizes = sizes.split(',').map(|size| size.parse().unwrap()).collect();
    let policies = policies.to_vec();
    let placement = Placement::Hash;
    let plan = Plan { sizes, policies, block_bytes, members, placement };
    let mut asked = 0;
    let report = replay(trace, &plan, &mut |more| asked += more).unwrap();
    let ran = report.runs.len() as u64;
    assert_eq!(asked, trace.asked() * ran, "progress comes to its end");
    report
}

fn of(report: &Report, policy: Policy) -> impl Iterator<Item = &Run> {
    report.runs.iter().filter(move |run| run.policy == policy.to_string())
}
