//! Calls of the control thread, one after the other.

use kvrail_ring::Status as LaneStatus;
use kvrail_store::{
    Begun, DeclineReason, Explained, Fault, Now, Phase, Reply, SpaceId, SpaceView, Status, Store,
};

use super::super::call_queue::First;
use super::super::discarding::Discarding;
use super::super::grants::Grant;
use super::super::own::USER_CALL;
use super::Shard;
use crate::limits::SIDECAR;
use crate::store_call::{SpaceRecord, StoreAsk, StoreCall};
use crate::store_page::StoreFound;

/// What calls of a shard whose device is gone end with.
pub(super) const GONE: Status = Status::Failed(LaneStatus::DeviceGone.number());
/// What is wrong with a call that cannot be.
const UNFIT: Status = Status::Invalid(Fault::Limit);

/// How a call goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallStep {
    Ended(Status),
    /// It is with the store.
    Asked,
    Waits,
}

impl Shard {
    /// Keeps a call until it is its turn.
    pub(crate) fn call(&mut self, call: Box<StoreCall>, now_ns: u64) {
        match call.ask {
            StoreAsk::List { .. } => self.listings.push(call),
            _ => self.calls.push(call),
        }
        self.touch(now_ns);
    }

    /// Goes on with the first call; returns it when it has ended.
    pub(crate) fn next_call(&mut self, now: Now) -> Option<Box<StoreCall>> {
        if self.calls.is_asked() && self.is_gone() && self.load.tasks() == 0 {
            return self.end_call(GONE);
        }
        let mut call = self.calls.take_waiting()?;
        let step = self.try_call(&mut call, now);
        let first = if step == CallStep::Asked { First::Asked } else { First::Waits };
        self.calls.put_back(call, first);
        let CallStep::Ended(status) = step else { return None };
        self.end_call(status)
    }

    /// The store has answered the first call.
    pub(super) fn call_answered(&mut self, reply: &Reply) {
        self.calls.answer(reply.answer.status);
    }

    /// A call that the store has answered.
    pub(crate) fn take_answered(&mut self) -> Option<Box<StoreCall>> {
        let status = self.calls.answered()?;
        self.end_call(status)
    }

    fn end_call(&mut self, status: Status) -> Option<Box<StoreCall>> {
        let mut call = self.calls.pop()?;
        self.close(&mut call, status);
        if status == Status::Ok {
            let StoreCall { ask, spaces, spare, .. } = &mut *call;
            self.report(ask, spaces, spare);
        }
        Some(call)
    }

    /// Fills in what every call reports when it has ended.
    pub(super) fn close(&self, call: &mut StoreCall, status: Status) {
        call.status = status;
        if let Phase::Failed(why) = self.store.phase() {
            call.start_error = Some(why);
        }
        call.uid_mark = self.store.uid_mark();
    }

    /// Fills in what a call has room for.
    fn report(&self, ask: &StoreAsk, spaces: &mut Vec<SpaceRecord>, spare: &mut Vec<SpaceRecord>) {
        let wanted = |view: &SpaceView<'_>| match ask {
            StoreAsk::Survey => true,
            StoreAsk::Create { uid, .. } | StoreAsk::Clear { uid, .. } => view.uid == *uid,
            _ => false,
        };
        for view in self.store.spaces().filter(wanted) {
            let Some(mut record) = spare.pop() else { return };
            let name = std::str::from_utf8(view.name).unwrap_or_default();
            (record.id, record.uid, record.pool) = (view.id, view.uid, view.pool);
            (record.blocks, record.bytes, record.gets) = (view.blocks, view.bytes, view.gets);
            record.tier = self.tier.as_ref().map(|tier| tier.share(view.uid)).unwrap_or_default();
            record.name.clear();
            record.name.push_str(name);
            record.document.clear();
            record.document.extend_from_slice(view.document);
            spaces.push(record);
        }
    }

    fn try_call(&mut self, call: &mut StoreCall, now: Now) -> CallStep {
        if let StoreAsk::Restart(start) = call.ask {
            // A drive that came back may be retired before its store begins anew.
            if self.is_retired {
                return CallStep::Ended(GONE);
            }
            return self.restart(call, start, now);
        }
        if let StoreAsk::Budget(budget) = call.ask {
            self.store.set_budget(budget, now);
            return CallStep::Ended(Status::Ok);
        }
        if let StoreAsk::Pools(limits) = &call.ask {
            self.store.set_pool_limits(limits, now);
            return CallStep::Ended(Status::Ok);
        }
        if self.is_gone() {
            // What it had it knows without its device: namespaces are opened for its fellows' keys.
            let known = matches!(call.ask, StoreAsk::Survey | StoreAsk::Grant { .. });
            if !known || !matches!(self.store.phase(), Phase::Warming | Phase::Serving) {
                return CallStep::Ended(GONE);
            }
        }
        match self.store.phase() {
            Phase::Starting => return CallStep::Waits,
            Phase::Failed(_) => return CallStep::Ended(Status::Declined(DeclineReason::Starting)),
            Phase::Warming | Phase::Serving => {}
        }
        let asker = (USER_CALL, u16::from(SIDECAR.0));
        let begun = match &call.ask {
            StoreAsk::Survey => return CallStep::Ended(Status::Ok),
            StoreAsk::Grant { .. } => return CallStep::Ended(self.grant(&call.ask)),
            StoreAsk::Explain { space, key } => {
                let known =
                    match (self.store.explain(*space, *key, now), self.late_length(*space, *key)) {
                        // In the memory tier, and not on the device.
                        (Explained::Absent | Explained::Putting { .. }, Some(length)) => {
                            Explained::Putting { length, written: 0 }
                        }
                        (known, _) => known,
                    };
                let memory_age_s = self.age_in_tier_s(*space, *key);
                let known = Some(known);
                call.found = StoreFound::Key { known, memory_age_s, now_ns: now.ns };
                return CallStep::Ended(Status::Ok);
            }
            StoreAsk::List { .. }
            | StoreAsk::Restart(_)
            | StoreAsk::Budget(_)
            | StoreAsk::Pools(_) => return CallStep::Ended(UNFIT),
            StoreAsk::Create { name, document, uid } => {
                self.store.create_space(asker, name.as_bytes(), document, *uid, now)
            }
            StoreAsk::Clear { space, uid } => {
                self.keep_pool(*space);
                self.store.clear_space(asker, *space, *uid, now)
            }
            StoreAsk::Remove { space } => {
                self.keep_pool(*space);
                self.store.remove_space(asker, *space, now)
            }
        };
        self.pulse.mark();
        match begun {
            Begun::Taken | Begun::Confirms => CallStep::Asked,
            Begun::Done(answer) if answer.status == Status::Declined(DeclineReason::Busy) => {
                CallStep::Waits
            }
            Begun::Done(answer) => CallStep::Ended(answer.status),
        }
    }

    /// A namespace may be gone soon: what it has in memory counts in its pool until that goes too.
    fn keep_pool(&mut self, space: SpaceId) {
        let view = self.store.spaces().find(|view| view.id == space);
        if let (Some(tier), Some(view)) = (&mut self.tier, view) {
            tier.set_pool(view.uid, view.pool);
        }
    }

    fn grant(&mut self, ask: &StoreAsk) -> Status {
        let StoreAsk::Grant { session, handle, space, permit } = *ask else { return UNFIT };
        let Some(view) = self.store.spaces().find(|view| view.id == space) else {
            return Status::Invalid(Fault::Space);
        };
        let is_late = self.tier.as_ref().is_some_and(|tier| tier.is_late(view.name));
        let grant = Grant { space, uid: view.uid, life: self.life.number(), permit, is_late };
        let Some(place) = self.grants.at(session, handle) else { return UNFIT };
        *place = grant;
        Status::Ok
    }

    /// Begins anew, once nothing of the life before is in flight.
    fn restart(&mut self, call: &mut StoreCall, start: kvrail_store::Start, now: Now) -> CallStep {
        let Some(store) = call.store.as_mut() else { return CallStep::Ended(UNFIT) };
        self.life.lose_device();
        if !self.life.is_swept() {
            self.pulse.mark();
            return CallStep::Waits;
        }
        std::mem::swap::<Box<Store>>(&mut self.store, store);
        self.lines.seats().for_each(|(session, user)| self.store.seat(session, user));
        self.life.begin_anew();
        self.discarding = Discarding::default();
        self.listings.begin_anew();
        if let Some(tier) = &mut self.tier {
            tier.begin_anew();
        }
        self.store.start(start, now);
        self.touch(now.ns);
        CallStep::Ended(Status::Ok)
    }
}
