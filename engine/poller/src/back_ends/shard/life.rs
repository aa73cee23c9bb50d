//! Lives of a shard. A life begins with the start of the store, and ends when the device is gone
//! and what was in flight has ended: the store is swept. The next life begins with another store.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LifeState {
    /// Its device is there.
    Running,
    /// Its device was gone: the store is asked nothing until the next life.
    Gone,
    /// The same, and its requests were ended.
    Swept,
}

/// Which life a shard is in, and how far.
#[derive(Debug)]
pub(super) struct Life {
    number: u32,
    state: LifeState,
    /// The poller is about to stop: nothing is asked any more. What is gone stays gone then.
    is_stopped: bool,
}

impl Life {
    pub(super) fn first() -> Self {
        Self { number: 1, state: LifeState::Running, is_stopped: false }
    }

    /// Grants hold for one life. 0 is none.
    #[inline(always)]
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Whether its store may be asked.
    pub(super) fn is_running(&self) -> bool {
        self.state == LifeState::Running && !self.is_stopped
    }

    /// Whether its device is gone.
    #[inline(always)]
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state, LifeState::Gone | LifeState::Swept)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether the requests of a life without a device were ended.
    pub(super) fn is_swept(&self) -> bool {
        self.state == LifeState::Swept
    }

    /// The device is gone.
    pub(super) fn lose_device(&mut self) {
        if self.state != LifeState::Swept {
            self.state = LifeState::Gone;
        }
    }

    /// The requests of a life without a device are ended now.
    pub(super) fn sweep(&mut self) {
        assert_eq!(
            self.state,
            LifeState::Gone,
            "a life is swept once, and only without its device"
        );
        self.state = LifeState::Swept;
    }

    /// The next life begins.
    pub(super) fn begin_anew(&mut self) {
        assert_eq!(self.state, LifeState::Swept, "nothing of the life before is in flight");
        *self = Self { number: self.number + 1, ..Self::first() };
    }

    /// Nothing is asked any more.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }
}

#[cfg(test)]
mod tests {
    use super::Life;

    #[test]
    fn a_life_without_its_device_is_swept_before_the_next_begins() {
        let mut life = Life::first();
        assert!(life.is_running());
        life.lose_device();
        assert!(life.is_gone() && !life.is_swept());
        life.sweep();
        life.lose_device();
        assert!(life.is_gone() && life.is_swept(), "a late end is no second loss");
        life.begin_anew();
        assert_eq!((life.number(), life.is_running(), life.is_swept()), (2, true, false));
    }

    /// A poller steps a shard until all of its shards have stopped: one without a device is not to
    /// be stepped as one that serves.
    #[test]
    fn a_stop_brings_no_device_back() {
        let mut life = Life::first();
        life.lose_device();
        life.sweep();
        life.stop();
        assert!(life.is_stopped() && life.is_gone() && life.is_swept() && !life.is_running());
        let mut life = Life::first();
        life.stop();
        assert!(life.is_stopped() && !life.is_gone() && !life.is_running());
    }

    #[test]
    #[should_panic(expected = "nothing of the life before is in flight")]
    fn no_life_begins_before_the_one_before_is_swept() {
        let mut life = Life::first();
        life.lose_device();
        life.begin_anew();
    }
}
