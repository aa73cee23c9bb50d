//! Requests with checksums on their way through a poller: reads when their device has ended them,
//! writes before it gets them.

use kvrail_device::{Clock, Device, Finished, SlotId};
use kvrail_ring::{Opcode, Status};

use crate::checksummer::Sum;
use crate::completion_batch::Run;
use crate::poller::Poller;

impl<D: Device, C: Clock> Poller<D, C> {
    /// Adds up what this tick may; returns how many pieces that were.
    pub(crate) fn add_up(&mut self) -> u64 {
        self.summing.begin_tick();
        let mut pieces = 0;
        while let Some(next) = self.summing.next() {
            let accepted = self.requests.get(next.id).expect("what waits for a sum is claimed");
            let region = accepted.kin.region().and_then(|region| self.regions.get(region));
            let memory = &region.expect("a request under way keeps its region").memory;
            let memory = memory.host().expect("checksums are of host memory");
            let range = (accepted.buffer_offset, accepted.length);
            if let Sum::Done(sum, ended_ns) = self.summing.add(next, memory, range) {
                self.summed(next.id, sum, ended_ns);
            }
            pieces += 1;
        }
        pieces
    }

    /// The sum of a request is known: a read ends, a write goes to its device.
    fn summed(&mut self, id: SlotId, sum: Option<u64>, ended_ns: u64) {
        let accepted = self.requests.get_mut(id).expect("just seen");
        let (right, index) = (accepted.settle_checksum(sum), usize::from(accepted.device));
        let (opcode, length) = (accepted.kin.opcode(), accepted.length);
        match (opcode, right) {
            (Opcode::Write, true) => {
                accepted.kin = accepted.kin.summed();
                self.start_or_wait(index, id);
            }
            (Opcode::Write, false) => self.finish(id, Status::Corrupt, 0),
            (_, true) => self.finish_at(id, Status::Ok, length, ended_ns),
            (_, false) => {
                self.failed(index, 1);
                self.finish_at(id, Status::Corrupt, length, ended_ns);
            }
        }
    }

    /// A device ended a read whose bytes are to be added up: it is done with it, the poller is not.
    #[cold]
    pub(crate) fn sum_read(&mut self, index: usize, finished: Finished) {
        let id = SlotId::from_u64(finished.tag);
        let accepted = self.requests.get(id).expect("just seen");
        let mut run = Run::of(accepted, Status::Ok, self.now_ns);
        let session = accepted.session;
        run.add(accepted, finished.bytes);
        self.account(index, &run);
        self.summing.push(id, session, self.now_ns);
    }
}
