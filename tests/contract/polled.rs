//! Modes that need a real disk: the whole contract on the named device, else the refusal, which
//! names what is missing. They have a second ring for flush and discard.

use kvrail_device::{
    Device, DeviceError, DirectIo, Mode, ModeName, Uring, UringOptions, open_path,
};
use kvrail_ring::{Opcode, Status};

use crate::rig::{Bytes, Rig, Subject};
use crate::uring::{file, named_device, place};

fn on_device<M: Mode>(depth: u32) -> Result<Subject<Uring<M>>, DeviceError> {
    let (name, keep) = place();
    let fd = open_path(&name, DirectIo::Off)?;
    let device = Uring::open(UringOptions { depth, ..UringOptions::new(&name, fd) })?;
    Ok(Subject { device, bytes: Bytes::Kept, keep })
}

/// Whether the named device lacks queues to poll, or a character device.
fn lacks(what: &str) -> bool {
    let Some(name) = named_device() else { return true };
    let path = std::fs::canonicalize(&name).expect("the named device is there");
    let disk = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    match what {
        "poll_queues" => {
            let switch = format!("/sys/class/block/{disk}/queue/io_poll");
            std::fs::read_to_string(switch).is_ok_and(|text| text.trim() == "0")
        }
        "only NVMe namespaces" | "no NVMe namespace" => !disk.starts_with("nvme"),
        _ => false,
    }
}

/// The subject, or `None` after a check of the refusal: it must name the missing part, and the part
/// must be missing.
fn or_refused<M: Mode>() -> Option<Subject<Uring<M>>> {
    of_depth(128)
}

fn of_depth<M: Mode>(depth: u32) -> Option<Subject<Uring<M>>> {
    let error = match on_device::<M>(depth) {
        Ok(subject) => return Some(subject),
        Err(error) => error.to_string(),
    };
    println!("skipped: {error}");
    let reasons = ["poll_queues", "only NVMe namespaces", "no NVMe namespace", "O_DIRECT"];
    let reason = reasons.into_iter().find(|reason| error.contains(reason));
    let old = error.contains("kernel 6.13") && error.contains("hybrid");
    assert!(old || reason.is_some_and(lacks), "the named device must do: {error}");
    assert!(error.contains("use mode "), "a refusal names the remedy: {error}");
    None
}

/// Four times the requests that an NVMe queue has tags for (1,023): requests that the kernel
/// returns with EAGAIN are submitted again, unchanged, until all are done.
fn more_than_there_are_tags<M: Mode>() {
    const DEPTH: u32 = 4096;
    let Some(subject) = of_depth::<M>(DEPTH) else { return };
    let mut rig = Rig::new(subject, DEPTH as usize * 4096);
    for opcode in [Opcode::Write, Opcode::Read] {
        let mut operations = Vec::new();
        for nth in 0..DEPTH as usize {
            let at = nth * 4096;
            match opcode {
                Opcode::Write => rig.fill(at, at as u64, 4096, 9),
                _ => rig.wipe(at, 4096),
            }
            operations.push(rig.operation(opcode, at as u64, 4096, at));
        }
        for operation in &operations {
            assert!(rig.offer(*operation), "the device takes its depth");
        }
        rig.device.submit();
        rig.reap_until("all of them", |rig| rig.device.in_flight() == 0);
        assert!(rig.accounts.finished.drain(..).all(|finished| finished.status == Status::Ok));
    }
    assert!((0..DEPTH as usize).all(|nth| rig.holds(nth * 4096, (nth * 4096) as u64, 4096, 9)));
}

/// The whole contract in one mode.
macro_rules! contract {
    ($($name:ident $mode:ident,)*) => {
        $(mod $name {
            use super::{Subject, Uring};

            fn open() -> Option<Subject<Uring<kvrail_device::$mode>>> {
                super::or_refused()
            }

            conformance!(open);

            #[test]
            fn more_than_there_are_tags() {
                super::more_than_there_are_tags::<kvrail_device::$mode>();
            }
        })*
    };
}

contract! {
    iopoll Iopoll,
    hybrid Hybrid,
    passthrough Passthrough,
    passthrough_iopoll PassthroughIopoll,
    sqpoll_iopoll SqpollIopoll,
}

/// Only where a device is named; files are covered elsewhere.
mod named {
    use kvrail_device::{Interrupt, Sqpoll};

    use super::{Mode, Subject, Uring};

    fn open<M: Mode>() -> Option<Subject<Uring<M>>> {
        super::named_device()?;
        super::or_refused()
    }

    mod interrupt {
        use super::{Interrupt, open};

        conformance!(open::<Interrupt>);
    }

    mod sqpoll {
        use super::{Sqpoll, open};

        conformance!(open::<Sqpoll>);
    }
}

#[test]
fn polled_modes_need_direct_io() {
    for mode in ModeName::ALL.into_iter().filter(|mode| mode.needs_direct()) {
        let path = file();
        let name = path.to_str().expect("UTF-8 paths");
        let fd = open_path(name, DirectIo::Off).expect("our own file");
        let options = UringOptions { direct: DirectIo::Off, ..UringOptions::new(name, fd) };
        let choice = kvrail_device::ModeChoice::Fixed(mode);
        let error = kvrail_device::AnyDevice::open(choice, options).unwrap_err().to_string();
        assert!(error.contains(mode.name()) && error.contains("needs O_DIRECT"), "{error}");
    }
}
