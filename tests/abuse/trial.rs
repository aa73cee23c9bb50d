//! One abuser: rounds with and without it in turns, then the resources that the sidecar keeps.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kvrail_tests::{ControlRound, QuietRound};

use crate::belongings::Belongings;
use crate::catalog::{Abuser, User, VOLUME};
use crate::ground::{Ground, is_root};
use crate::seats::Seats;
use crate::worker::{Attack, Start, Worker};

/// How much longer than a round its figures may take before the abuser is killed.
const LATE: Duration = Duration::from_secs(20);

/// How much longer than that they may take before the trial fails.
const TOO_LATE: Duration = Duration::from_secs(90);

/// How long the sidecar may take to free the resources of a dead abuser.
const SETTLED: Duration = Duration::from_secs(10);

/// Figures of both clients for one round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    pub(crate) quiet: QuietRound,
    pub(crate) control: ControlRound,
}

/// All rounds of one abuser.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    pub(crate) alone: Vec<Round>,
    pub(crate) beside: Vec<Round>,
    /// Faults, in words.
    pub(crate) faults: Vec<String>,
    /// Why there were no rounds.
    pub(crate) skipped: Option<String>,
}

/// The sidecar with its two well-behaved clients.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    ground: &'a mut Ground,
    seats: &'a Seats,
    quiet: Worker,
    control: Worker,
    time: Duration,
    before: Belongings,
}

impl<'a> Scene<'a> {
    /// Starts both clients, warms them up, and records the resources of the sidecar.
    pub(crate) fn set(ground: &'a mut Ground, seats: &'a Seats, time: Duration) -> Result<Self> {
        let quiet = Worker::start(&["quiet", VOLUME], &seats.quiet(), ground)?;
        let control = Worker::start(&["control"], &seats.control(), ground)?;
        let before = Belongings::of(ground.pid())?;
        let mut scene = Self { ground, seats, quiet, control, time, before };
        scene.round(&mut None)?;
        scene.before = Belongings::settled(scene.ground.pid())?;
        Ok(scene)
    }

    /// Whether the sidecar lives.
    pub(crate) fn lives(&mut self) -> bool {
        self.ground.lives()
    }

    /// This number of rounds with one abuser.
    pub(crate) fn trial(&mut self, abuser: &Abuser, rounds: u32) -> Result<Rounds> {
        let mut all = Rounds { skipped: unavailable(abuser.user), ..Rounds::default() };
        for _ in 0..rounds {
            if all.skipped.is_some() || !all.faults.is_empty() {
                break;
            }
            all.alone.push(self.round(&mut None)?);
            match Attack::start(abuser, &self.seats.abuser(), self.ground) {
                Ok(Start::Skipped(why)) => all.skipped = Some(why),
                Ok(Start::Running(attack)) => self.beside(attack, &mut all)?,
                Err(error) => all.faults.push(format!("the abuser {error}")),
            }
        }
        let both = all.alone.iter().chain(&all.beside);
        all.faults.extend(both.flat_map(|round| wrong(&round.quiet)));
        Ok(all)
    }

    fn beside(&mut self, attack: Attack, all: &mut Rounds) -> Result<()> {
        let mut attack = Some(attack);
        let round = self.round(&mut attack);
        let ended = attack.as_mut().map_or(Ok(()), Attack::look);
        drop(attack);
        if !self.lives() {
            all.faults.push(format!("the sidecar died: {}", self.ground.stderr()));
            return Ok(());
        }
        all.beside.push(round?);
        all.faults.extend(ended.err().map(|error| format!("the abuser {error}")));
        all.faults.extend(self.left_behind()?);
        Ok(())
    }

    /// One round of both clients. An attack that keeps a client from answering is ended.
    fn round(&mut self, attack: &mut Option<Attack>) -> Result<Round> {
        self.quiet.begin(self.time)?;
        self.control.begin(self.time)?;
        let patience = self.time + LATE;
        let quiet = match self.quiet.figures(patience)? {
            Some(figures) => figures,
            None => {
                attack.take();
                self.quiet.figures(TOO_LATE)?.context("the quiet client hangs")?
            }
        };
        let control = match self.control.figures(patience)? {
            Some(figures) => figures,
            None => {
                attack.take();
                self.control.figures(TOO_LATE)?.context("the control client hangs")?
            }
        };
        Ok(Round { quiet, control })
    }

    /// Waits until the sidecar holds the resources of the start; returns the surplus.
    fn left_behind(&mut self) -> Result<Vec<String>> {
        let start = Instant::now();
        loop {
            // An empty round: the control client attaches again if its session has ended.
            self.control.begin(Duration::ZERO)?;
            let answered = self.control.figures::<ControlRound>(TOO_LATE)?;
            ensure!(answered.is_some(), "the control client hangs without an abuser");
            let more = Belongings::of(self.ground.pid())?.beyond(&self.before);
            if more.is_empty() || start.elapsed() > SETTLED {
                return Ok(more);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Why this process cannot start an abuser.
fn unavailable(user: User) -> Option<String> {
    let why = match user {
        _ if is_root() => return None,
        User::Guest => return None,
        User::Apart => "it needs a user id of its own: run as root",
        User::Stranger => "it needs a user that may not attach: run as root",
    };
    Some(why.to_owned())
}

fn wrong(round: &QuietRound) -> Option<String> {
    let QuietRound { wrong, errors, .. } = *round;
    let first = round.first.as_deref().unwrap_or_default();
    (wrong + errors > 0)
        .then(|| format!("quiet client: {wrong} sectors wrong, {errors} errors: {first}"))
}
