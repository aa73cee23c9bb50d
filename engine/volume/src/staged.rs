//! Members of a volume in the making: claimed, and put back as they were unless it succeeds.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{fsync, ftruncate};
use rustix::io::Errno;

use crate::alignment::MemberKind;
use crate::bytes::{AlignedBytes, write_at};
use crate::claim::{Claim, DirectIo};
use crate::error::{Reason, VolumeError};
use crate::label::LABEL_LENGTH;
use crate::userspace::check_directory;

/// The undoing of a member's changes after a failure.
#[derive(Debug)]
enum Undo {
    /// We made the file.
    Remove,
    /// It was there and has not been written yet.
    Nothing,
    /// It was there with this many bytes, and has been written: a file becomes that many zeros, a
    /// device gets a blank label area.
    Blank(u64),
}

/// Claimed members; whatever is dropped before `commit` is undone.
#[derive(Debug, Default)]
pub(crate) struct StagedMembers {
    claims: Vec<Claim>,
    undo: Vec<Undo>,
}

impl StagedMembers {
    /// Claims a member, and makes the file where there is none.
    pub(crate) fn take(&mut self, path: &Path, direct: DirectIo) -> Result<(), VolumeError> {
        let made = make_file(path)?;
        match Claim::open(path, direct) {
            Ok(claim) => {
                self.claims.push(claim);
                self.undo.push(if made { Undo::Remove } else { Undo::Nothing });
                Ok(())
            }
            Err(error) => {
                if made {
                    remove(path);
                }
                Err(error)
            }
        }
    }

    pub(crate) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    pub(crate) fn claims_mut(&mut self) -> &mut [Claim] {
        &mut self.claims
    }

    /// From here on members are written.
    pub(crate) fn begin_writing(&mut self) {
        for (claim, undo) in self.claims.iter().zip(&mut self.undo) {
            if matches!(undo, Undo::Nothing) {
                *undo = Undo::Blank(claim.bytes());
            }
        }
    }

    /// Makes the names of new files durable.
    pub(crate) fn sync(&self) -> Result<(), VolumeError> {
        let all = self.claims.iter().zip(&self.undo);
        let mut new = all.filter(|(_, undo)| matches!(undo, Undo::Remove));
        new.try_for_each(|(claim, _)| sync_directory(claim))
    }

    /// Makes the names of new files durable and gives the claims away.
    pub(crate) fn commit(mut self) -> Result<Vec<Claim>, VolumeError> {
        self.sync()?;
        self.undo.clear();
        Ok(std::mem::take(&mut self.claims))
    }
}

impl Drop for StagedMembers {
    fn drop(&mut self) {
        for (claim, undo) in self.claims.iter().zip(&self.undo) {
            match undo {
                Undo::Remove => remove(claim.path()),
                Undo::Nothing => {}
                Undo::Blank(bytes) => blank(claim, *bytes),
            }
        }
    }
}

/// Makes an empty file that only its owner may read, unless something is there. Among devices none
/// is made: it would be a mistyped device, in memory.
fn make_file(path: &Path) -> Result<bool, VolumeError> {
    if !path.exists() {
        if is_among_devices(path) {
            return Err(VolumeError::at(path, Reason::NoDevice));
        }
        let folder = directory_of(path);
        if !folder.exists() {
            return Err(VolumeError::at(path, Reason::NoFolder { folder: folder.to_owned() }));
        }
        check_directory(folder).map_err(|reason| VolumeError::at(path, reason))?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Err(VolumeError::at(path, Reason::Open { errno }))
        }
    }
}

/// Whether a path lies on the file system of the device nodes, where that is one of its own.
fn is_among_devices(path: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
    let nodes = device(Path::new("/dev")).filter(|&nodes| Some(nodes) != device(Path::new("/")));
    nodes.is_some() && path.parent().and_then(device) == nodes
}

/// The error that brought us here is the one to report; a file that stays behind is blank or holds
/// noise without a label, and is refused or reused by the next attempt.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

fn blank(claim: &Claim, bytes: u64) {
    let outcome = match claim.kind() {
        MemberKind::File => ftruncate(claim, 0).and_then(|()| ftruncate(claim, bytes)),
        MemberKind::Block => write_at(claim, &AlignedBytes::zeroed(LABEL_LENGTH), 0),
    };
    // As for `remove`.
    let _ = outcome.and_then(|()| fsync(claim));
}

/// Where a path lies.
fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

fn sync_directory(claim: &Claim) -> Result<(), VolumeError> {
    let synced =
        std::fs::File::open(directory_of(claim.path())).and_then(|directory| directory.sync_all());
    synced.map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        claim.failed("syncing its directory", errno)
    })
}
