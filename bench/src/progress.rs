//! How far a benchmark is, on standard error: a bar on a terminal, else lines.

use std::io::{IsTerminal, Write, stderr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cpu::{CpuMeter, LoadMeter};
use crate::options::Progress;
use crate::show::wrapped;

/// How long others are watched before anything is written.
const GLANCE: Duration = Duration::from_millis(250);

/// Warns on standard error of other work on this machine, before minutes are spent on figures that
/// do not compare. The report judges by the whole run.
pub(crate) fn warn_when_busy(progress: Progress) -> Result<()> {
    if progress == Progress::Shown {
        let meter = LoadMeter::begin(CpuMeter::new(&[])?);
        thread::sleep(GLANCE);
        let load = meter.load()?;
        if load.is_busy() {
            let words = load.words();
            let words = format!("the machine is busy, figures will not be comparable: {words}");
            let _nobody_reads = writeln!(stderr(), "{}", wrapped(&words));
        }
    }
    Ok(())
}

/// Shows it.
#[derive(Debug)]
pub(crate) struct ShownProgress {
    bar: ProgressBar,
    /// Since when, where lines are written.
    lines: Option<Instant>,
}

impl ShownProgress {
    pub(crate) fn new(progress: Progress) -> Self {
        let bar = match progress {
            // Hidden by the library when standard error is no terminal.
            Progress::Shown => ProgressDrawTarget::stderr(),
            Progress::Hidden => ProgressDrawTarget::hidden(),
        };
        let lines = progress == Progress::Shown && !stderr().is_terminal();
        Self { bar: ProgressBar::with_draw_target(Some(0), bar), lines: lines.then(Instant::now) }
    }

    /// Something begins that has this length.
    pub(crate) fn stage(&self, length: u64, what: &str) {
        let template = "{elapsed_precise} [{bar:30}] {percent:>3}% {wide_msg}";
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        self.bar.set_style(style.progress_chars("=> "));
        self.bar.set_length(length);
        self.bar.set_position(0);
        self.bar.set_message(what.to_owned());
        self.line(what);
    }

    /// A line for everybody.
    pub(crate) fn say(&self, what: &str) {
        self.bar.println(wrapped(what));
        self.line(what);
    }

    /// A line for readers without a bar.
    pub(crate) fn line(&self, what: &str) {
        if let Some(since) = self.lines.filter(|_| !what.is_empty()) {
            let seconds = since.elapsed().as_secs();
            let _nobody_reads = writeln!(stderr(), "{seconds:>5} s  {what}");
        }
    }

    /// The step within a stage; only the bar shows it.
    pub(crate) fn detail(&self, what: String) {
        self.bar.set_message(what);
    }

    pub(crate) fn at(&self, position: u64) {
        self.bar.set_position(position);
    }

    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
