//! The rights that a process will need.

use std::path::{Path, PathBuf};

use rustix::thread::CapabilitySet;

/// Paths, ports and capabilities that stay. A folder stands for all beneath it. A path that is not
/// there is passed over.
#[derive(Clone, Debug)]
pub struct Needs {
    read: Vec<PathBuf>,
    change: Vec<PathBuf>,
    own: Vec<PathBuf>,
    emptied: Vec<PathBuf>,
    threads: Threads,
    tcp_ports: Vec<u16>,
    sockets: Sockets,
    capabilities: CapabilitySet,
    others: Others,
}

/// Other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Others {
    /// Are left alone.
    #[default]
    Untouched,
    /// Have files that are opened through `/proc`, which no rule of landlock lets through.
    Opened,
}

/// Which thread names this process's threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Threads {
    /// Each itself.
    #[default]
    Themselves,
    /// Others do, through `/proc`.
    EachOther,
}

/// The sockets that are made once all is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// Of this host.
    #[default]
    Unix,
    /// Those of IPv4 and IPv6 as well.
    Internet,
}

impl Default for Needs {
    /// Rights of every process that starts itself once more, looks at its host and pins memory.
    fn default() -> Self {
        Self {
            read: ["/proc", "/sys", "/run/udev"].map(Into::into).into(),
            change: vec!["/dev/null".into()],
            own: Vec::new(),
            emptied: Vec::new(),
            threads: Threads::default(),
            tcp_ports: Vec::new(),
            sockets: Sockets::default(),
            capabilities: CapabilitySet::IPC_LOCK | CapabilitySet::DAC_OVERRIDE,
            others: Others::default(),
        }
    }
}

impl Needs {
    /// Is read.
    pub fn read(&mut self, path: impl Into<PathBuf>) {
        self.read.push(path.into());
    }

    /// Exists, and is read, written and controlled by ioctl.
    pub fn change(&mut self, path: impl Into<PathBuf>) {
        self.change.push(path.into());
    }

    /// Things beneath are made and removed as well.
    pub fn own(&mut self, path: impl Into<PathBuf>) {
        self.own.push(path.into());
    }

    /// A folder is removed with all that is in it.
    pub fn remove(&mut self, folder: &Path) {
        self.own.push(folder.into());
        self.emptied.extend(folder.parent().map(Into::into));
    }

    /// Threads are named by those that start them, through `/proc`: CUDA does, and refuses to start
    /// where it cannot.
    pub fn name_threads(&mut self) {
        self.threads = Threads::EachOther;
    }

    /// This TCP port is listened to; 0 stands for one that the kernel picks.
    pub fn listen(&mut self, port: u16) {
        self.tcp_ports.push(port);
    }

    /// Addresses of this host are looked for by a socket that is bound to them, while it runs.
    pub fn try_addresses(&mut self) {
        self.sockets = Sockets::Internet;
    }

    /// Commands to drives beyond blocks: their logs, and the kernel's NVMe-oF target.
    pub fn administer(&mut self) {
        self.capabilities |= CapabilitySet::SYS_ADMIN;
    }

    /// Files of other processes are opened through `/proc`: there can be no rules about files.
    pub fn open_files_of_others(&mut self) {
        self.others = Others::Opened;
        self.capabilities |= CapabilitySet::SYS_PTRACE;
    }

    pub(crate) fn others(&self) -> Others {
        self.others
    }

    pub(crate) fn reads(&self) -> &[PathBuf] {
        &self.read
    }

    pub(crate) fn changes(&self) -> &[PathBuf] {
        &self.change
    }

    pub(crate) fn owns(&self) -> &[PathBuf] {
        &self.own
    }

    /// Folders in which empty folders are removed.
    pub(crate) fn empties(&self) -> &[PathBuf] {
        &self.emptied
    }

    pub(crate) fn threads(&self) -> Threads {
        self.threads
    }

    pub(crate) fn tcp_ports(&self) -> &[u16] {
        &self.tcp_ports
    }

    pub(crate) fn sockets(&self) -> Sockets {
        self.sockets
    }

    pub(crate) fn capabilities(&self) -> CapabilitySet {
        self.capabilities
    }
}
