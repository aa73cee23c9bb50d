//! Loop devices, where this machine has them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::is_root;

/// Loop devices, detached on drop.
#[derive(Debug)]
pub(crate) struct Loops(Vec<PathBuf>);

impl Loops {
    /// One over each file; `None`, with the reason printed, where there are none.
    pub(crate) fn over(files: &[PathBuf]) -> Option<Self> {
        if !is_root() {
            println!("skipped: only root makes loop devices");
            return None;
        }
        let mut loops = Self(Vec::new());
        for file in files {
            let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
            let Some(made) = made.ok().filter(|output| output.status.success()) else {
                println!("skipped: no loop devices here");
                return None;
            };
            loops.0.push(String::from_utf8_lossy(&made.stdout).trim().into());
        }
        Some(loops).filter(|loops| loops.are_there())
    }

    fn are_there(&self) -> bool {
        let missing = self.0.iter().find(|node| !Path::new(node).exists());
        missing.inspect(|node| println!("skipped: {} has no node", node.display())).is_none()
    }

    /// Their nodes, in the order of the files.
    pub(crate) fn nodes(&self) -> &[PathBuf] {
        &self.0
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for device in &self.0 {
            let _given_back = Command::new("losetup").arg("--detach").arg(device).status();
        }
    }
}
