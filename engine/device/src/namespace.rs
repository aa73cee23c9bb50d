//! The NVMe namespace behind a block device, for commands passed through: its character device, its
//! number, and whether plain reads and writes of it can be built at all. sysfs has all of this; no
//! admin command is sent.

use std::fs::{File, OpenOptions, canonicalize, read_to_string};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;

use crate::contract::DirectIo;
use crate::error::DeviceError;
use crate::queue::{Cache, DiskPart, QueueLimits};
use crate::system::read_number;
use crate::target::{FileKind, Target, open_path};

/// The remedy where commands cannot be passed through: the block layer.
const INSTEAD: &str = "use mode iopoll or interrupt";

/// A namespace to send commands to.
#[derive(Debug)]
pub struct Namespace {
    /// The character device, open for reading and writing. The claim stays with the block device.
    pub file: OwnedFd,
    /// Its path.
    pub path: String,
    /// Its number on the controller.
    pub id: u32,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Largest command (MDTS), in bytes.
    pub request_bytes_max: u32,
    /// Bytes of as many pages as a command may touch.
    pub paged_bytes_max: u32,
    pub(crate) cache: Cache,
}

/// Facts from sysfs.
#[derive(Debug, PartialEq, Eq)]
struct SysfsFacts {
    id: u32,
    /// Kernel name of the character device, e.g. `ng0n1`.
    generic: String,
}

impl Namespace {
    /// The namespace whose block device is at a path, for tools: nothing is claimed.
    ///
    /// # Errors
    /// As for opening a device in mode passthrough.
    pub fn at(path: &str) -> Result<Self, DeviceError> {
        let direct = DirectIo::Required;
        Self::behind(&Target::examine(path, open_path(path, direct)?, direct)?)
    }

    /// Finds and opens the namespace whose block device the target is.
    ///
    /// # Errors
    /// `Unfit` with the one thing that is missing, before anything is sent.
    pub(crate) fn behind(target: &Target) -> Result<Self, DeviceError> {
        let refuse =
            |(what, remedy): (String, String)| DeviceError::unfit(&target.path, &what, &remedy);
        let queue = target.queue.as_ref().filter(|_| target.kind == FileKind::Block);
        let Some(queue) = queue else {
            let what = "is a file, and only NVMe namespaces can be passed through";
            return Err(DeviceError::unfit(&target.path, what, "use mode interrupt"));
        };
        let SysfsFacts { id, generic } = facts(Path::new("/sys"), queue).map_err(refuse)?;
        let (file, path) = open_generic(&generic).map_err(refuse)?;
        let limits = queue.logical_block.zip(queue.hardware_bytes_max);
        let Some((block_bytes, request_bytes_max)) = limits else {
            let what = format!("sysfs does not have the limits of {}", queue.disk);
            return Err(DeviceError::unfit(&target.path, &what, INSTEAD));
        };
        let (paged_bytes_max, cache) = (target.paged_bytes_max(), queue.cache);
        Ok(Self { file, path, id, block_bytes, request_bytes_max, paged_bytes_max, cache })
    }
}

/// Checks that it is a whole namespace of plain blocks, and finds its sibling.
fn facts(sys: &Path, queue: &QueueLimits) -> Result<SysfsFacts, (String, String)> {
    let disk = &queue.disk;
    let home = sys.join("block").join(disk);
    let no = |what: String| Err((what, INSTEAD.to_owned()));
    let Some(numbers) = disk.strip_prefix("nvme").filter(|rest| rest.contains('n')) else {
        return no(format!("is no NVMe namespace ({disk}), and only those can be passed through"));
    };
    if queue.part == DiskPart::Partition {
        return no(format!("is a partition of {disk}: commands would reach all of the namespace"));
    }
    // The command set (kernel 6.8); zoned namespaces also show in the queue.
    let set = read_number::<u32>(home.join("csi")).unwrap_or(0);
    let zoned = read_to_string(home.join("queue/zoned")).unwrap_or_default();
    if set != 0 || !matches!(zoned.trim(), "" | "none") {
        return no(format!("has command set {set} (zoned: {}), not plain blocks", zoned.trim()));
    }
    // Metadata (kernel 6.8); before that a profile of protection information shows.
    let metadata = read_number::<u32>(home.join("metadata_bytes")).unwrap_or(0);
    let profile = read_to_string(home.join("integrity/format")).unwrap_or_default();
    if metadata != 0 || !matches!(profile.trim(), "" | "none") {
        return Err((
            format!(
                "its format has {metadata} bytes of metadata for each block ({})",
                profile.trim()
            ),
            "use mode iopoll or interrupt, or give it a format without (nvme format)".into(),
        ));
    }
    let Some(id) = read_number(home.join("nsid")) else {
        return no(format!("sysfs does not have the namespace number of {disk}"));
    };
    let generic = format!("ng{numbers}");
    let sibling = sys.join("class/nvme-generic").join(&generic);
    match (canonicalize(sibling.join("device")), canonicalize(home.join("device"))) {
        (Ok(of_generic), Ok(of_disk)) if of_generic == of_disk => Ok(SysfsFacts { id, generic }),
        (Err(_), _) => no(format!("the kernel has no character device {generic} for {disk}")),
        _ => no(format!("the character device {generic} belongs to another controller")),
    }
}

/// Opens the character device of that kernel name, wherever the directory of devices has it.
fn open_generic(name: &str) -> Result<(OwnedFd, String), (String, String)> {
    let path = format!("/dev/{name}");
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    let file = opened.map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                format!(
                    "give this user read and write permission on {path} (a udev rule), or {INSTEAD}"
                )
            }
            io::ErrorKind::NotFound => {
                format!("let it into this container (--device {path}), or {INSTEAD}")
            }
            _ => INSTEAD.into(),
        };
        (format!("its character device {path} cannot be opened ({})", errno(&error)), remedy)
    })?;
    match number_of(&file) {
        Some(found) if Some(&found) == expected_number(name).as_ref() => Ok((file.into(), path)),
        _ => {
            Err((format!("{path} is not the device that the kernel calls {name}"), INSTEAD.into()))
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Major and minor number as sysfs writes them.
fn number_of(file: &File) -> Option<String> {
    let stat = rustix::fs::fstat(file).ok()?;
    let number = stat.st_rdev;
    Some(format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number)))
}

fn expected_number(name: &str) -> Option<String> {
    let text = read_to_string(format!("/sys/class/nvme-generic/{name}/dev")).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use tempfile::TempDir;

    use super::{SysfsFacts, facts};
    use crate::queue::{DiskPart, QueueLimits};

    /// A made-up sysfs with one namespace, `nvme3n2`.
    fn sysfs() -> (TempDir, QueueLimits) {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for directory in ["block/nvme3n2/queue", "class/nvme-generic/ng3n2", "controller"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        symlink(at("controller"), at("block/nvme3n2/device")).unwrap();
        symlink(at("controller"), at("class/nvme-generic/ng3n2/device")).unwrap();
        for (file, text) in [("nsid", "2\n"), ("csi", "0\n"), ("metadata_bytes", "0\n")] {
            fs::write(at("block/nvme3n2").join(file), text).unwrap();
        }
        fs::write(at("block/nvme3n2/queue/zoned"), "none\n").unwrap();
        let queue = QueueLimits::read(&at("block/nvme3n2")).unwrap();
        (root, queue)
    }

    fn refusal(root: &Path, queue: &QueueLimits) -> String {
        let (what, remedy) = facts(root, queue).unwrap_err();
        format!("{what}; {remedy}")
    }

    #[test]
    fn a_plain_namespace_has_a_number_and_a_sibling() {
        let (root, queue) = sysfs();
        let found = facts(root.path(), &queue).unwrap();
        assert_eq!(found, SysfsFacts { id: 2, generic: "ng3n2".into() });
    }

    #[test]
    fn each_thing_that_cannot_be_passed_through_is_named() {
        let (root, queue) = sysfs();
        let (sys, home) = (root.path(), root.path().join("block/nvme3n2"));
        let other = QueueLimits { disk: "nullb0".into(), ..queue.clone() };
        assert!(refusal(sys, &other).contains("no NVMe namespace (nullb0)"));
        let part = QueueLimits { part: DiskPart::Partition, ..queue.clone() };
        assert!(refusal(sys, &part).contains("partition of nvme3n2"));
        for (file, text, expected) in [
            ("queue/zoned", "host-managed\n", "zoned: host-managed"),
            ("csi", "2\n", "command set 2"),
            ("metadata_bytes", "8\n", "8 bytes of metadata"),
            ("nsid", "\n", "namespace number"),
        ] {
            let before = fs::read_to_string(home.join(file)).unwrap();
            fs::write(home.join(file), text).unwrap();
            assert!(refusal(sys, &queue).contains(expected), "{file}");
            assert!(refusal(sys, &queue).contains("use mode iopoll"), "{file}");
            fs::write(home.join(file), before).unwrap();
        }
        fs::create_dir(home.join("integrity")).unwrap();
        fs::write(home.join("integrity/format"), "T10-DIF-TYPE1-CRC\n").unwrap();
        assert!(refusal(sys, &queue).contains("T10-DIF-TYPE1-CRC"));
        fs::remove_dir_all(home.join("integrity")).unwrap();
        let link = sys.join("class/nvme-generic/ng3n2/device");
        fs::remove_file(&link).unwrap();
        assert!(refusal(sys, &queue).contains("no character device ng3n2"));
        fs::create_dir(sys.join("elsewhere")).unwrap();
        symlink(sys.join("elsewhere"), &link).unwrap();
        assert!(refusal(sys, &queue).contains("another controller"));
    }
}
