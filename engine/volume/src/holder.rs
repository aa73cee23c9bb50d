//! Holders of a device or file that cannot be claimed.

use std::fmt;

use serde::Serialize;

/// One user of a device or file, as far as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum Holder {
    /// A file system on the device or on one of its partitions.
    Mount {
        /// Kernel name of the device, e.g. `nvme0n1p1`.
        device: String,
        /// Where it is mounted.
        mount_point: String,
    },
    /// Swap space.
    Swap {
        /// The device or file as in `/proc/swaps`.
        device: String,
    },
    /// Another block device on top: LVM, LUKS, multipath (`dm-*`), RAID (`md*`), bcache.
    Stacked {
        /// Kernel name of the device that is held.
        device: String,
        /// Kernel name of the device on top, with its device-mapper name where it has one.
        upper: String,
    },
    /// A loop device made of the file.
    Loop {
        /// Kernel name of the loop device.
        device: String,
    },
    /// A loop device made of the same bytes of the file that the member rests on.
    Twin {
        /// Kernel name of the other loop device.
        device: String,
        /// The file.
        file: String,
    },
    /// A process that has the file that the member rests on: through a loop device.
    Beneath {
        /// The file.
        file: String,
        /// The process's id in this pid namespace, where it can be seen.
        pid: Option<u32>,
        /// Its command name.
        command: String,
    },
    /// The files beneath the member cannot be examined from here: they may be in use.
    Unseen {
        /// A file, or where the kernel describes the device.
        what: String,
    },
    /// A process that has it open (device) or locked (file).
    Process {
        /// Its process id in this pid namespace.
        pid: u32,
        /// Its command name.
        command: String,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount { device, mount_point } => {
                write!(f, "{device} is mounted at {mount_point}")
            }
            Self::Swap { device } => write!(f, "{device} is swap space"),
            Self::Stacked { device, upper } => write!(f, "{device} is part of {upper}"),
            Self::Loop { device } => write!(f, "it backs /dev/{device}"),
            Self::Twin { device, file } => {
                write!(f, "/dev/{device} is made of the same bytes of {file}")
            }
            Self::Beneath { file, pid: Some(pid), command } => {
                write!(f, "it rests on {file}, which process {pid} ({command}) has")
            }
            Self::Beneath { file, .. } => write!(f, "it rests on {file}, which is in use"),
            Self::Unseen { what } => {
                write!(f, "it rests on {what}, which cannot be looked at from here")
            }
            Self::Process { pid, command } => write!(f, "process {pid} ({command}) has it"),
        }
    }
}

impl Holder {
    /// How to make this user let go.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Mount { mount_point, .. } => format!("umount {mount_point}"),
            Self::Swap { device } => format!("swapoff {device}"),
            Self::Stacked { upper, .. } if upper.starts_with("md") => {
                format!("stop the array (mdadm --stop /dev/{upper})")
            }
            Self::Stacked { upper, .. } => {
                format!("deactivate {upper} (vgchange -an, cryptsetup close, dmsetup remove)")
            }
            Self::Loop { device } | Self::Twin { device, .. } => {
                format!("losetup --detach /dev/{device}")
            }
            Self::Process { pid, .. } | Self::Beneath { pid: Some(pid), .. } => {
                format!("stop process {pid}")
            }
            Self::Unseen { what } => {
                format!("let this user see and read {what}, or name it as the member itself")
            }
            Self::Beneath { file, .. } => format!("name another member, or see lsof {file}"),
        }
    }
}
