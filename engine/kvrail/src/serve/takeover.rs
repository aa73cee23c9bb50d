//! The file that a sidecar leaves beside its socket for its successor: the modes that
//! `auto` found on its devices, so that clients need not wait while all are tried again. Only right
//! after its end: a later start tries again. Other users may write to the folder, so no link is
//! followed and only a file of this user counts.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kvrail_device::ChosenMode;
use kvrail_poller::PollerHandle;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use uuid::Uuid;

use super::plan::Plan;
use super::volumes::Served;

/// Between the end of a sidecar and the start of the next one, at most: far more than a package
/// takes that is upgraded, far less than until a drive or its driver is another one.
const FRESH: Duration = Duration::from_secs(60);

/// The notes of a thousand devices take less.
const BYTES_MAX: u64 = 1 << 20;

/// The device of a volume's member, and what was found on it.
#[derive(Debug, Serialize, Deserialize)]
struct Noted {
    volume: Uuid,
    path: String,
    found: ChosenMode,
}

/// The modes of all devices whose mode is not configured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Takeover(Vec<Noted>);

impl Takeover {
    /// Of devices that are open.
    pub(super) fn of(plan: &Plan, served: &[Served], pollers: &[PollerHandle]) -> Self {
        let devices = pollers.iter().flat_map(|poller| &poller.devices);
        let noted = devices.filter_map(|(index, description)| {
            let planned = &plan.devices[usize::from(index.0)];
            if planned.settings.mode.fixed().is_some() {
                return None;
            }
            let volume = served[planned.volume].uuid;
            Some(Noted {
                volume,
                path: description.name.clone(),
                found: ChosenMode::of(description)?,
            })
        });
        Self(noted.collect())
    }

    /// The modes that this socket's last sidecar left just now; none without one.
    pub(super) fn read(socket: &Path) -> Self {
        let path = beside(socket);
        match read_fresh(&path) {
            Ok(Some(text)) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), "not what a sidecar left, ignored: {error}");
                Self::default()
            }),
            Ok(None) => Self::default(),
            Err(error) => {
                tracing::warn!(path = %path.display(), "cannot be read, ignored: {error}");
                Self::default()
            }
        }
    }

    /// The mode of this device.
    pub(super) fn found(&self, volume: Uuid, path: &str) -> Option<&ChosenMode> {
        let noted = self.0.iter().find(|noted| noted.volume == volume && noted.path == path);
        noted.map(|noted| &noted.found)
    }

    /// Leaves it for the next sidecar of this socket, which starts more slowly without it.
    pub(super) fn leave(&self, socket: &Path) {
        if self.0.is_empty() {
            return;
        }
        let path = beside(socket);
        if let Err(error) = self.write(&path) {
            tracing::warn!(path = %path.display(), "cannot be written: {error}");
        }
    }

    /// Whole, in the place of what lies there, which may be a link.
    fn write(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut half = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        half.write_all(&serde_json::to_vec(self)?)?;
        half.persist(path)?;
        Ok(())
    }
}

fn beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".modes");
    PathBuf::from(name)
}

/// The content of our own file that was written just now.
fn read_fresh(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(errno) if errno.kind() == ErrorKind::NotFound => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != geteuid().as_raw() {
        return Err(io::Error::other("it is no file of this user"));
    }
    let written = metadata.modified()?;
    if !SystemTime::now().duration_since(written).is_ok_and(|age| age <= FRESH) {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut text)?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, FileTimes};
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use tempfile::TempDir;
    use uuid::Uuid;

    use super::{FRESH, Noted, Takeover, beside, read_fresh};

    fn takeover(volume: Uuid) -> Takeover {
        let found = r#"{"mode":"iopoll","reason":"auto: iopoll","bytes_per_second":7}"#;
        let found = serde_json::from_str(found).unwrap();
        Takeover(vec![Noted { volume, path: "/dev/nvme0n1".into(), found }])
    }

    #[test]
    fn the_next_one_finds_it_for_the_same_device_only() {
        let (folder, volume) = (TempDir::new().unwrap(), Uuid::new_v4());
        let socket = folder.path().join("s");
        assert!(Takeover::read(&socket).found(volume, "/dev/nvme0n1").is_none());
        takeover(volume).leave(&socket);
        takeover(volume).leave(&socket);
        let read = Takeover::read(&socket);
        assert!(read.found(volume, "/dev/nvme0n1").is_some());
        assert!(read.found(volume, "/dev/nvme1n1").is_none());
        assert!(read.found(Uuid::new_v4(), "/dev/nvme0n1").is_none());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing half is left");
    }

    #[test]
    fn what_is_old_or_no_file_of_ours_or_garbage_does_not_count() {
        let (folder, volume) = (TempDir::new().unwrap(), Uuid::new_v4());
        let socket = folder.path().join("s");
        let path = beside(&socket);
        let counts = || Takeover::read(&socket).found(volume, "/dev/nvme0n1").is_some();
        takeover(volume).leave(&socket);
        let file = File::options().write(true).open(&path).unwrap();
        for (age, fresh) in [(Duration::ZERO, true), (2 * FRESH, false)] {
            let times = FileTimes::new().set_modified(SystemTime::now() - age);
            file.set_times(times).unwrap();
            assert_eq!(counts(), fresh, "{age:?}");
        }
        for garbage in ["", "[", "{}", "[{\"volume\":1}]"] {
            fs::write(&path, garbage).unwrap();
            assert!(!counts());
        }
        let other = folder.path().join("other");
        takeover(volume).write(&other).unwrap();
        let before = fs::read(&other).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        assert!(!counts() && read_fresh(&path).is_err(), "no link is followed");
        takeover(Uuid::new_v4()).leave(&socket);
        assert_eq!(fs::read(&other).unwrap(), before, "nor written through");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(!counts());
        takeover(volume).leave(&socket);
        assert!(!counts() && Path::new(&path).is_dir());
    }
}
