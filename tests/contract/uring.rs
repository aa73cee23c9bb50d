//! io_uring rings on files and on a loop device, in the modes that need no special hardware.

use std::path::Path;
use std::process::Command;

use kvrail_device::{
    DeviceError, DirectIo, Interrupt, Mode, Sqpoll, Uring, UringOptions, open_path,
};
use tempfile::{NamedTempFile, TempPath};

use crate::rig::{Bytes, Subject};

/// Bytes of each test file.
pub(crate) const FILE_BYTES: u64 = 64 << 20;

/// A file on a real disk (the target directory is, `/tmp` may not be), fully allocated.
pub(crate) fn file() -> TempPath {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = NamedTempFile::new_in(directory).expect("the target directory is writable");
    let fd = file.as_file();
    let flags = rustix::fs::FallocateFlags::empty();
    if rustix::fs::fallocate(fd, flags, 0, FILE_BYTES).is_err() {
        fd.set_len(FILE_BYTES).expect("a file can be extended");
    }
    file.into_temp_path()
}

/// A device on a fresh file; `None`, said why, where the file system has no O_DIRECT.
fn on_file<M: Mode>(adjust: fn(&mut UringOptions)) -> Option<Subject<Uring<M>>> {
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

mod sqpoll_on_file {
    use super::{Sqpoll, Subject, Uring};

    fn open() -> Option<Subject<Uring<Sqpoll>>> {
        super::on_file(|options| options.thread.idle_ms = 2)
    }

    conformance!(open);
}

/// A loop device with direct I/O to its file, detached when dropped.
struct Loop {
    device: String,
    file: TempPath,
}

impl Loop {
    fn new() -> Option<Self> {
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
    fn shrink_to_nothing(&self) {
        let file = std::fs::OpenOptions::new().write(true).open(&self.file);
        file.and_then(|file| file.set_len(0)).expect("our own file");
        let status = Command::new("losetup").args(["--set-capacity", &self.device]).status();
        assert!(status.expect("losetup ran before").success());
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

mod special {
    use std::sync::Arc;

    use kvrail_device::{
        BufferIndex, Device, DirectIo, Event, Events, Interrupt, Mechanism, ModeChoice, ModeName,
        Sqpoll, Uring, UringOptions, open_path,
    };
    use kvrail_memory::{HeapBlock, Pinned};
    use kvrail_ring::{Opcode, Status};

    use super::{FILE_BYTES, Loop, file, on_file};
    use crate::rig::{Bytes, Rig, Subject};

    #[test]
    fn opened_here_and_driven_there() {
        let subject = on_file::<Interrupt>(|_| ()).expect("files have O_DIRECT here");
        let Subject { device, bytes, keep: _keep } = subject;
        std::thread::spawn(move || {
            let mut rig = Rig::new(Subject { device, bytes, keep: Box::new(()) }, 1 << 20);
            rig.round_trip(4096, 65_536, 0, 1);
        })
        .join()
        .expect("the device follows the thread that first submits");
    }

    #[test]
    fn attached_here_and_driven_there() {
        let subject = on_file::<Interrupt>(|_| ()).expect("files have O_DIRECT here");
        let mut rig = Rig::new(Subject { keep: Box::new(()), ..subject }, 1 << 20);
        let (device, region) = (&mut rig.device, Arc::clone(&rig.region));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let read = kvrail_device::Operation {
                    tag: 1,
                    opcode: Opcode::Read,
                    durability: kvrail_device::Durability::Visible,
                    offset: 0,
                    length: 4096,
                    buffer: BufferIndex(0),
                    buffer_offset: 0,
                };
                device.prepare(read).expect("room");
                device.submit();
                let mut events = Events::new();
                while events.is_empty() {
                    device.reap(&mut events);
                }
                device.detach(BufferIndex(0)).expect("attached");
                while !events.contains(&Event::Detached(BufferIndex(0))) {
                    device.reap(&mut events);
                }
            });
        });
        drop(rig); // on this thread again: nothing is in flight
        assert_eq!(Arc::strong_count(&region), 1);
    }

    /// A thread registers 16 rings at most; the rest work all the same and say so.
    #[test]
    fn more_rings_than_a_thread_can_register() {
        let path = file();
        let name = path.to_str().expect("UTF-8 paths");
        let mut devices = Vec::new();
        for nth in 0..18 {
            let fd = open_path(name, DirectIo::Off).expect("our own file");
            let options =
                UringOptions { direct: DirectIo::Optional, ..UringOptions::new(name, fd) };
            let device = Uring::<Interrupt>::open(options).expect("rings are cheap");
            let subject = Subject { device, bytes: Bytes::Kept, keep: Box::new(()) };
            let mut rig = Rig::new(subject, 4096);
            rig.round_trip(nth * 4096, 4096, 0, 1);
            let features = rig.device.description().features.join(", ");
            assert_eq!(features.contains("registered ring"), nth < 16, "{nth}: {features}");
            devices.push(rig);
        }
    }

    #[test]
    fn a_busy_sqpoll_ring_makes_no_system_calls() {
        let subject = on_file::<Sqpoll>(|options| options.thread.idle_ms = 5_000);
        let mut rig = Rig::new(subject.expect("files have O_DIRECT here"), 1 << 20);
        for _ in 0..20 {
            let mut reads = Vec::new();
            for nth in 0..64 {
                reads.push(rig.operation(Opcode::Read, nth * 4096, 4096, 0));
            }
            rig.run(&reads);
        }
        assert!(rig.device.system_calls() <= 2, "{} calls", rig.device.system_calls());
    }

    #[test]
    fn an_interrupt_ring_makes_one_call_to_submit_and_at_most_one_to_collect() {
        let subject = on_file::<Interrupt>(|_| ()).expect("files have O_DIRECT here");
        let mut rig = Rig::new(subject, 1 << 20);
        for nth in 0..100 {
            let read = rig.operation(Opcode::Read, nth * 4096, 4096, 0);
            rig.must(read);
        }
        assert!(rig.device.system_calls() <= 200, "{} calls", rig.device.system_calls());
    }

    /// What a surprise removal looks like: the device has no bytes any more, reads bring 0 of them
    /// without an error, writes say ENOSPC. Neither may pass for anything but device gone.
    #[test]
    fn a_device_that_shrinks_to_nothing_is_gone() {
        let Some(block) = Loop::new() else { return };
        let fd = open_path(&block.device, DirectIo::Required).expect("our own device");
        let device = Uring::<Interrupt>::open(UringOptions::new(&block.device, fd)).expect("block");
        let subject = Subject { device, bytes: Bytes::Kept, keep: Box::new(()) };
        let mut rig = Rig::new(subject, 1 << 20);
        rig.round_trip(0, 65_536, 0, 1);
        block.shrink_to_nothing();
        for opcode in [Opcode::Read, Opcode::Write, Opcode::Read] {
            let operation = rig.operation(opcode, 4096, 65_536, 0);
            let finished = rig.run(&[operation])[0];
            assert_eq!((finished.status, finished.bytes), (Status::DeviceGone, 0), "{opcode:?}");
        }
    }

    #[test]
    fn reading_behind_the_end_of_a_truncated_file_is_an_error() {
        let path = file();
        let name = path.to_str().expect("UTF-8 paths");
        let fd = open_path(name, DirectIo::Off).expect("our own file");
        let options = UringOptions { direct: DirectIo::Optional, ..UringOptions::new(name, fd) };
        let device = Uring::<Interrupt>::open(options).expect("a file");
        assert_eq!(device.description().capacity_bytes, FILE_BYTES);
        let subject = Subject { device, bytes: Bytes::Kept, keep: Box::new(()) };
        let mut rig = Rig::new(subject, 1 << 20);
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(4096))
            .expect("our own file");
        let read = rig.operation(Opcode::Read, 0, 65_536, 0);
        let finished = rig.run(&[read])[0];
        assert_eq!((finished.status, finished.bytes), (Status::IoError, 4096));
    }

    #[test]
    fn impossible_options_are_refused_by_name() {
        let path = file();
        let name = path.to_str().expect("UTF-8 paths");
        let open = |adjust: fn(&mut UringOptions), mode| {
            let fd = open_path(name, DirectIo::Off).expect("our own file");
            let mut options = UringOptions::new(name, fd);
            options.direct = DirectIo::Optional;
            adjust(&mut options);
            let choice = ModeChoice::Fixed(mode);
            Mechanism::open(choice, options).map(|_| ()).expect_err("impossible").to_string()
        };
        let text = open(|options| options.depth = 0, ModeName::Interrupt);
        assert!(text.contains("depth 0") && text.contains("1 to 4096"), "{text}");
        let text = open(|options| options.depth = 4097, ModeName::Interrupt);
        assert!(text.contains("depth 4097"), "{text}");
        let text = open(|options| options.thread.cpu = Some(4000), ModeName::Sqpoll);
        assert!(text.contains("CPU 4000") && text.contains("cpuset"), "{text}");
    }

    #[test]
    fn a_refused_registration_leaves_nothing_behind() {
        let subject = on_file::<Interrupt>(|_| ()).expect("files have O_DIRECT here");
        let mut rig = Rig::new(subject, 4096);
        // The region needs more entries than are left: refused by the table.
        let region: Arc<dyn Pinned> = Arc::new(HeapBlock::new((1 << 30) + 4096));
        let last = BufferIndex(kvrail_device::BUFFERS_MAX - 1);
        let error = rig.device.attach(last, Arc::clone(&region)).unwrap_err().to_string();
        assert!(error.contains("lower entry"), "{error}");
        assert_eq!(Arc::strong_count(&region), 1);
        let small: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4096));
        rig.device.attach(last, small).expect("free");
    }
}
