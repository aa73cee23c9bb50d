//! Files, loop devices and commands that the refusal tests share.
#![expect(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvrail_volume::{
    DirectIo, Fill, FillProgress, NewVolume, Overwrite, Volume, VolumeError, VolumeLayout, create,
    open,
};

pub(crate) const MIB: u64 = 1 << 20;

/// A test's directory, and its turn: tests that have one run one after the other. A program that
/// one test starts has the descriptors of all others until it runs, and so locks and mounts that
/// those have let go of.
pub(crate) struct Directory {
    directory: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Directory {
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// A directory on the file system of the build, which has O_DIRECT more often than /tmp has.
pub(crate) fn directory() -> Directory {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    Directory { directory, _turn: turn }
}

pub(crate) fn new_volume(members: &[PathBuf]) -> NewVolume {
    NewVolume {
        name: "kv0".parse().unwrap(),
        members: members.to_vec(),
        capacity_bytes: Some(4 * MIB),
        layout: VolumeLayout::Raw { stripe_bytes: 64 << 10 },
        fill: Fill::Files,
        overwrite: Overwrite::Nothing,
        direct: DirectIo::Optional,
    }
}

pub(crate) fn go_on(_: FillProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub(crate) fn make(new: &NewVolume) -> Result<Volume, VolumeError> {
    create(new, &mut go_on)
}

/// A volume `kv0` on two new files, closed again.
pub(crate) fn two_files(directory: &Path) -> Vec<PathBuf> {
    let members = vec![directory.join("a"), directory.join("b")];
    make(&new_volume(&members)).unwrap();
    members
}

pub(crate) fn open_any(members: &[PathBuf]) -> Result<Volume, VolumeError> {
    open(members, None, DirectIo::Optional)
}

pub(crate) fn poke(path: &Path, at: u64, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// Changes a byte, whatever it is.
pub(crate) fn damage(path: &Path, at: u64) {
    let mut was = [0];
    fs::File::open(path).unwrap().read_exact_at(&mut was, at).unwrap();
    poke(path, at, &[!was[0]]);
}

/// The words of a refusal that must come.
pub(crate) fn refusal<T: std::fmt::Debug>(outcome: Result<T, VolumeError>) -> String {
    outcome.unwrap_err().to_string()
}

/// Fails unless every part is in the text.
#[track_caller]
pub(crate) fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// Runs a program; None where it is missing or fails, with the reason printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = match Command::new(program).args(arguments).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {program} cannot be run: {error}");
            return None;
        }
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        println!("skipped: {program} {}: {said}", arguments.join(" "));
        return None;
    }
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// A loop device over a new file, detached when dropped.
pub(crate) struct Loop {
    pub(crate) node: PathBuf,
    pub(crate) file: PathBuf,
}

impl Loop {
    /// `None`, with a line of output, where this machine has none to give.
    pub(crate) fn new(directory: &Path, name: &str, bytes: u64, options: &[&str]) -> Option<Self> {
        let file = directory.join(name);
        std::fs::File::create(&file).unwrap().set_len(bytes).unwrap();
        Self::over(file, options)
    }

    pub(crate) fn over(file: PathBuf, options: &[&str]) -> Option<Self> {
        let mut arguments = vec!["--find", "--show"];
        arguments.extend(options);
        arguments.push(file.to_str().unwrap());
        let node = run("losetup", &arguments)?;
        let node = PathBuf::from(node);
        if !node.exists() {
            println!("skipped: {} has no node under /dev", node.display());
            return None;
        }
        Some(Self { node, file })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.node).status();
    }
}
