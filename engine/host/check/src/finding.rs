//! The result of one check.

use std::fmt;

use serde::Serialize;

/// How grave a finding is, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As it should be, or nothing there to judge.
    Ok,
    /// Could not be examined, for want of rights or of a file.
    Unseen,
    /// Works, and costs something.
    Warning,
    /// Does not work, or not for the requested purpose.
    Failure,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Unseen => "unseen",
            Self::Warning => "warning",
            Self::Failure => "failure",
        })
    }
}

/// The subject of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckGroup {
    /// Version, io_uring, options, modules.
    Kernel,
    /// Hugepages and limits.
    Memory,
    /// Isolation, frequency, limits, hardware threads.
    Cpu,
    /// Drives and their queues.
    Nvme,
    /// Memory of stores, and endurance of their drives.
    Store,
    /// Where files of volumes lie.
    FileSystem,
    /// NICs, links, addresses.
    Rdma,
    /// Vendor driver stack and programs.
    Tools,
    /// Driver, cuFile, peer-to-peer.
    Gpu,
    /// Limits of a container.
    Container,
}

impl fmt::Display for CheckGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kernel => "kernel",
            Self::Memory => "memory",
            Self::Cpu => "CPU",
            Self::Nvme => "NVMe",
            Self::Store => "stores",
            Self::FileSystem => "file systems",
            Self::Rdma => "RDMA",
            Self::Tools => "tools",
            Self::Gpu => "GPU",
            Self::Container => "container",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its subject.
    pub group: CheckGroup,
    /// The check's name; stays the same from release to release.
    pub check: &'static str,
    /// Which device, node or path; empty for the host as a whole.
    pub subject: String,
    /// How grave it is.
    pub verdict: Verdict,
    /// The observation.
    pub seen: String,
    /// Its cost; none when it is ok.
    pub cost: Option<&'static str>,
    /// The remedy; none when it is ok.
    pub remedy: Option<String>,
}
