//! Log lines about drives that refuse writes: one when it begins, one when it ends.

use std::time::{Duration, Instant};

use kvrail_ring::Status;

/// From the end of a refusal to the next one that is logged: a drive may refuse one write in two.
const QUIET: Duration = Duration::from_secs(60);

/// The logged state of a member's drive.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    refuses: bool,
    ended: Option<Instant>,
}

/// The log line that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DueLine {
    Nothing,
    Begins,
    Ends,
}

impl RefusalLog {
    fn look(&mut self, refuses: bool, now: Instant) -> DueLine {
        let quiet = self.ended.is_some_and(|ended| now.duration_since(ended) < QUIET);
        if refuses == self.refuses || refuses && quiet {
            return DueLine::Nothing;
        }
        self.refuses = refuses;
        if refuses {
            return DueLine::Begins;
        }
        self.ended = Some(now);
        DueLine::Ends
    }
}

impl RefusalLog {
    /// Logs when a member's drive begins to refuse writes, with `status`, and when it takes them
    /// again.
    pub(super) fn log(&mut self, store: &str, device: &str, status: Option<u16>, now: Instant) {
        match self.look(status.is_some(), now) {
            DueLine::Nothing => {}
            DueLine::Begins => tracing::error!(
                device,
                status = status.and_then(Status::from_number).map(Status::name),
                "store {store}: the drive refuses writes: puts and drops are declined, and blocks \
                 that are there are served; writes are tried again every second. See dmesg, \
                 whether its file system is read-only, and its free space (df)"
            ),
            DueLine::Ends => tracing::warn!(device, "store {store}: the drive takes writes again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{DueLine, QUIET, RefusalLog};

    #[test]
    fn beginning_and_end_are_said_once_and_not_often() {
        let (mut log, start) = (RefusalLog::default(), Instant::now());
        let mut at = |seconds, refuses| log.look(refuses, start + Duration::from_secs(seconds));
        assert_eq!(
            [at(0, false), at(1, true), at(2, true)],
            [DueLine::Nothing, DueLine::Begins, DueLine::Nothing]
        );
        assert_eq!([at(3, false), at(4, false)], [DueLine::Ends, DueLine::Nothing]);
        assert_eq!([at(5, true), at(6, false)], [DueLine::Nothing; 2], "again and again");
        assert_eq!(at(3 + QUIET.as_secs(), true), DueLine::Begins);
        assert_eq!(at(1000, false), DueLine::Ends);
    }
}
