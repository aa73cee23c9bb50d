//! The way in: first what holds for threads to come, then what holds for all.

use std::fs::read_dir;

use crate::calls;
use crate::capabilities::keep;
use crate::error::SandboxError;
use crate::files::{Files, confine};
use crate::mode::SandboxMode;
use crate::needs::{Needs, Others, Sockets};

/// Why there are no rules about files.
const OPENED: &str = "files are not protected: those of clients are opened (by a stand-in GPU)";

/// A process that has given up files and capabilities, and may still call what it likes.
#[derive(Debug)]
#[must_use]
pub struct Entered {
    held: Sandboxed,
    sockets: Sockets,
}

/// The restrictions in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandboxed {
    /// The requested mode.
    pub mode: SandboxMode,
    /// Rules about files, ports and signals.
    pub files: Files,
    /// Whether system calls are filtered.
    pub calls_filtered: bool,
    /// The remaining ones.
    pub capabilities: Vec<String>,
    /// Restrictions that the kernel lacks, in words.
    pub lacks: Vec<String>,
}

/// Gives up files and capabilities, for this thread and all that it starts: call it before there is
/// another. Nothing happens where the mode is off.
///
/// # Errors
/// `SandboxError` when threads run already, the kernel refuses a step, or a strict sandbox would
/// not be whole.
pub fn enter(mode: SandboxMode, needs: &Needs) -> Result<Entered, SandboxError> {
    let (files, calls_filtered) = (Files::None, false);
    let (capabilities, lacks) = (Vec::new(), Vec::new());
    let sockets = needs.sockets();
    let mut held = Sandboxed { mode, files, calls_filtered, capabilities, lacks };
    if mode == SandboxMode::Off {
        return Ok(Entered { held, sockets });
    }
    let threads = read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(SandboxError::Threads(threads));
    }
    held.capabilities = keep(needs.capabilities())?;
    if needs.others() == Others::Opened {
        held.demand(Some(OPENED))?;
        return Ok(Entered { held, sockets });
    }
    held.files = confine(needs)?;
    held.demand(match held.files {
        Files::Whole => None,
        Files::Part => Some("landlock knows only some of the rules (they came until Linux 6.12)"),
        Files::None => Some(
            "landlock is missing: files are not protected (CONFIG_SECURITY_LANDLOCK, lsm=landlock)",
        ),
    })?;
    Ok(Entered { held, sockets })
}

impl Entered {
    /// Filters the system calls of all threads, once everything is open.
    ///
    /// # Errors
    /// `SandboxError` where a strict sandbox would not be whole.
    pub fn close(self) -> Result<Sandboxed, SandboxError> {
        let Self { mut held, sockets } = self;
        if held.mode == SandboxMode::Off {
            return Ok(held);
        }
        let outcome = calls::filter(sockets);
        held.calls_filtered = outcome.is_ok();
        let lacking = outcome.err().map(|why| format!("system calls are not filtered: {why}"));
        held.demand(lacking.as_deref())?;
        Ok(held)
    }
}

impl Sandboxed {
    fn demand(&mut self, lacking: Option<&str>) -> Result<(), SandboxError> {
        match (lacking, self.mode) {
            (Some(what), SandboxMode::Strict) => Err(SandboxError::Lacks(what.into())),
            (Some(what), _) => {
                self.lacks.push(what.into());
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }
}
