//! Takes connections down, and makes sure that they are gone.

use std::fs;
use std::time::{Duration, Instant};

use kvrail_memory::Root;

use crate::error::FabricsError;
use crate::tree::{CONTROLLERS, Controller, subsystems};

/// How long a controller may take to go. The kernel takes it down within the write; this is for
/// one that somebody else takes down at the same time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// What to disconnect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every connection to this NQN.
    Nqn(String),
    /// One controller by its kernel name, or by one of its devices (`nvme2`, `/dev/nvme2`).
    Controller(String),
    /// Every connection of this host.
    All,
}

impl Which {
    /// The connections that are meant, local drives never among them.
    ///
    /// # Errors
    /// Nothing is meant, or a local drive.
    pub fn controllers(&self, root: &Root) -> Result<Vec<Controller>, FabricsError> {
        let all = subsystems(root);
        let mut meant: Vec<Controller> = match self {
            Self::Nqn(nqn) => {
                let these = all.into_iter().filter(|subsystem| subsystem.nqn == *nqn);
                these.flat_map(|subsystem| subsystem.controllers).collect()
            }
            Self::Controller(name) => {
                let name = name.strip_prefix("/dev/").unwrap_or(name);
                let every = all.into_iter().flat_map(|subsystem| subsystem.controllers);
                every.filter(|controller| controller.name == name).collect()
            }
            Self::All => all.into_iter().flat_map(|subsystem| subsystem.controllers).collect(),
        };
        let local = meant.iter().find(|controller| !controller.is_remote());
        if let (Some(local), false) = (local, *self == Self::All) {
            let words = format!("{} is a local drive, not a connection", local.name);
            return Err(FabricsError::refused(words, "`kvrail host list` shows connections"));
        }
        meant.retain(Controller::is_remote);
        if meant.is_empty() && *self != Self::All {
            let what = match self {
                Self::Nqn(nqn) => format!("--nqn {nqn}"),
                Self::Controller(name) => format!("--device {name}"),
                Self::All => unreachable!("all of nothing is nothing"),
            };
            let words = format!("{what}: not connected");
            return Err(FabricsError::refused(words, "`kvrail host list` shows connections"));
        }
        Ok(meant)
    }
}

/// Disconnects; gives the names of the controllers that went. Who uses the devices is the
/// caller's to ask before: their I/O fails.
///
/// # Errors
/// Nothing is meant, the kernel refuses, or a controller does not go within 30 s.
pub fn disconnect(root: &Root, which: &Which) -> Result<Vec<String>, FabricsError> {
    let mut gone = Vec::new();
    for controller in which.controllers(root)? {
        delete(root, &controller.name)?;
        gone.push(controller.name);
    }
    Ok(gone)
}

/// Deletes one controller and waits until it is gone.
pub(crate) fn delete(root: &Root, name: &str) -> Result<(), FabricsError> {
    let dir = root.path(format!("{CONTROLLERS}/{name}"));
    let path = dir.join("delete_controller");
    match fs::write(&path, "1") {
        // Gone meanwhile: what was wanted.
        Err(_) if !dir.exists() => return Ok(()),
        Err(why) => return Err(FabricsError::file(&path, "writing 1 to", &why)),
        Ok(()) => {}
    }
    let deadline = Instant::now() + PATIENCE;
    while dir.exists() {
        if Instant::now() >= deadline {
            let words = format!("{name} is still there {} s after", PATIENCE.as_secs());
            return Err(FabricsError::failed(words, "see the kernel's log (dmesg)"));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
