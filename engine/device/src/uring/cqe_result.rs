//! The meaning of the kernel's result of a request. The only place that reads errno of a
//! completion.

use kvrail_ring::Status;
use rustix::io::Errno;

use crate::failure::Cause;
use crate::split::Outcome;

/// Why, for a `res` that is a failure.
pub(super) fn cause(result: i32) -> Cause {
    if result < 0 { Cause::Errno(Errno::from_raw_os_error(-result)) } else { Cause::Short }
}

/// The meaning of a completion's `res`.
#[inline]
pub(super) fn outcome(result: i32) -> Outcome {
    match u32::try_from(result) {
        Ok(bytes) => Outcome::Moved(bytes),
        Err(_) => failure(Errno::from_raw_os_error(-result)),
    }
}

#[cold]
fn failure(errno: Errno) -> Outcome {
    Outcome::Failed(match errno {
        // Resource shortage, a signal, or a worker that went away: nothing was done.
        Errno::AGAIN | Errno::INTR | Errno::CANCELED => return Outcome::Again,
        Errno::NOSPC | Errno::DQUOT => Status::NoSpace,
        Errno::NODEV | Errno::NXIO => Status::DeviceGone,
        Errno::OPNOTSUPP => Status::Unsupported,
        // The memory of the request is not there: pages of an addressed region that its owner took
        // away. The device did nothing.
        Errno::FAULT => Status::Invalid,
        _ => Status::IoError,
    })
}

/// Whether a device that has just been taken away would also answer like this: any failure, or a
/// short transfer.
#[inline]
pub(super) fn is_suspect(outcome: Outcome, asked: u32) -> bool {
    match outcome {
        Outcome::Moved(bytes) => bytes < asked,
        Outcome::Failed(_) | Outcome::Transient(_) => true,
        Outcome::Again | Outcome::Later => false,
    }
}

#[cfg(test)]
mod tests {
    use kvrail_ring::Status;
    use rustix::io::Errno;

    use super::{is_suspect, outcome};
    use crate::split::Outcome;

    #[test]
    fn results_mean_what_the_table_says() {
        let of = |errno: Errno| outcome(-errno.raw_os_error());
        assert_eq!(outcome(4096), Outcome::Moved(4096));
        for (errno, status) in [
            (Errno::NOSPC, Status::NoSpace),
            (Errno::NODEV, Status::DeviceGone),
            (Errno::NXIO, Status::DeviceGone),
            (Errno::OPNOTSUPP, Status::Unsupported),
            (Errno::IO, Status::IoError),
            (Errno::FAULT, Status::Invalid),
            (Errno::INVAL, Status::IoError),
        ] {
            assert_eq!(of(errno), Outcome::Failed(status));
            assert!(is_suspect(of(errno), 4096));
        }
        assert_eq!(of(Errno::AGAIN), Outcome::Again);
        assert!(is_suspect(Outcome::Moved(0), 512) && is_suspect(Outcome::Moved(512), 4096));
        assert!(!is_suspect(Outcome::Moved(512), 512) && !is_suspect(Outcome::Again, 1));
    }
}
