//! Resources that the sidecar and its helper processes hold, compared with those before an abuser
//! ran.

use std::fs::{self, DirEntry};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

/// How much resident memory may grow: the heap keeps freed memory and returns whole pages only.
const RESIDENT_SLACK_KIB: u64 = 8 << 10;

/// The state is at rest when nothing has changed for this time.
const STILL: Duration = Duration::from_millis(500);

/// Descriptors, threads, memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Belongings {
    descriptors: u64,
    threads: u64,
    /// Mappings of memory files.
    memory_files: u64,
    resident_kib: u64,
    pinned_kib: u64,
}

impl Belongings {
    /// Resources of this process and its children now.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let mut all = Self::of_one(pid)?;
        for child in children(pid)? {
            // A child that ends meanwhile holds nothing.
            if let Ok(more) = Self::of(child) {
                all = all.and(more);
            }
        }
        Ok(all)
    }

    fn of_one(pid: u32) -> Result<Self> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let maps = fs::read_to_string(proc.join("maps"))?;
        let status = fs::read_to_string(proc.join("status"))?;
        let kib = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let number = line.and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
            number.with_context(|| format!("no {key} of process {pid}"))
        };
        Ok(Self {
            descriptors: fs::read_dir(proc.join("fd"))?.count() as u64,
            threads: fs::read_dir(proc.join("task"))?.filter(is_ours).count() as u64,
            memory_files: maps.lines().filter(|line| line.contains("/memfd:")).count() as u64,
            resident_kib: kib("VmRSS")?,
            pinned_kib: kib("VmPin")?,
        })
    }

    fn and(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors + other.descriptors,
            threads: self.threads + other.threads,
            memory_files: self.memory_files + other.memory_files,
            resident_kib: self.resident_kib + other.resident_kib,
            pinned_kib: self.pinned_kib + other.pinned_kib,
        }
    }

    /// The same, once the figures have not changed for a moment: by then the sidecar has freed the
    /// resources of clients that are gone.
    pub(crate) fn settled(pid: u32) -> Result<Self> {
        let (mut last, mut since) = (Self::of(pid)?, Instant::now());
        while since.elapsed() < STILL {
            std::thread::sleep(Duration::from_millis(20));
            let now = Self::of(pid)?;
            if !(now.beyond(&last).is_empty() && last.beyond(&now).is_empty()) {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last)
    }

    /// Figures that exceed those of `before`.
    pub(crate) fn beyond(&self, before: &Self) -> Vec<String> {
        let exact = [
            ("descriptors", before.descriptors, self.descriptors),
            ("threads", before.threads, self.threads),
            ("memory files", before.memory_files, self.memory_files),
            ("KiB pinned", before.pinned_kib, self.pinned_kib),
        ];
        let words = |what: &str, had, has| format!("had {had} {what}, has {has}");
        let more = exact.iter().filter(|(_, had, has)| has > had);
        let mut found: Vec<_> = more.map(|(what, had, has)| words(what, *had, *has)).collect();
        if self.resident_kib > before.resident_kib + RESIDENT_SLACK_KIB {
            found.push(words("KiB resident", before.resident_kib, self.resident_kib));
        }
        found
    }
}

/// Child processes of all threads of this process, where the kernel lists them. A scan of /proc
/// could block on an unrelated process that hangs in exit.
fn children(pid: u32) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let listed = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        all.extend(listed.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    Ok(all)
}

/// Whether a thread belongs to the process: io_uring's kernel workers come and go.
fn is_ours(task: &io::Result<DirEntry>) -> bool {
    let name = task.as_ref().map(|task| fs::read_to_string(task.path().join("comm")));
    !matches!(name, Ok(Ok(name)) if name.starts_with("iou-"))
}

#[cfg(test)]
mod tests {
    use super::{Belongings, children};

    #[test]
    fn children_are_found_while_they_live() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(children(own).unwrap().contains(&child.id()));
        assert!(Belongings::of(own).unwrap().descriptors > 0);
        child.kill().and_then(|()| child.wait()).unwrap();
        assert!(!children(own).unwrap().contains(&child.id()));
    }

    #[test]
    fn what_stays_is_named() {
        let before = Belongings {
            descriptors: 9,
            threads: 3,
            memory_files: 1,
            resident_kib: 20_000,
            pinned_kib: 64,
        };
        assert!(before.beyond(&before).is_empty());
        let grown = Belongings { resident_kib: 21_000, ..before };
        assert!(grown.beyond(&before).is_empty());
        let after = Belongings { descriptors: 10, resident_kib: 40_000, ..before };
        let said = after.beyond(&before);
        assert_eq!(said, ["had 9 descriptors, has 10", "had 20000 KiB resident, has 40000"]);
    }
}
