//! Polled rings: the whole contract where the disk has queues to poll, else a refusal that says
//! what is missing. With polling they also have a second ring for flush and discard.

use kvrail_device::{
    DeviceError, DirectIo, Iopoll, Mode, ModeName, SqpollIopoll, Uring, UringOptions, open_path,
};

use crate::rig::{Bytes, Subject};
use crate::uring::{file, named_device, place};

fn on_device<M: Mode>() -> Result<Subject<Uring<M>>, DeviceError> {
    let (name, keep) = place();
    let fd = open_path(&name, DirectIo::Off)?;
    let device = Uring::open(UringOptions::new(&name, fd))?;
    Ok(Subject { device, bytes: Bytes::Kept, keep })
}

/// The subject, or `None` after the refusal was checked.
fn or_refused<M: Mode>() -> Option<Subject<Uring<M>>> {
    match on_device::<M>() {
        Ok(subject) => Some(subject),
        Err(error) => {
            assert!(named_device().is_none(), "the named device must do: {error}");
            let text = error.to_string();
            println!("skipped: {text}");
            let polled = text.contains("nvme.poll_queues") && text.contains("use mode interrupt");
            let direct = text.contains("O_DIRECT");
            assert!(polled || direct, "a refusal names what is missing: {text}");
            None
        }
    }
}

mod interrupt {
    use kvrail_device::Interrupt;

    use super::{Subject, Uring};

    /// Only where a device is named; files are covered elsewhere.
    fn open() -> Option<Subject<Uring<Interrupt>>> {
        super::named_device()?;
        super::or_refused()
    }

    conformance!(open);
}

mod iopoll {
    use super::{Iopoll, Subject, Uring};

    fn open() -> Option<Subject<Uring<Iopoll>>> {
        super::or_refused()
    }

    conformance!(open);
}

mod sqpoll_iopoll {
    use super::{SqpollIopoll, Subject, Uring};

    fn open() -> Option<Subject<Uring<SqpollIopoll>>> {
        super::or_refused()
    }

    conformance!(open);
}

#[test]
fn polled_modes_need_direct_io() {
    for mode in [ModeName::Iopoll, ModeName::SqpollIopoll] {
        let path = file();
        let name = path.to_str().expect("UTF-8 paths");
        let fd = open_path(name, DirectIo::Off).expect("our own file");
        let options = UringOptions { direct: DirectIo::Off, ..UringOptions::new(name, fd) };
        let choice = kvrail_device::ModeChoice::Fixed(mode);
        let error = kvrail_device::Mechanism::open(choice, options).unwrap_err().to_string();
        assert!(error.contains(mode.name()) && error.contains("needs O_DIRECT"), "{error}");
    }
}
