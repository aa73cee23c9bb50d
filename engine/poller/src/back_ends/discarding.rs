//! A discard that is longer than one operation of the device: piece after piece.

use kvrail_ring::Status;
use kvrail_store::TaskId;

/// Bytes of one piece.
const PIECE_BYTES: u64 = 1 << 30;

/// The discard that a store waits for, if it waits for one.
#[derive(Debug, Default)]
pub(crate) struct Discarding(Option<Going>);

#[derive(Clone, Copy, Debug)]
struct Going {
    id: TaskId,
    offset: u64,
    left: u64,
    /// A piece of it is at the device.
    out: bool,
}

impl Discarding {
    /// Discards this many bytes of the area.
    pub(crate) fn begin(&mut self, id: TaskId, offset: u64, left: u64) {
        debug_assert!(self.0.is_none(), "a store waits for one discard at a time");
        debug_assert!(left > 0, "a discard has bytes");
        self.0 = Some(Going { id, offset, left, out: false });
    }

    /// The next piece, if none is at the device: first byte and bytes.
    pub(crate) fn next(&mut self) -> Option<(TaskId, u64, u32)> {
        let going = self.0.as_mut().filter(|going| !going.out)?;
        let (id, offset) = (going.id, going.offset);
        let bytes = going.left.min(PIECE_BYTES);
        (going.offset, going.left, going.out) = (offset + bytes, going.left - bytes, true);
        Some((id, offset, u32::try_from(bytes).expect("1 GiB at most")))
    }

    /// Whether the task that has ended is a piece, and others follow.
    pub(crate) fn goes_on(&mut self, id: TaskId, status: Status) -> bool {
        let Some(going) = self.0.as_mut().filter(|going| going.id == id) else { return false };
        going.out = false;
        let more = status == Status::Ok && going.left > 0;
        if !more {
            self.0 = None;
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use kvrail_ring::Status;
    use kvrail_store::TaskId;

    use super::Discarding;

    #[test]
    fn a_long_discard_goes_piece_by_piece_and_ends_with_the_first_failure() {
        let id = TaskId::of_number(7);
        let mut discarding = Discarding::default();
        assert_eq!(discarding.next(), None);
        discarding.begin(id, 4096, (2 << 30) + 512);
        assert_eq!(discarding.next(), Some((id, 4096, 1 << 30)));
        assert_eq!(discarding.next(), None, "one at a time");
        assert!(!discarding.goes_on(TaskId::of_number(8), Status::Ok), "another task's end");
        assert!(discarding.goes_on(id, Status::Ok));
        assert_eq!(discarding.next(), Some((id, 4096 + (1 << 30), 1 << 30)));
        assert!(discarding.goes_on(id, Status::Ok));
        assert_eq!(discarding.next(), Some((id, 4096 + (2 << 30), 512)));
        assert!(!discarding.goes_on(id, Status::Ok));
        discarding.begin(id, 0, 2 << 30);
        assert!(discarding.next().is_some());
        assert!(!discarding.goes_on(id, Status::Unsupported));
        assert_eq!(discarding.next(), None);
    }
}
