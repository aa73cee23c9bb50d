//! Modes that need a real disk: the whole contract on the device named, else a refusal that says
//! what is missing. They have a second ring for flush and discard.

use kvrail_device::{DeviceError, DirectIo, Mode, ModeName, Uring, UringOptions, open_path};

use crate::rig::{Bytes, Subject};
use crate::uring::{file, named_device, place};

fn on_device<M: Mode>() -> Result<Subject<Uring<M>>, DeviceError> {
    let (name, keep) = place();
    let fd = open_path(&name, DirectIo::Off)?;
    let device = Uring::open(UringOptions::new(&name, fd))?;
    Ok(Subject { device, bytes: Bytes::Kept, keep })
}

/// What the named device lacks: queues to poll, or a character device.
fn lacks(what: &str) -> bool {
    let Some(name) = named_device() else { return true };
    let path = std::fs::canonicalize(&name).expect("the named device is there");
    let disk = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    match what {
        "nvme.poll_queues" => {
            let switch = format!("/sys/class/block/{disk}/queue/io_poll");
            std::fs::read_to_string(switch).is_ok_and(|text| text.trim() == "0")
        }
        "only NVMe namespaces" | "no NVMe namespace" => !disk.starts_with("nvme"),
        _ => false,
    }
}

/// The subject, or `None` after the refusal was checked: it names what is missing, and that is
/// true.
fn or_refused<M: Mode>() -> Option<Subject<Uring<M>>> {
    let error = match on_device::<M>() {
        Ok(subject) => return Some(subject),
        Err(error) => error.to_string(),
    };
    println!("skipped: {error}");
    let reasons = ["nvme.poll_queues", "only NVMe namespaces", "no NVMe namespace", "O_DIRECT"];
    let reason = reasons.into_iter().find(|reason| error.contains(reason));
    let old = error.contains("kernel 6.13") && error.contains("hybrid");
    assert!(old || reason.is_some_and(lacks), "the named device must do: {error}");
    assert!(error.contains("use mode "), "a refusal names the remedy: {error}");
    None
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
        let error = kvrail_device::Mechanism::open(choice, options).unwrap_err().to_string();
        assert!(error.contains(mode.name()) && error.contains("needs O_DIRECT"), "{error}");
    }
}
