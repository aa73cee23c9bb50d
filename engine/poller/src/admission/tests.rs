//! Both passes over the checks of a get agree; lookups of several members are answered together.

use std::sync::Arc;

use kvrail_device::{BufferIndex, Device, FakeClock, RemoteMemory, SimDevice, SimOptions};
use kvrail_memory::{HeapBlock, Pinned};
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::{
    ClientLane, Completion, DeviceIndex, Geometry, KeyedRequest, Opcode, QueueSegment, RegionId,
    Request, RequestSnapshot, ServerLane, Status, keys_slot,
};
use kvrail_store::{Discard, Members, Now, Start, StoreConfig, StoreIdentity, Times};
use proptest::prelude::*;

use super::{EnteredMemory, GetAsk, check_get, keys};
use crate::back_ends::{BackEnds, Destination, Route};
use crate::limits::SessionSlot;
use crate::regions::{Memory, Pass, Regions};
use crate::stats::PollerStats;
use crate::store_call::{STORE_OWNERS, StoreSetup};

const MIB: u64 = 1 << 20;
const BLOCK: u32 = 4096;
const SESSION: SessionSlot = SessionSlot(3);
const HOST: RegionId = RegionId(5);
const GPU: RegionId = RegionId(6);
const HOST_BYTES: usize = 4 << 20;
/// Handles: one that the shard granted, one of an earlier life, one that was granted nothing, and
/// one of a store with several members.
const HANDLES: [u16; 4] = [0, 1, 2, 3];

/// Memory of a GPU that has any range.
#[derive(Debug)]
struct AnyLine;

impl RemoteMemory for AnyLine {
    fn line(&self, block: u32, offset: u64, length: u32) -> Option<u64> {
        offset.checked_add(u64::from(block) + u64::from(length))
    }
}

struct Rig {
    back_ends: BackEnds,
    regions: Regions,
    client: ClientLane,
    server: ServerLane,
}

fn setup(member: u16, members: u16) -> StoreSetup {
    let config = StoreConfig {
        area_bytes: 120 * MIB,
        logical_block: BLOCK,
        segment_bytes: 8 * MIB,
        block_mean: 64 << 10,
        spaces: 4,
        puts: 32,
        writes: 64,
        holds: 64,
        owners: STORE_OWNERS,
        owner_holds: 16,
        buffers: 4,
        buffer_bytes: 256 << 10,
        images: 8,
        times: Times::default(),
        discard: Discard::Segments,
        budget: kvrail_store::Budget::Unlimited,
    };
    let start = Start::Create(StoreIdentity {
        volume: 77,
        instance: 1,
        seed: 99,
        member,
        members: Members::first(members),
        generation: 1,
    });
    let pool: Arc<dyn Pinned> = Arc::new(HeapBlock::new(StoreSetup::pool_bytes(&config)));
    StoreSetup {
        config,
        pools: Vec::new(),
        start,
        pool,
        buffer: BufferIndex(0),
        tier: None,
        presence: None,
    }
}

impl Rig {
    fn new() -> Self {
        Self::with_members(1)
    }

    /// A store of so many members, all of this poller's.
    fn with_members(members: u16) -> Self {
        let options =
            SimOptions { capacity_bytes: 128 * MIB, logical_block: BLOCK, ..SimOptions::default() };
        let device = SimDevice::new(options, FakeClock::default());
        let descriptions = vec![device.description().clone(); usize::from(members)];
        let geometry = Geometry {
            members,
            stripe_bytes: MIB,
            member_bytes: 120 * MIB,
            data_offset: MIB,
            logical_block: BLOCK,
            memory_alignment: 512,
        };
        let devices: Vec<_> = (0..members).map(DeviceIndex).collect();
        let setups: Vec<_> =
            (0..members).map(|member| (usize::from(member), setup(member, members))).collect();
        let routes = [Route { geometry, members: devices.clone() }];
        let stats = Arc::new(PollerStats::new(devices.len()));
        let back_ends = BackEnds::new(&setups, (&routes, &devices), &descriptions, &stats, 0);
        let mut back_ends = back_ends.unwrap();
        let [known, older, none, several] = HANDLES;
        for number in 0..devices.len() {
            let shard = back_ends.shard(number);
            shard.grant_unchecked(SESSION, known, 1);
            shard.grant_unchecked(SESSION, older, 7);
            shard.grant_unchecked(SESSION, several, 1);
        }
        for handle in [known, older, none] {
            back_ends.send_unchecked(SESSION, handle, Destination::Shard(0));
        }
        back_ends.send_unchecked(SESSION, several, Destination::Group(0));
        let mut regions = Regions::new();
        let host: Arc<dyn Pinned> = Arc::new(HeapBlock::new(HOST_BYTES));
        regions.insert(HOST, SESSION, BufferIndex(1), Memory::Host(host));
        regions.insert(GPU, SESSION, BufferIndex(2), Memory::Remote(Arc::new(AnyLine)));
        regions.open(HOST);
        regions.open(GPU);
        let memory: Arc<dyn Pinned> =
            Arc::new(HeapBlock::new(QueueSegment::bytes_needed(1, 2).unwrap()));
        let server =
            QueueSegment::format(Arc::clone(&memory), 1, 2).unwrap().into_server().remove(0);
        let client = QueueSegment::open(memory).unwrap().into_client().0.remove(0);
        Self { back_ends, regions, client, server }
    }

    fn check(
        &mut self,
        request: &RequestSnapshot,
        pass: Pass,
    ) -> Result<(GetAsk, Option<EnteredMemory>), Status> {
        let Self { back_ends, regions, .. } = self;
        check_get(request, SESSION, back_ends, regions, pass)
    }

    /// A request as a poller has it.
    fn snapshot(&mut self, request: Request) -> RequestSnapshot {
        assert!(self.client.free(1).unwrap() >= 1, "each request is answered before the next");
        self.client.stage(request);
        let _nobody_sleeps = self.client.publish();
        let mut taken = None;
        let answer = Completion::default();
        let (_, outcome) = self.server.serve(1, |snapshot, _side| {
            taken = Some(snapshot);
            Some(answer)
        });
        outcome.unwrap();
        self.server.release();
        let _nobody_sleeps = self.server.publish();
        while self.client.take().unwrap().is_some() {}
        self.client.release();
        taken.expect("just published")
    }
}

/// Mostly what is sound, and often what is almost so.
fn request() -> impl Strategy<Value = Request> {
    let bytes = prop_oneof![
        4 => (0..32_u32).prop_map(|blocks| blocks * BLOCK),
        2 => 0..2 * BLOCK,
        1 => REQUEST_LENGTH_MAX - 1..=REQUEST_LENGTH_MAX + 1,
        1 => any::<u32>(),
    ];
    let offset = prop_oneof![
        4 => (0..1024_u64).prop_map(|at| at * 4096),
        1 => 0..HOST_BYTES as u64,
        1 => any::<u64>(),
    ];
    let region = prop_oneof![4 => Just(HOST), 1 => Just(GPU), 1 => any::<u32>().prop_map(RegionId)];
    let handle = prop_oneof![4 => Just(HANDLES[0]), 3 => 0..6_u16, 1 => any::<u16>()];
    let byte = || prop_oneof![5 => Just(0_u8), 1 => any::<u8>()];
    let others = (
        prop_oneof![5 => Just(0_u64), 1 => any::<u64>()],
        byte(),
        byte(),
        prop_oneof![5 => Just(0_u16), 1 => any::<u16>()],
        any::<[u64; 2]>(),
    );
    (bytes, offset, region, handle, others).prop_map(
        |(bytes, region_offset, region, handle, (check, class, flags, chain, key))| {
            let tail = (key[0] & 0xff) as u32;
            let get = KeyedRequest {
                handle,
                chain,
                bytes,
                key,
                region,
                region_offset,
                check,
                tail,
                deadline_us: 0,
            };
            Request { flags, class, ..get.slot(Opcode::Get) }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn what_the_common_pass_accepts_the_pass_for_any_accepts_alike(
        requests in prop::collection::vec(request(), 512),
    ) {
        let mut rig = Rig::new();
        let mut accepted = 0;
        for request in requests {
            let request = rig.snapshot(request);
            let Ok((ask, body)) = rig.check(&request, Pass::Common) else { continue };
            let body = body.expect("common gets have a body");
            let any = rig.check(&request, Pass::Any);
            let (same, entered) = any.expect("the common pass has accepted it");
            let entered = entered.expect("common gets have a body");
            prop_assert_eq!(same, ask);
            prop_assert!(ask.class != kvrail_ring::Class::Background);
            prop_assert_eq!(entered.region, body.region);
            prop_assert_eq!(entered.place.offset, body.place.offset);
            prop_assert_eq!(entered.place.buffer, body.place.buffer);
            rig.regions.leave(body.region, 2);
            accepted += 1;
        }
        prop_assert!(accepted > 8, "{accepted} of 512 requests");
    }
}

#[test]
fn a_plain_get_passes_the_common_pass() {
    let mut rig = Rig::new();
    let get = KeyedRequest {
        handle: HANDLES[0],
        chain: 0,
        bytes: BLOCK,
        key: [1, 2],
        region: HOST,
        region_offset: 0,
        check: 0,
        tail: 0,
        deadline_us: 0,
    };
    let request = rig.snapshot(get.slot(Opcode::Get));
    assert!(rig.check(&request, Pass::Common).is_ok());
}

/// A store that starts answers "not known yet": here an answer, beside none.
#[test]
fn a_member_that_is_gone_hides_nothing_of_the_others() {
    let mut rig = Rig::with_members(2);
    let lows = [1, 2, 3, 4, 5];
    let slot = keys_slot(Opcode::Lookup, HANDLES[3], 0, &lows);
    let lookup = |rig: &mut Rig| {
        let request = rig.snapshot(slot);
        let (keys, hold) = keys::lookup(&request, SESSION, &mut rig.back_ends)?;
        rig.back_ends.lookup(&keys, SESSION, hold, Now::default(), |_| {})
    };
    let all = 0b11111;
    assert_eq!(lookup(&mut rig), Ok(all << 16));
    let members = Members::first(2);
    let second = |lo: &u64| members.owner(u64::from(HANDLES[3]), *lo) == 1;
    let gone = (0..).zip(&lows).fold(0, |bits, (bit, lo)| bits | u32::from(second(lo)) << bit);
    assert!(gone != 0 && gone != all, "both have some of the keys");
    rig.back_ends.shard(1).lose_device();
    assert_eq!(lookup(&mut rig), Ok((all & !gone) << 16));
    rig.back_ends.shard(0).lose_device();
    assert_eq!(lookup(&mut rig), Err(Status::DeviceGone));
}
