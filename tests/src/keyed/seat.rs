//! One session with one namespace of a store, and lanes to all its members.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crc_fast::{CrcAlgorithm, checksum};
use kvrail_memory::{Pinned, Region, Sealing, load, store};
use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, FDS_MAX, Hello,
    PacketBuffer, Pages, SidecarMessage, StoreInfo, Version, VolumeContent, VolumeInfo, unspill,
};
use kvrail_ring::limits::LANE_VERSION;
use kvrail_ring::slot::{FLAG_DURABLE, FLAG_NOTICE, FLAG_PART};
use kvrail_ring::{
    ClientLane, Doorbell, KeyedRequest, Opcode, QueueSegment, RegionId, RingBell, Side, Status,
    keys_slot,
};
use kvrail_store::{Key, Members, check};

/// Bytes of a page of the tail arena.
const TAIL: usize = 4096;
/// Content of memory outside of blocks.
const GUARD: u8 = 0x5a;
/// Bytes behind each place that no request may touch.
const GUARD_BYTES: usize = 4096;
/// Longest wait for any answer of a live sidecar.
const PATIENCE: Duration = Duration::from_secs(30);
/// Polls of a lane between two polls of the socket.
const LOOKS: u32 = 256;

/// The session has ended; what was in flight may have happened or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone(pub String);

/// Which namespace, and how much memory.
#[derive(Clone, Debug)]
pub struct SeatOptions {
    /// The sidecar's socket.
    pub socket: PathBuf,
    /// The store's name.
    pub volume: String,
    /// The namespace.
    pub space: String,
    /// Its identity document.
    pub identity: String,
    /// Requests in flight at most.
    pub places: u32,
    /// Bytes of each one's memory.
    pub place_bytes: usize,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Puts a whole block, or the part of one that begins at `at`.
    Put {
        /// Its key.
        key: Key,
        /// All bytes of the block.
        block: &'a [u8],
        /// First byte of the part.
        at: u32,
        /// Bytes of the part.
        bytes: u32,
        /// The block's metadata.
        metadata: &'a [u8],
        /// `FLAG_DURABLE` or 0.
        flags: u8,
    },
    /// Gets a whole block.
    Get {
        /// Its key.
        key: Key,
        /// Bytes of memory that the request offers.
        capacity: u32,
    },
    /// Gets a part of a block.
    GetPart {
        /// Its key.
        key: Key,
        /// First byte.
        at: u32,
        /// Bytes.
        bytes: u32,
    },
    /// Looks for one key, and holds it for this number of milliseconds.
    Lookup {
        /// Its key.
        key: Key,
        /// 0: no hold.
        hold_ms: u32,
    },
    /// Drops a block, durably.
    Drop {
        /// Its key.
        key: Key,
    },
    /// Reports a block with this check.
    Suspect {
        /// Its key.
        key: Key,
        /// The check.
        check: u64,
    },
}

impl<'a> Op<'a> {
    /// A put of a whole block, not durable, without metadata.
    #[must_use]
    pub fn put(key: Key, block: &'a [u8]) -> Self {
        let bytes = u32::try_from(block.len()).expect("at most 128 MiB");
        Self::Put { key, block, at: 0, bytes, metadata: &[], flags: 0 }
    }

    /// The same, acknowledged when it is durable.
    #[must_use]
    pub fn put_durable(key: Key, block: &'a [u8]) -> Self {
        let bytes = u32::try_from(block.len()).expect("at most 128 MiB");
        Self::Put { key, block, at: 0, bytes, metadata: &[], flags: FLAG_DURABLE }
    }

    fn key(&self) -> Key {
        match *self {
            Self::Put { key, .. }
            | Self::Get { key, .. }
            | Self::GetPart { key, .. }
            | Self::Lookup { key, .. }
            | Self::Drop { key }
            | Self::Suspect { key, .. } => key,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The status.
    pub status: Status,
    /// `FLAG_PRESENT` and the like.
    pub flags: u8,
    /// Meaning depends on the operation.
    pub bytes: u32,
    /// Meaning depends on the operation.
    pub checksum: u64,
}

/// An attached client with one namespace open.
#[derive(Debug)]
pub struct Seat {
    channel: Channel,
    seq: u64,
    volume: VolumeInfo,
    lanes: Vec<(ClientLane, Doorbell)>,
    memory: Arc<dyn Pinned>,
    region: RegionId,
    tails: Arc<dyn Pinned>,
    /// The namespace's handle in requests.
    handle: u16,
    /// The uid that checks are folded with.
    uid: u64,
    options: SeatOptions,
}

impl Seat {
    /// Attaches and opens everything.
    ///
    /// # Errors
    /// The sidecar's refusal, in its words, or that there is no sidecar.
    ///
    /// # Panics
    /// When an answer breaks the protocol.
    pub fn attach(options: &SeatOptions) -> Result<Self, Gone> {
        let channel = Channel::connect(&options.socket).map_err(|why| Gone(why.to_string()))?;
        let mut ask = Asker { channel, seq: 0 };
        let hello = Hello {
            protocol: Version::CURRENT,
            lane_version: LANE_VERSION,
            name: "seat".into(),
            library: "seat 1".into(),
        };
        let ControlReply::Welcome(welcome) = ask.ask(ControlRequest::Hello(hello))?.0 else {
            return Err(Gone("not let in".into()));
        };
        let volume = welcome.volumes.into_iter().find(|volume| volume.name == options.volume);
        let volume = volume.ok_or_else(|| Gone("no such store".into()))?;
        let (handle, uid) = ask.open_space(&volume, options)?;
        let each = options.place_bytes + GUARD_BYTES;
        let (region, memory) = ask.arena(options.places as usize * each)?;
        // A page for each entry that the queue can have in flight.
        let depth = options.places.next_power_of_two().max(2);
        let (tail_region, tails) = ask.arena(depth as usize * TAIL)?;
        let lanes = ask.queue(depth, tail_region)?;
        let Asker { channel, seq } = ask;
        let options = options.clone();
        Ok(Self { channel, seq, volume, lanes, memory, region, tails, handle, uid, options })
    }

    /// The uid that checks are folded with.
    #[must_use]
    pub fn uid(&self) -> u64 {
        self.uid
    }

    /// The namespace's handle in requests.
    #[must_use]
    pub fn handle(&self) -> u16 {
        self.handle
    }

    /// The member that has a key.
    #[must_use]
    pub fn member_of(&self, key: Key) -> u16 {
        self.members().owner(self.uid, key.lo())
    }

    fn members(&self) -> Members {
        match self.volume.content {
            VolumeContent::Store(StoreInfo { members: Some(bits), .. }) => Members::of_bits(bits),
            _ => Members::first(self.volume.geometry.members),
        }
    }

    /// Requests carry this handle from now on, granted or not.
    pub fn pretend(&mut self, handle: u16) {
        self.handle = handle;
    }

    /// Requests transfer at least this number of bytes, and multiples of it.
    #[must_use]
    pub fn logical_block(&self) -> u32 {
        self.volume.geometry.logical_block
    }

    /// The check of a block.
    #[must_use]
    pub fn check(&self, key: Key, block: &[u8]) -> u64 {
        let length = u32::try_from(block.len()).expect("at most 128 MiB");
        check(checksum(CrcAlgorithm::Crc64Nvme, block), self.uid, key, length)
    }

    /// Sends a request on the session's socket and waits for the answer.
    ///
    /// # Errors
    /// When the session has ended.
    pub fn ask(&mut self, ask: ControlRequest) -> Result<ControlReply, Gone> {
        let channel = &self.channel;
        let (answer, _fds) = ask_on(channel, &mut self.seq, ask)?;
        Ok(answer)
    }

    /// Submits all requests at once, each with its own place, and waits until all have ended.
    ///
    /// # Errors
    /// When the session ends before.
    ///
    /// # Panics
    /// With more requests than places, and when a request does not end or ends twice.
    pub fn batch(&mut self, ops: &[Op<'_>]) -> Result<Vec<End>, Gone> {
        assert!(ops.len() <= self.options.places as usize, "{} requests at once", ops.len());
        for (place, op) in ops.iter().enumerate() {
            self.stage(place, op);
        }
        self.publish();
        let mut ends = vec![None; ops.len()];
        self.collect(&mut ends)?;
        Ok(ends.into_iter().map(|end| end.expect("all have ended")).collect())
    }

    /// One request and its end.
    ///
    /// # Errors
    /// As `batch`.
    pub fn one(&mut self, op: Op<'_>) -> Result<End, Gone> {
        Ok(self.batch(&[op])?[0])
    }

    /// Submits slots unchanged, with random side areas; waits until each is answered.
    ///
    /// # Errors
    /// When the session ends.
    pub fn raw(&mut self, slots: &[kvrail_ring::Request]) -> Result<(), Gone> {
        for (place, slot) in slots.iter().enumerate() {
            let lane = place % self.lanes.len();
            let (lane, _) = &mut self.lanes[lane];
            assert!(lane.has_room(), "a place has a slot");
            let (block_bytes, at) = (slot.length ^ slot.layout_block, slot.reserved_b);
            let metadata = &[7; 1024][..usize::from(slot.reserved_a) % 1025];
            let request = kvrail_ring::Request { user_data: place as u64, ..*slot };
            lane.stage_with(request, &Side { block_bytes, at, metadata, ..Side::default() });
        }
        self.publish();
        self.collect(&mut vec![None; slots.len()])
    }

    fn publish(&mut self) {
        for (lane, doorbell) in &mut self.lanes {
            if lane.publish() == RingBell::Now {
                doorbell.ring();
            }
        }
    }

    /// Looks whether the session goes on.
    ///
    /// # Errors
    /// When it does not.
    pub fn look(&self) -> Result<(), Gone> {
        match self.channel.receive::<SidecarMessage>(&mut PacketBuffer::default(), FDS_MAX) {
            Err(ChannelError::WouldBlock) => Ok(()),
            Ok(packet) => Err(Gone(format!("{:?}", packet.message))),
            Err(why) => Err(Gone(why.to_string())),
        }
    }

    fn collect(&mut self, ends: &mut [Option<End>]) -> Result<(), Gone> {
        let (start, mut looks) = (Instant::now(), 0_u32);
        while ends.iter().any(Option::is_none) {
            for (lane, _) in &mut self.lanes {
                while let Some(completion) = lane.take().expect("an honest sidecar") {
                    let it = completion.fields();
                    if it.flags & FLAG_NOTICE != 0 {
                        continue;
                    }
                    let place = usize::try_from(it.user_data).expect("ours");
                    let (flags, bytes, checksum) = (it.flags, it.bytes, it.checksum);
                    let end = End { status: it.status(), flags, bytes, checksum };
                    assert!(ends[place].replace(end).is_none(), "place {place} ended twice");
                }
                lane.release();
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                self.look()?;
                std::thread::sleep(Duration::from_micros(50));
                assert!(start.elapsed() < PATIENCE, "requests do not end: {ends:?}");
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Where a place's memory begins.
    fn offset(&self, place: usize) -> usize {
        place * (self.options.place_bytes + GUARD_BYTES)
    }

    /// Bytes of a transfer that are whole logical blocks.
    fn body(&self, bytes: u32) -> usize {
        (bytes - bytes % self.logical_block()) as usize
    }

    fn stage(&mut self, place: usize, op: &Op<'_>) {
        let key = op.key();
        let member = self.members().place_of(self.uid, key.lo());
        let base = KeyedRequest {
            handle: self.handle,
            chain: 0,
            bytes: 0,
            key: [key.lo(), key.hi()],
            region: self.region,
            region_offset: self.offset(place) as u64,
            check: 0,
            tail: u32::try_from(place).expect("few"),
            deadline_us: 0,
        };
        let mut side = None;
        let mut request = match *op {
            Op::Put { block, at, bytes, metadata, flags, .. } => {
                self.fill(place, &block[at as usize..(at + bytes) as usize]);
                let block_bytes = u32::try_from(block.len()).expect("at most 128 MiB");
                let whole = block_bytes == bytes && metadata.is_empty();
                side = (!whole).then_some(Side { block_bytes, at, metadata, ..Side::default() });
                let it = KeyedRequest { bytes, check: self.check(key, block), ..base };
                kvrail_ring::Request { flags, ..it.slot(Opcode::Put) }
            }
            Op::Get { capacity, .. } => {
                self.guard(place, capacity);
                KeyedRequest { bytes: capacity, ..base }.slot(Opcode::Get)
            }
            Op::GetPart { at, bytes, .. } => {
                self.guard(place, bytes);
                let it = KeyedRequest { bytes, check: at.into(), ..base };
                kvrail_ring::Request { flags: FLAG_PART, ..it.slot(Opcode::Get) }
            }
            Op::Lookup { hold_ms, .. } => {
                keys_slot(Opcode::Lookup, self.handle, hold_ms, &[key.lo()])
            }
            Op::Drop { .. } | Op::Suspect { .. } => {
                let (opcode, check, flags) = match *op {
                    Op::Suspect { check, .. } => (Opcode::Suspect, check, 0),
                    _ => (Opcode::Drop, 0, FLAG_DURABLE),
                };
                let none = RegionId(0);
                let it = KeyedRequest { region: none, region_offset: 0, tail: 0, check, ..base };
                kvrail_ring::Request { flags, ..it.slot(opcode) }
            }
        };
        request.user_data = place as u64;
        let lane = usize::from(self.volume.pollers[usize::from(member)]);
        let (lane, _) = &mut self.lanes[lane];
        assert!(lane.has_room(), "a place has a slot");
        match side {
            Some(side) => lane.stage_with(request, &side),
            None => lane.stage(request),
        }
    }

    /// Puts a part's bytes where its request names them.
    fn fill(&self, place: usize, bytes: &[u8]) {
        let (body, tail) = bytes.split_at(self.body(u32::try_from(bytes.len()).expect("a part")));
        store(self.memory.as_ref(), self.offset(place), body);
        store(self.tails.as_ref(), place * TAIL, tail);
    }

    /// Fills a place with bytes that no block has.
    fn guard(&self, place: usize, bytes: u32) {
        let bytes = (bytes as usize).min(self.options.place_bytes) + GUARD_BYTES;
        store(self.memory.as_ref(), self.offset(place), &vec![GUARD; bytes]);
    }

    /// Content of a place after a get of this number of bytes.
    ///
    /// # Panics
    /// When it wrote more than the block's own bytes.
    #[must_use]
    pub fn bytes(&self, place: usize, capacity: u32, bytes: u32) -> Vec<u8> {
        let body = self.body(bytes);
        let mut all = vec![0; capacity as usize + GUARD_BYTES];
        load(self.memory.as_ref(), self.offset(place), &mut all);
        let beside = all[body..].iter().position(|byte| *byte != GUARD);
        assert!(beside.is_none(), "a get of {bytes} bytes wrote byte {body} + {beside:?}");
        all.truncate(bytes as usize);
        load(self.tails.as_ref(), place * TAIL, &mut all[body..]);
        all
    }

    /// A get's block, if its check is right.
    #[must_use]
    pub fn verified(&self, place: usize, capacity: u32, key: Key, end: &End) -> Option<Vec<u8>> {
        let bytes = self.bytes(place, capacity, end.bytes);
        (self.check(key, &bytes) == end.checksum).then_some(bytes)
    }
}

/// The session's socket while the seat is set up.
struct Asker {
    channel: Channel,
    seq: u64,
}

/// Sends a request and waits for the answer.
fn ask_on(
    channel: &Channel,
    seq: &mut u64,
    ask: ControlRequest,
) -> Result<(ControlReply, Vec<OwnedFd>), Gone> {
    *seq += 1;
    let gone = |why: ChannelError| Gone(why.to_string());
    channel.send_ask(&ClientMessage { seq: *seq, ask }, &[]).map_err(gone)?;
    let start = Instant::now();
    loop {
        match channel.receive(&mut PacketBuffer::default(), FDS_MAX).and_then(unspill) {
            Err(ChannelError::WouldBlock) => {
                assert!(start.elapsed() < PATIENCE, "the sidecar is silent");
                std::thread::sleep(Duration::from_micros(100));
            }
            Ok(packet) => match packet.message {
                SidecarMessage::Reply { answer, .. } => return Ok((answer, packet.fds)),
                other => return Err(Gone(format!("{other:?}"))),
            },
            Err(why) => return Err(gone(why)),
        }
    }
}

impl Asker {
    fn ask(&mut self, ask: ControlRequest) -> Result<(ControlReply, Vec<OwnedFd>), Gone> {
        ask_on(&self.channel, &mut self.seq, ask)
    }

    fn open_space(
        &mut self,
        volume: &VolumeInfo,
        options: &SeatOptions,
    ) -> Result<(u16, u64), Gone> {
        let (name, identity) = (options.space.clone(), options.identity.clone());
        let open =
            ControlRequest::OpenNamespace { volume: volume.id, name, identity, create: true };
        match self.ask(open)?.0 {
            ControlReply::Namespace { handle, uid, .. } => Ok((handle, uid)),
            ControlReply::Error { message, .. } => Err(Gone(message)),
            other => Err(Gone(format!("{other:?}"))),
        }
    }

    fn arena(&mut self, bytes: usize) -> Result<(RegionId, Arc<dyn Pinned>), Gone> {
        let ask = ControlRequest::CreateArena { bytes: bytes as u64, pages: Pages::Base };
        let (answer, mut fds) = self.ask(ask)?;
        let ControlReply::Arena { region, bytes, .. } = answer else {
            return Err(Gone(format!("{answer:?}")));
        };
        let memory = Region::import(fds.remove(0), bytes).map_err(|why| Gone(why.to_string()))?;
        Ok((RegionId(region), Arc::new(memory)))
    }

    fn queue(&mut self, depth: u32, tails: RegionId) -> Result<Vec<(ClientLane, Doorbell)>, Gone> {
        let (answer, fds) = self.ask(ControlRequest::OpenQueue { depth, tails: Some(tails.0) })?;
        let ControlReply::Queue { queue, segment_bytes } = answer else {
            return Err(Gone(format!("{answer:?}")));
        };
        let mut fds = fds.into_iter();
        let (segment, _hear) = (fds.next().expect("a segment"), fds.next().expect("a bell"));
        let memory = Region::import_with(segment, segment_bytes, Sealing::Size);
        let memory = Arc::new(memory.map_err(|why| Gone(why.to_string()))?);
        let (answer, _) = self.ask(ControlRequest::QueueMapped { queue })?;
        if !matches!(answer, ControlReply::QueueServed { .. }) {
            return Err(Gone(format!("{answer:?}")));
        }
        let segment = QueueSegment::open(memory).map_err(|why| Gone(why.to_string()))?;
        let (lanes, _sleep) = segment.into_client();
        Ok(lanes.into_iter().zip(fds.map(Doorbell::from_fd)).collect())
    }
}
