//! io_uring rings on files and on a loop device, in the modes that need no special hardware.

use std::path::Path;
use std::process::Command;

use kvrail_device::{
    DeviceError, DirectIo, Interrupt, Mode, Registering, Sqpoll, Uring, UringOptions, open_path,
};
use tempfile::{NamedTempFile, TempPath};

use crate::rig::{Bytes, Subject};

/// Bytes of each test file.
pub(crate) const FILE_BYTES: u64 = 64 << 20;

/// A file on a real disk (the target directory is, `/tmp` may not be), fully allocated.
pub(crate) fn file() -> TempPath {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(directory).expect("the target directory is writable");
    let file = NamedTempFile::new_in(directory).expect("the target directory is writable");
    let fd = file.as_file();
    let flags = rustix::fs::FallocateFlags::empty();
    if rustix::fs::fallocate(fd, flags, 0, FILE_BYTES).is_err() {
        fd.set_len(FILE_BYTES).expect("a file can be extended");
    }
    file.into_temp_path()
}

/// The block device named by `KVRAIL_CONTRACT_DEVICE`, whose bytes may be overwritten. Tests that
/// share it must run one at a time.
pub(crate) fn named_device() -> Option<String> {
    std::env::var("KVRAIL_CONTRACT_DEVICE").ok()
}

/// The named block device, else a fresh file, with the guard that keeps it.
pub(crate) fn place() -> (String, Box<dyn std::any::Any>) {
    match named_device() {
        Some(name) => (name, Box::new(())),
        None => {
            let path = file();
            (path.to_str().expect("UTF-8 paths").to_owned(), Box::new(path))
        }
    }
}

/// A device on a fresh file; `None`, with the reason printed, where the file system has no
/// O_DIRECT.
pub(crate) fn on_file<M: Mode>(adjust: fn(&mut UringOptions)) -> Option<Subject<Uring<M>>> {
    let path = file();
    let name = path.to_str().expect("UTF-8 paths").to_owned();
    let fd = open_path(&name, DirectIo::Off).expect("our own file");
    let mut options = UringOptions::new(&name, fd);
    adjust(&mut options);
    match Uring::open(options) {
        Ok(device) => Some(Subject { device, bytes: Bytes::Kept, keep: Box::new(path) }),
        Err(error @ DeviceError::Open { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

mod interrupt_on_file {
    use super::{Interrupt, Subject, Uring};

    fn open() -> Option<Subject<Uring<Interrupt>>> {
        super::on_file(|_| ())
    }

    conformance!(open);
}

/// Small pieces and few of them: splitting, waiting for room and joining all the time.
mod interrupt_split {
    use super::{Interrupt, Subject, Uring};

    fn open() -> Option<Subject<Uring<Interrupt>>> {
        super::on_file(|options| {
            options.transfer_bytes_max = Some(20 << 10);
            options.depth = 48;
        })
    }

    conformance!(open);
}

mod interrupt_buffered {
    use super::{DirectIo, Interrupt, Subject, Uring};

    fn open() -> Option<Subject<Uring<Interrupt>>> {
        super::on_file(|options| options.direct = DirectIo::Off)
    }

    conformance!(open);
}

/// The fallback for a process that may not pin memory.
mod interrupt_by_address {
    use super::{Interrupt, Registering, Subject, Uring};

    fn open() -> Option<Subject<Uring<Interrupt>>> {
        super::on_file(|options| options.registering = Registering::Never)
    }

    conformance!(open);
}

mod sqpoll_by_address {
    use super::{Registering, Sqpoll, Subject, Uring};

    fn open() -> Option<Subject<Uring<Sqpoll>>> {
        super::on_file(|options| options.registering = Registering::Never)
    }

    conformance!(open);
}

mod sqpoll_on_file {
    use super::{Sqpoll, Subject, Uring};

    fn open() -> Option<Subject<Uring<Sqpoll>>> {
        super::on_file(|options| options.thread.idle_ms = 2)
    }

    conformance!(open);
}

/// A loop device with direct I/O to its file, detached when dropped.
pub(crate) struct Loop {
    pub(crate) device: String,
    file: TempPath,
}

impl Loop {
    pub(crate) fn new() -> Option<Self> {
        let file = file();
        let output = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(&file)
            .output();
        match output {
            Ok(output) if output.status.success() => {
                let device = String::from_utf8(output.stdout).expect("a path").trim().to_owned();
                Some(Self { device, file })
            }
            Ok(output) => {
                println!("skipped: losetup: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                println!("skipped: no losetup: {error}");
                None
            }
        }
    }
}

impl Loop {
    /// Whether this user may: a container's root has no `CAP_SYS_ADMIN`.
    pub(crate) fn shrink_to_nothing(&self) -> bool {
        let file = std::fs::OpenOptions::new().write(true).open(&self.file);
        file.and_then(|file| file.set_len(0)).expect("our own file");
        let output = Command::new("losetup").args(["--set-capacity", &self.device]).output();
        let output = output.expect("losetup ran before");
        if !output.status.success() {
            println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        output.status.success()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _gone = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

mod interrupt_on_block_device {
    use kvrail_device::{Device, DirectIo, UringOptions, open_path};

    use super::{Bytes, Interrupt, Loop, Subject, Uring};

    fn open() -> Option<Subject<Uring<Interrupt>>> {
        let block = Loop::new()?;
        let fd = open_path(&block.device, DirectIo::Required).expect("our own device");
        let device = Uring::open(UringOptions::new(&block.device, fd)).expect("a block device");
        assert_eq!(device.description().kind, "block");
        Some(Subject { device, bytes: Bytes::Kept, keep: Box::new(block) })
    }

    conformance!(open);
}
