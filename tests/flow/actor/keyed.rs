//! Clients of a store.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use kvrail_tests::{
    KeyedPlan, Seat, Steady, bytes_of, drive_keyed, half, hold, noise, role_seat, twin,
};

use crate::say;

/// Lines of standard input.
fn lines() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map(|line| line.expect("text"))
}

/// A process that works, and checks after each end of the sidecar.
pub(crate) fn process(plan: &str) {
    let plan: KeyedPlan = serde_json::from_str(plan).expect("a plan");
    drive_keyed(&plan, lines(), say);
}

/// Works over ends of the sidecar; says `running`, and the tally when standard input ends.
pub(crate) fn steady(socket: &Path, volume: &str, space: &str) {
    let over = AtomicBool::new(false);
    let tally = std::thread::scope(|scope| {
        scope.spawn(|| {
            lines().for_each(drop);
            over.store(true, Ordering::Relaxed);
        });
        let stop = || over.load(Ordering::Relaxed);
        Steady::new(socket, volume, space).run(|| say("running"), stop)
    });
    let tally = tally.expect("the sidecar comes back");
    say(&serde_json::to_string(&tally).expect("plain figures"));
}

/// `SOCKET VOLUME SPACE NUMBER`
pub(crate) fn role(verb: &str, words: &[String]) {
    let [socket, volume, space, number] = words else { panic!("SOCKET VOLUME SPACE NUMBER") };
    let options = role_seat(Path::new(socket), volume, space);
    let number: u64 = number.parse().expect("a number");
    match verb {
        "twin" => {
            // All begin at once, when they are told.
            let begin = || {
                say("ready");
                let _go = lines().next();
            };
            let tally = twin(&options, number, begin).expect("the sidecar stays");
            say(&serde_json::to_string(&tally).expect("plain figures"));
        }
        "hold" => {
            let mut seat = Seat::attach(&options).expect("a session");
            let held = hold(&mut seat, number).expect("the sidecar stays");
            say(&held.to_string());
            let _end = lines().next();
        }
        "half" => {
            let mut seat = Seat::attach(&options).expect("a session");
            let block = bytes_of(number, 1, 64 << 10);
            half(&mut seat, number, &block).expect("the first part is taken");
            say("half");
            let _end = lines().next();
        }
        "noise" => {
            say("running");
            let rounds = noise(&options, 3.0, number).expect("nonsense in lanes ends no session");
            say(&format!("{rounds} rounds"));
        }
        other => panic!("no role {other}"),
    }
}
