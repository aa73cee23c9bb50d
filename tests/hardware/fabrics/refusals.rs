//! What cannot be connected: each ends soon, with cause and remedy, and leaves nothing.

use std::time::{Duration, Instant};

use super::target::{NQN, Target, Wish};
use super::traces;
use crate::rig::{kvrail, run};

/// Longest that any refusal may take: the deadline of 15 s, in a machine that is 15 times slower
/// at everything else.
const SOON: Duration = Duration::from_secs(40);

#[test]
fn whatever_is_wrong_is_said_soon_and_leaves_nothing() {
    let Some(target) = Target::ready() else { return };
    target.apply(&Wish::only("nqn.2026-11.org.example:another"));
    let before = traces();
    let known = format!("-n {NQN}");
    let cases: &[(&str, &str, i32, &[&str])] = &[
        // Nobody has these addresses; a packet to them is lost.
        ("connect -t tcp -a 192.0.2.77", &known, 1, &["192.0.2.77", "does not answer"]),
        ("connect -t rdma -a 192.0.2.77", &known, 1, &["192.0.2.77", "does not answer"]),
        ("discover -t tcp -a 192.0.2.77", "", 1, &["does not answer"]),
        // Nobody listens there.
        ("connect -t tcp -a 192.0.2.1 -s 5555", &known, 1, &["refused", "check the port"]),
        ("connect -t rdma -a 192.0.2.1 -s 5555", &known, 1, &["5555", "--trsvcid"]),
        // This host is not allowed.
        ("connect -t tcp -a 192.0.2.1 -s 4421", &known, 1, &["not allowed", "allows this host"]),
        ("connect -t rdma -a 192.0.2.1 -s 4420", &known, 1, &["not allowed"]),
        ("connect -t loop", &known, 1, &["not allowed"]),
        // Nobody has this name.
        ("connect -t loop -n nqn.2026-11.org.example:none", "", 1, &["none", "exports --nqn"]),
        // Nothing to disconnect.
        ("disconnect", &known, 3, &["not connected"]),
        ("disconnect -d nvme77", "", 3, &["--device nvme77: not connected"]),
        ("disconnect -d nvme0", "", 3, &["local drive"]),
        ("set-iopolicy --iopolicy numa", &known, 3, &["not connected"]),
    ];
    for (words, more, status, said) in cases {
        let start = Instant::now();
        let outcome =
            run(kvrail().arg("host").args(words.split_whitespace()).args(more.split_whitespace()));
        assert!(start.elapsed() < SOON, "{words} took {:?}", start.elapsed());
        outcome.expect(*status, said);
        outcome.expect(*status, &["remedy: "]);
        assert_eq!(traces(), before, "{words} left something");
    }
}
