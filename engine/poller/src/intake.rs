//! The way in: each request that was copied out of a lane is checked once, and begun.

use kvrail_device::Device;
use kvrail_ring::slot::FLAG_CONTINUED;
use kvrail_ring::{Completion, Opcode, RequestSnapshot, SideSlot, Status};

use crate::admission::{Admission, Admitted, check_get};
use crate::back_ends::BackEnds;
use crate::executor::Executor;
use crate::front_end::{BegunRequest, LaneContext};
use crate::regions::{Pass, Regions};
use crate::scheduler::ReadTime;

/// What a request passes on its way to its device or its store.
#[derive(Debug)]
pub(crate) struct Intake<'a, D> {
    pub(crate) admission: &'a mut Admission,
    pub(crate) back_ends: &'a mut BackEnds,
    pub(crate) executor: &'a mut Executor<D>,
}

impl<D: Device> Intake<'_, D> {
    /// Begins a request; an answer that it has already goes to the place given.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        (request, side): (&RequestSnapshot, SideSlot<'_>),
        (seat, kept): (LaneContext, &mut Completion),
        regions: &mut Regions,
    ) -> BegunRequest {
        let (session, pass) = (seat.session, Pass::Common);
        let checked = Admission::check_range(request, session, self.back_ends, regions, pass);
        if let Ok(Some(range)) = checked {
            self.executor.begin(request, seat, range);
            return BegunRequest::Task;
        }
        // A copy: where the address of the request itself is passed on, it lies in memory for all.
        let copy = *request;
        match copy.opcode() {
            Some(Opcode::Get) => self.begin_get(&copy, (seat, kept), regions),
            Some(Opcode::Lookup) => self.begin_lookup(&copy, (seat, kept)),
            _ => self.begin_any((&copy, side), (seat, kept), regions),
        }
    }

    /// Begins a get.
    #[inline(never)]
    fn begin_get(
        &mut self,
        request: &RequestSnapshot,
        (seat, kept): (LaneContext, &mut Completion),
        regions: &mut Regions,
    ) -> BegunRequest {
        let Self { admission, back_ends, executor } = self;
        if admission.is_draining() {
            return BegunRequest::Answer(Status::Draining);
        }
        match check_get(request, seat.session, back_ends, regions, Pass::Common) {
            Ok((ask, Some(body))) => {
                begun(back_ends.get(request, (ask, body), seat, regions, executor), kept)
            }
            _ => self.begin_any_get(request, (seat, kept), regions),
        }
    }

    /// Begins a get that the common pass has left.
    #[inline(never)]
    fn begin_any_get(
        &mut self,
        request: &RequestSnapshot,
        (seat, kept): (LaneContext, &mut Completion),
        regions: &mut Regions,
    ) -> BegunRequest {
        let Self { back_ends, executor, .. } = self;
        match check_get(request, seat.session, back_ends, regions, Pass::Any) {
            Ok((ask, body)) => {
                begun(back_ends.get_any(request, (ask, body), seat, regions, executor), kept)
            }
            Err(status) => BegunRequest::Answer(status),
        }
    }

    /// Answers a lookup: schedulers of engines wait for it.
    #[inline(never)]
    fn begin_lookup(
        &mut self,
        request: &RequestSnapshot,
        (seat, kept): (LaneContext, &mut Completion),
    ) -> BegunRequest {
        let Self { admission, back_ends, executor } = self;
        let (session, now) = (seat.session, back_ends.now(executor.now_ns()));
        let mut time = ReadTime::default();
        let looked =
            admission.check_lookup(request, session, back_ends).and_then(|(keys, hold)| {
                let add = |part| executor.add_read_time(&mut time, part);
                let bits = back_ends.lookup(&keys, session, hold, now, add)?;
                Ok((bits, keys.members()))
            });
        let (bits, members) = match looked {
            Ok(looked) => looked,
            Err(status) => return BegunRequest::Answer(status),
        };
        // Devices of one store read side by side.
        let times = [time.reads_ns / members, time.ahead_ns];
        let [device_ns, queue_ns] = times.map(|ns| u32::try_from(ns).unwrap_or(u32::MAX));
        let found = Completion::refused(request.user_data(), Status::Ok);
        *kept = Completion { bytes: bits, device_ns, queue_ns, ..found };
        kept_of(request)
    }

    /// Begins any request but a get and a lookup.
    #[cold]
    #[inline(never)]
    fn begin_any(
        &mut self,
        (request, side): (&RequestSnapshot, SideSlot<'_>),
        (seat, kept): (LaneContext, &mut Completion),
        regions: &mut Regions,
    ) -> BegunRequest {
        let Self { admission, back_ends, executor } = self;
        let admitted = match admission.check(request, side, seat, back_ends, regions) {
            Ok(admitted) => admitted,
            Err(status) => return BegunRequest::Answer(status),
        };
        let (session, now) = (seat.session, back_ends.now(executor.now_ns()));
        let user_data = request.user_data();
        let answered = |(bytes, status): (u32, Status)| {
            Ok(Some(Completion { bytes, ..Completion::refused(user_data, status) }))
        };
        let outcome = match admitted {
            Admitted::Nop => return BegunRequest::Answer(Status::Ok),
            Admitted::Range(range) => {
                executor.begin_any(request, seat, range);
                return BegunRequest::Task;
            }
            Admitted::Change(asked, memory) => {
                let (metadata, inflight) = (admission.metadata(request), executor.inflight());
                Ok(back_ends.change((&asked, memory), metadata, inflight, regions, now))
            }
            Admitted::Release(keys) => answered((back_ends.release(&keys, session), Status::Ok)),
            Admitted::Suspect(shard, report, permit) => {
                answered(back_ends.suspect(shard, report, permit, now))
            }
        };
        match begun(outcome, kept) {
            BegunRequest::Kept => kept_of(request),
            begun => begun,
        }
    }
}

/// The answer of a request is kept; one that continues another one is not counted.
fn kept_of(request: &RequestSnapshot) -> BegunRequest {
    // Of all opcodes only lookups and releases may have the flag.
    let continues = request.flags() & FLAG_CONTINUED != 0;
    if continues { BegunRequest::Continued } else { BegunRequest::Kept }
}

/// What became of a request whose answer, if it has one, goes to the place given.
#[inline(always)]
fn begun(outcome: Result<Option<Completion>, Status>, kept: &mut Completion) -> BegunRequest {
    match outcome {
        Ok(None) => BegunRequest::Task,
        Ok(Some(completion)) => {
            *kept = completion;
            BegunRequest::Kept
        }
        Err(status) => BegunRequest::Answer(status),
    }
}
