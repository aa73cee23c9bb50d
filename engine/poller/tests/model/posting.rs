//! What clients ask for.

use kvrail_device::{BufferIndex, Durability, Operation};
use kvrail_ring::slot::FLAG_DURABLE;
use kvrail_ring::{Class, Geometry, Opcode, RegionId, Request};

use super::contents::{DISCARD, fill};
use super::options::Temper;
use super::session::{Expect, Late, Life, Pending, Session};
use super::trace::What;
use super::watch::Asked;
use super::world::World;

impl World {
    /// A client posts a batch into each of its lanes, perhaps.
    pub(crate) fn post(&mut self, session: &mut Session) {
        for at in 0..session.lanes.len() {
            if session.lanes[at].life != Life::Live || self.rng.bool() {
                continue;
            }
            let most = self.options.slots[usize::from(session.slot.0)].batch_max;
            let free = session.lanes[at].lane.free(most).unwrap_or(0);
            for _ in 0..self.rng.u32(0..=most).min(free) {
                let pending = self.make(session, at);
                let (id, request) = (pending.request.user_data, pending.request);
                let (slot, queue) = (session.slot.0, pending.queue);
                let Request { opcode, volume_offset: offset, length, .. } = request;
                self.trace.note(What::Posted { slot, queue, id, opcode, offset, length });
                session.lanes[at].lane.stage(request);
                session.lanes[at].posted.push_back(id);
                session.pending.insert(id, pending);
            }
            let _nobody_sleeps = session.lanes[at].lane.publish();
        }
    }

    /// A request of any kind.
    fn make(&mut self, session: &mut Session, lane: usize) -> Pending {
        let class = self.rng.choice(Class::ALL).expect("three") as u8;
        let deadlines = [0, 0, 1, 100_000, 2_000_000, 20_000_000];
        let deadline_ns = deadlines[self.rng.usize(..deadlines.len())];
        self.moment += 1;
        let request = Request { user_data: self.moment, class, deadline_ns, ..Request::default() };
        let mut pending = Pending {
            request,
            queue: session.lanes[lane].queue,
            expect: Expect::Sound,
            asked: None,
            buffer: None,
            version: 0,
            began: self.moment,
            taken: None,
            late: Late::No,
        };
        match self.rng.u32(..100) {
            0..5 => {}
            5..8 => self.make_flush(&mut pending),
            8..14 => self.make_discard(session, &mut pending),
            14..20 => self.make_malformed(session, &mut pending),
            20..55 => self.make_write(session, &mut pending),
            _ => self.make_read(session, &mut pending),
        }
        pending
    }

    /// Names a range of the zone; returns the device and its offset there.
    fn aim(&mut self, session: &Session, pending: &mut Pending) -> (u8, u64) {
        let volume = self.rng.usize(..self.routes.len());
        let Geometry { members, stripe_bytes, .. } = self.routes[volume].geometry;
        let zone = self.options.zone(session.slot.0, members);
        let block = u64::from(self.options.block);
        let offset = zone.start + self.rng.u64(..(zone.end - zone.start) / block) * block;
        let border = if members == 1 {
            zone.end.min(offset + 2 * stripe_bytes)
        } else {
            offset - offset % stripe_bytes + stripe_bytes
        };
        let most = (border - offset) / block;
        let most = if self.rng.bool() { most } else { most.min(4) };
        let length = self.rng.u64(1..=most) * block;
        pending.request.volume = u16::try_from(volume).expect("few");
        pending.request.volume_offset = offset;
        pending.request.length = u32::try_from(length).expect("two stripes at most");
        self.find(volume, offset)
    }

    /// Where an offset of a volume lies, in other words than the poller's.
    fn find(&self, volume: usize, offset: u64) -> (u8, u64) {
        let Geometry { members, stripe_bytes, data_offset, .. } = self.routes[volume].geometry;
        let (mut member, mut at, mut left) = (0, data_offset, offset);
        while members > 1 && left >= stripe_bytes {
            left -= stripe_bytes;
            member += 1;
            if member == usize::from(members) {
                (member, at) = (0, at + stripe_bytes);
            }
        }
        let device = self.routes[volume].members[member].0;
        (u8::try_from(device).expect("few"), at + left)
    }

    fn make_flush(&mut self, pending: &mut Pending) {
        let volume = self.rng.usize(..self.routes.len());
        let geometry = self.routes[volume].geometry;
        let block = u64::from(self.options.block);
        let offset = self.rng.u64(..geometry.capacity() / block) * block;
        pending.request.opcode = Opcode::Flush as u8;
        pending.request.volume = u16::try_from(volume).expect("few");
        pending.request.volume_offset = offset;
        let (device, _) = self.find(volume, offset);
        pending.asked = Some(plain(device, Opcode::Flush, 0, 0));
    }

    fn make_discard(&mut self, session: &Session, pending: &mut Pending) {
        let (device, at) = self.aim(session, pending);
        pending.request.opcode = Opcode::Discard as u8;
        pending.asked = Some(plain(device, Opcode::Discard, at, pending.request.length));
        pending.version = pending.began | DISCARD;
        self.zone(session, pending).begin(pending.range(), pending.version);
    }

    /// Gives a read or write its buffer; false where none is free.
    fn furnish(&mut self, session: &mut Session, pending: &mut Pending) -> bool {
        let live = session.regions.iter().enumerate();
        let mut free: Vec<(usize, usize)> = Vec::new();
        for (at, region) in live.filter(|(_, region)| region.life == Life::Live) {
            let buffers = (0..region.busy.len()).filter(|buffer| !region.busy[*buffer]);
            free.extend(buffers.map(|buffer| (at, buffer)));
        }
        let Some(&(at, buffer)) = self.rng.choice(&free) else { return false };
        let place = self.aim(session, pending);
        let region = &mut session.regions[at];
        region.take(buffer, pending.request.length);
        pending.buffer = Some((region.id, buffer));
        pending.request.region = region.id.0;
        pending.request.region_offset = buffer as u64 * u64::from(region.buffer_bytes);
        let (device, offset) = place;
        let mut asked = plain(device, Opcode::Read, offset, pending.request.length);
        asked.operation.buffer = region.buffer;
        asked.operation.buffer_offset = pending.request.region_offset;
        asked.region = Some(region.id);
        pending.asked = Some(asked);
        true
    }

    fn make_read(&mut self, session: &mut Session, pending: &mut Pending) {
        if !self.furnish(session, pending) {
            return;
        }
        pending.request.opcode = Opcode::Read as u8;
    }

    fn make_write(&mut self, session: &mut Session, pending: &mut Pending) {
        if !self.furnish(session, pending) {
            return;
        }
        pending.request.opcode = Opcode::Write as u8;
        pending.version = pending.began;
        let (offset, length) = pending.range();
        let mut bytes = vec![0; length as usize];
        let block = self.options.block as usize;
        for (at, piece) in bytes.chunks_exact_mut(block).enumerate() {
            fill(pending.version, offset + (at * block) as u64, piece);
        }
        let (region, buffer) = pending.buffer.expect("furnished");
        session.region(region).write(buffer, &bytes);
        self.zone(session, pending).begin(pending.range(), pending.version);
        let Asked { operation, .. } = pending.asked.as_mut().expect("furnished");
        operation.opcode = Opcode::Write;
        if self.rng.u32(..4) == 0 {
            pending.request.flags |= FLAG_DURABLE;
            operation.durability = Durability::Durable;
        }
    }

    /// A sound read with one thing wrong.
    fn make_malformed(&mut self, session: &Session, pending: &mut Pending) {
        self.aim(session, pending);
        let request = &mut pending.request;
        request.opcode = Opcode::Read as u8;
        let own = session.regions.iter().find(|region| region.life == Life::Live);
        request.region = own.map_or(u32::MAX, |region| region.id.0);
        match self.rng.u32(..16) {
            0 => request.opcode = self.rng.u8(5..),
            1 => request.class = self.rng.u8(3..),
            2 => request.flags |= 1 << self.rng.u32(3..8),
            3 => request.flags = 1 << self.rng.u32(3..8),
            4 => request.reserved_a = self.rng.u16(1..),
            5 => request.reserved_b = self.rng.u32(1..),
            6 => request.layout_block = self.rng.u32(1..),
            7 => request.length += self.rng.u32(1..self.options.block),
            8 => request.length = 0,
            9 => request.volume_offset += self.rng.u64(1..u64::from(self.options.block)),
            10 => request.volume_offset = u64::MAX - u64::from(self.options.block) + 1,
            11 => request.volume = self.rng.u16(3..),
            12 => request.region ^= 1 << self.rng.u32(16..32),
            13 => request.region_offset = 1 << self.rng.u32(24..64),
            14 => request.flags = FLAG_DURABLE,
            _ => request.region = self.foreign_region(session).map_or(u32::MAX, |id| id.0),
        }
        pending.expect = Expect::Malformed;
    }

    fn foreign_region(&self, session: &Session) -> Option<RegionId> {
        let others = self.sessions.iter().flatten().filter(|other| other.slot != session.slot);
        others.flat_map(|other| &other.regions).map(|region| region.id).next()
    }

    /// A hostile client writes into its lanes what it likes.
    pub(crate) fn scribble(&mut self, session: &Session) {
        if self.options.slots[usize::from(session.slot.0)].temper != Temper::Hostile {
            return;
        }
        let Some(end) = self.rng.choice(&session.lanes) else { return };
        // The lap of a request slot (the top byte of its word), the completion head and the sleep
        // word of a segment's first lane.
        let lap = 4096 + 384 + 64 * self.rng.usize(..2) + 8;
        let (word, one) = [(lap, 1 << 24), (4096 + 128, 1), (128, 1)][self.rng.usize(..3)];
        let mut now = [0; 4];
        kvrail_memory::load(&*end.memory, word, &mut now);
        let now = u32::from_ne_bytes(now);
        let then = match self.rng.u32(..40) {
            0 => self.rng.u32(..),
            1..4 => now.wrapping_add(one),
            4 => now.wrapping_sub(one),
            _ => return,
        };
        kvrail_memory::store(&*end.memory, word, &then.to_ne_bytes());
    }
}

fn plain(device: u8, opcode: Opcode, offset: u64, length: u32) -> Asked {
    let (buffer, buffer_offset) = (BufferIndex(0), 0);
    let durability = Durability::Visible;
    let operation = Operation { tag: 0, opcode, durability, offset, length, buffer, buffer_offset };
    Asked { device, operation, region: None }
}
