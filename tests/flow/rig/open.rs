//! A folder where another user can execute the program: the folder of a clone in root's home is
//! closed to others.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{StatVfsMountFlags, statvfs};
use tempfile::TempDir;

use super::{actor_program, kvrail_program};

/// Folders that every user may enter on a usual system.
const USUAL: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run"];

/// A new folder that every user may enter and run programs in; `None`, with a line printed, where
/// there is none.
pub(crate) fn open_folder() -> Option<TempDir> {
    let places = [std::env::temp_dir()].into_iter().chain(USUAL.map(PathBuf::from));
    let folder = places.filter(|place| is_open(place)).find_map(|place| {
        let folder = TempDir::new_in(place).ok()?;
        let everybody = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), everybody).ok().map(|()| folder)
    });
    if folder.is_none() {
        println!(
            "skipped: another user's sidecar: no folder for temporary files that everybody may \
             enter and run programs in; set TMPDIR to one"
        );
    }
    folder
}

/// Whether every user may enter the folder, and programs may be run there.
fn is_open(place: &Path) -> bool {
    let Ok(place) = place.canonicalize() else { return false };
    let may_enter =
        |path: &Path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o001 != 0);
    let runs = statvfs(&place).is_ok_and(|mount| !mount.f_flag.contains(StatVfsMountFlags::NOEXEC));
    runs && place.ancestors().all(may_enter)
}

/// Copies of the sidecar's program and the helper's, in a folder. Another process copies them: if
/// this one had a copy open for writing, a child that another test starts at that moment would
/// inherit it, and the copy could not be run ("text file busy").
#[derive(Debug)]
pub(crate) struct Copies {
    pub(crate) kvrail: PathBuf,
    pub(crate) actor: PathBuf,
}

impl Copies {
    pub(crate) fn in_folder(folder: &Path) -> Self {
        let copy = |from: &Path, name: &str| {
            let to = folder.join(name);
            let status = Command::new("cp").arg(from).arg(&to).status().expect("cp starts");
            assert!(status.success(), "cp {} {}: {status}", from.display(), to.display());
            to
        };
        let kvrail = copy(&kvrail_program(), "kvrail");
        Self { kvrail, actor: copy(actor_program(), "actor") }
    }
}

#[test]
fn a_folder_below_one_that_others_may_not_enter_is_not_open() {
    let Some(folder) = open_folder() else { return };
    let below = folder.path().join("home/clone");
    fs::create_dir_all(&below).unwrap();
    assert!(is_open(&below));
    fs::set_permissions(below.parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(!is_open(&below));
}
