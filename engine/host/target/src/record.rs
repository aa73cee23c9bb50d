//! The list of objects that kvrail made, which survives a crash: written before each step, so that
//! the next start has all objects that may exist.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fsync, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::TargetError;

/// The format of the file; another one is refused.
const VERSION: u32 = 1;

/// Kvrail's objects and the step in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    version: u32,
    /// The boot it belongs to: the tree does not outlive it.
    pub(crate) boot: String,
    /// Whether a change was in flight.
    pub phase: RecordPhase,
    /// In the order in which they were made.
    pub(crate) owned: Vec<OwnedObject>,
    /// The step that was about to be done.
    pub(crate) intent: Option<Intent>,
}

/// Whether a change was in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordPhase {
    /// Steps were being done.
    Working,
    /// All were done, and the result was verified.
    Done,
}

/// An object or link that kvrail made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnedObject {
    pub(crate) path: String,
    /// `Tree::id` of a directory; none for a link.
    pub(crate) id: Option<u64>,
    /// Attributes it was given, in that order.
    pub(crate) attributes: Vec<String>,
}

/// A step about to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Intent {
    /// In words.
    pub(crate) step: String,
    /// The object that it would make, if any.
    pub(crate) makes: Option<OwnedObject>,
}

impl TargetRecord {
    pub(crate) fn new(boot: &str) -> Self {
        let (boot, owned) = (boot.to_owned(), Vec::new());
        Self { version: VERSION, boot, phase: RecordPhase::Done, owned, intent: None }
    }

    pub(crate) fn find(&self, path: &str) -> Option<&OwnedObject> {
        self.owned.iter().find(|owned| owned.path == path)
    }
}

/// Where a record is kept.
#[expect(clippy::missing_errors_doc, reason = "every one fails like the system below it")]
pub trait RecordStore {
    /// The record, if there is one.
    fn load(&self) -> Result<Option<TargetRecord>, TargetError>;
    /// Replaces it; on return it is where a power failure cannot take it.
    fn save(&mut self, record: &TargetRecord) -> Result<(), TargetError>;
}

/// A record in a directory of its own, with a lock that keeps others from changing the tree.
#[derive(Debug)]
pub struct FileStore {
    directory: PathBuf,
    /// The lock; none where the record is only read.
    lock: Option<OwnedFd>,
}

impl FileStore {
    /// Makes the directory if it is missing, and locks it.
    ///
    /// # Errors
    /// `TargetError::Record` when it cannot be made, or another kvrail has it.
    pub fn open(directory: &Path) -> Result<Self, TargetError> {
        let failed = |step, cause: String| failed(&directory.join("lock"), step, cause);
        std::fs::create_dir_all(directory)
            .map_err(|error| failed("making its directory", error.to_string()))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = open(directory.join("lock"), flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| failed("opening", errno.to_string()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::WOULDBLOCK => {
                failed("locking", "another kvrail (`kvrail serve`?) manages this target".into())
            }
            errno => failed("locking", errno.to_string()),
        })?;
        Ok(Self { directory: directory.to_owned(), lock: Some(lock) })
    }

    /// To look at only: without the lock nothing is saved, so no step is taken either.
    #[must_use]
    pub fn look(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), lock: None }
    }

    fn path(&self) -> PathBuf {
        self.directory.join("record.json")
    }
}

impl RecordStore for FileStore {
    fn load(&self) -> Result<Option<TargetRecord>, TargetError> {
        let path = self.path();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&path, "reading", error.to_string())),
        };
        let record: TargetRecord = serde_json::from_str(&text)
            .map_err(|error| failed(&path, "understanding", error.to_string()))?;
        if record.version != VERSION {
            let cause = format!("it has format {}, this kvrail supports {VERSION}", record.version);
            return Err(failed(&path, "understanding", cause));
        }
        Ok(Some(record))
    }

    fn save(&mut self, record: &TargetRecord) -> Result<(), TargetError> {
        let path = self.path();
        if self.lock.is_none() {
            return Err(failed(&path, "writing", "it was opened to look at only".into()));
        }
        let next = self.directory.join("record.next");
        let text = serde_json::to_vec(record).expect("strings and numbers are always JSON");
        // Left by a crash, or a link to a foreign file.
        let _gone = std::fs::remove_file(&next);
        let new = std::fs::OpenOptions::new().write(true).create_new(true).open(&next);
        let written = new.and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&next, &path)
        });
        written.map_err(|error| failed(&path, "writing", error.to_string()))?;
        let directory = open(&self.directory, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        directory.and_then(fsync).map_err(|errno| failed(&path, "syncing", errno.to_string()))
    }
}

fn failed(path: &Path, step: &'static str, cause: String) -> TargetError {
    TargetError::Record { path: path.to_owned(), step, cause }
}
