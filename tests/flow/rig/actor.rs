//! Client processes, and programs under a restriction.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use kvrail_client::Client;
use kvrail_tests::{GpuPlan, Plan, Tally};

use super::binary::{actor_program, without_configuration};
use super::{Place, Sidecar, eventually};
use crate::rig::place::VOLUME;

/// A process of the helper program; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Actor {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Actor {
    fn spawn(arguments: &[&str]) -> Self {
        let mut command = Command::new(actor_program());
        without_configuration(&mut command);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the helper starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, output }
    }

    /// Verified traffic of some threads.
    pub(crate) fn traffic(sidecar: &Sidecar, first_thread: u32, threads: u32, secs: f64) -> Self {
        let plan = Plan {
            socket: sidecar.socket().to_owned(),
            volume: VOLUME.into(),
            first_thread,
            threads,
            seconds: secs,
            seed: u64::from(first_thread) << 32 | u64::from(std::process::id()),
        };
        let plan = serde_json::to_string(&plan).expect("a plan is text");
        Self::spawn(&["traffic", &plan])
    }

    /// Verified traffic of a paged cache on a GPU.
    pub(crate) fn gpu(plan: &GpuPlan) -> Self {
        let plan = serde_json::to_string(plan).expect("a plan is text");
        Self::spawn(&["gpu", &plan])
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until all its threads are at work; false when it ended before.
    pub(crate) fn wait_until_running(&mut self) -> bool {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        line.trim() == "running"
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
    }

    /// The rest of its output, once it has ended well.
    pub(crate) fn finish(mut self) -> String {
        let mut words = String::new();
        self.output.read_to_string(&mut words).expect("its output");
        let status = self.child.wait().expect("our child");
        assert!(status.success(), "the helper ended with {status}: {words}");
        words
    }

    /// Its tally, once its traffic is over.
    pub(crate) fn tally(self) -> Tally {
        let words = self.finish();
        let last = words.lines().last().expect("a tally");
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {words}"))
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A process of the helper program that takes commands line by line.
#[derive(Debug)]
pub(crate) struct Worker {
    actor: Actor,
    input: ChildStdin,
}

impl Worker {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(actor_program());
        without_configuration(&mut command);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the helper starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { actor: Actor { child, output }, input }
    }

    pub(crate) fn send_line(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the helper reads");
    }

    /// Waits for its next line.
    pub(crate) fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.actor.output.read_line(&mut line).expect("its output");
        assert!(!line.is_empty(), "the helper ended");
        line.trim().to_owned()
    }

    /// Waits for a line, which must be this word.
    pub(crate) fn expect(&mut self, word: &str) {
        assert_eq!(self.next_line(), word);
    }

    /// Closes its standard input; returns its last line.
    pub(crate) fn end(self) -> String {
        let Self { actor, input } = self;
        drop(input);
        actor.finish().lines().last().expect("a last line").to_owned()
    }

    pub(crate) fn kill(self) {
        self.actor.kill();
    }
}

/// Kills them at any moment from their start on, and waits until their requests are finished:
/// nobody else may write their blocks before.
pub(crate) fn kill_at_random(mut victims: [Actor; 2], dice: &mut fastrand::Rng, watcher: &Client) {
    if dice.bool() {
        assert!(victims[0].wait_until_running(), "a victim ended by itself");
    }
    std::thread::sleep(Duration::from_millis(dice.u64(..300)));
    let pids = victims.each_ref().map(Actor::pid);
    victims.into_iter().for_each(Actor::kill);
    eventually("the dead are reclaimed", || {
        let report = watcher.status().expect("the sidecar answers");
        !report.sessions.iter().any(|session| pids.contains(&session.pid))
    });
}

/// An attack of this duration.
pub(crate) fn hostile(sidecar: &Sidecar, kind: &str, seconds: f64) -> Actor {
    let socket = sidecar.socket().to_str().expect("a plain path");
    Actor::spawn(&["hostile", kind, socket, VOLUME, &seconds.to_string()])
}

/// The same, made with a file.
pub(crate) fn hostile_with(sidecar: &Sidecar, kind: &str, seconds: f64, file: &Path) -> Actor {
    let socket = sidecar.socket().to_str().expect("a plain path");
    let file = file.to_str().expect("a plain path");
    Actor::spawn(&["hostile", kind, socket, VOLUME, &seconds.to_string(), file])
}

/// `kvrail serve` of this place under restrictions.
pub(crate) fn under(place: &Place, restrictions: &[&str]) -> Command {
    let serve = place.serve();
    let mut command = Command::new(actor_program());
    without_configuration(&mut command);
    command.arg("under").args(restrictions).arg("--");
    command.arg(serve.get_program()).args(serve.get_args());
    command
}
