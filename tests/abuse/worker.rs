//! The processes of a run: clients that answer with figures, and the abuser.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kvrail_tests::Fuse;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;

use crate::catalog::{Abuser, FUSE, User};
use crate::ground::{GUEST, Ground, STRANGER, is_root};
use crate::seats::on;

/// How long a process may take until it is at work.
const START: Duration = Duration::from_secs(60);

/// Longest attack: an abuser that is not killed ends by itself.
const ATTACK_SECONDS: &str = "300";

/// A process of the helper program, killed at the end.
#[derive(Debug)]
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    complaints: PathBuf,
}

impl Process {
    fn start(mut command: Command, cores: &[u32], ground: &Ground, name: &str) -> Result<Self> {
        let (complaints, file) = ground.transcript(name)?;
        command.stdout(Stdio::piped()).stderr(file).env("RUST_BACKTRACE", "0");
        let mut child = on(cores, || command.spawn()).context("kvrail-actor does not start")?;
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Self { child, output, complaints })
    }

    /// The next line of its standard output, or `None` after the timeout.
    fn line(&mut self, patience: Duration) -> Result<Option<String>> {
        let mut ready = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
        if poll(&mut ready, Some(&Timespec::try_from(patience)?))? == 0 {
            return Ok(None);
        }
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(!line.is_empty(), "ended by itself: {}", self.complaint());
        Ok(Some(line.trim().to_owned()))
    }

    /// Its standard error, without notes.
    fn complaint(&self) -> String {
        let stderr = fs::read_to_string(&self.complaints).unwrap_or_default();
        let lines: Vec<_> = stderr.lines().filter(|line| !line.starts_with("note:")).collect();
        lines.join(" ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A well-behaved client, which runs a round for each line that it reads.
#[derive(Debug)]
pub(crate) struct Worker {
    process: Process,
    input: ChildStdin,
}

impl Worker {
    /// Starts one and waits until it has attached.
    pub(crate) fn start(words: &[&str], cores: &[u32], ground: &Ground) -> Result<Self> {
        let mut command = ground.actor();
        command.arg(words[0]).arg(ground.socket()).args(&words[1..]).stdin(Stdio::piped());
        let mut process = Process::start(command, cores, ground, words[0])?;
        let input = process.child.stdin.take().expect("piped");
        match process.line(START)?.as_deref() {
            Some("running") => Ok(Self { process, input }),
            other => bail!("the {} client did not attach: {other:?}", words[0]),
        }
    }

    /// Begins a round.
    pub(crate) fn begin(&mut self, round: Duration) -> Result<()> {
        Ok(writeln!(self.input, "{}", round.as_secs_f64())?)
    }

    /// Its figures, or `None` after the timeout.
    pub(crate) fn figures<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<Option<T>> {
        let Some(line) = self.process.line(patience)? else { return Ok(None) };
        serde_json::from_str(&line).map(Some).with_context(|| line)
    }
}

/// An abuser at work, until it is dropped.
#[derive(Debug)]
pub(crate) struct Attack {
    /// Dropped first: its end answers every request that the abuser may wait for.
    _files: Option<Fuse>,
    process: Process,
}

/// Outcome of the start of an attack.
#[derive(Debug)]
pub(crate) enum Start {
    /// The abuser runs.
    Running(Attack),
    /// This machine lacks something that the abuser needs.
    Skipped(String),
}

impl Attack {
    /// Starts an abuser and waits until it is at work.
    pub(crate) fn start(abuser: &Abuser, cores: &[u32], ground: &Ground) -> Result<Start> {
        let mut command = ground.actor();
        command.args(["hostile", abuser.kind]).arg(ground.socket());
        command.args([abuser.volume, ATTACK_SECONDS]).stdin(Stdio::null());
        let files = match abuser.name {
            FUSE => match ground.unanswering_files() {
                Ok(files) => Some(files),
                Err(why) => return Ok(Start::Skipped(why)),
            },
            _ => None,
        };
        command.args(files.as_ref().map(Fuse::file));
        let user = match abuser.user {
            User::Guest | User::Apart => GUEST,
            User::Stranger => STRANGER,
        };
        if is_root() {
            command.uid(user).gid(user);
        }
        let mut process = Process::start(command, cores, ground, "abuser")?;
        process.line(START)?.context("did not begin")?;
        Ok(Start::Running(Self { _files: files, process }))
    }

    /// An error when the abuser has ended by itself.
    pub(crate) fn look(&mut self) -> Result<()> {
        match self.process.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("ended by itself, {status}: {}", self.process.complaint()),
        }
    }
}

/// The programs of this build lie in the folder of this one.
pub(crate) fn programs() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().map(Path::to_owned).context("a program lies in a folder")?;
    ensure!(
        folder.join("kvrail").is_file(),
        "{} has no kvrail: run `scripts/dev abuse`, which builds it first",
        folder.display()
    );
    Ok(folder)
}
