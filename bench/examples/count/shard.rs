//! The one shard of a store on a member of the caller's.

use std::sync::Arc;

use kvrail_device::{BUFFERS_MAX, BufferIndex};
use kvrail_memory::Region;
use kvrail_poller::{STORE_OWNERS, StoreSetup};
use kvrail_protocol::{StoreInfo, VolumeContent};
use kvrail_ring::{DeviceIndex, Geometry};
use kvrail_session::{ServedShard, ServedStore};
use kvrail_store::{Identity, Members, Start};
use kvrail_volume::{StoreMember, StoreShape};

/// Its shape: segments that hold a few of the largest blocks of a benchmark.
const SHAPE: StoreShape = StoreShape { segment_bytes: 8 << 20, block_mean: 16 << 10 };

/// A new store on a member of this geometry.
pub(crate) fn setup(geometry: &Geometry) -> StoreSetup {
    let member = StoreMember::new(geometry.member_bytes, geometry.logical_block);
    let config = SHAPE.config(member, STORE_OWNERS);
    let bytes = StoreSetup::pool_bytes(&config);
    let (pool, _) = Region::create_best("kvrail-store", bytes).expect("some memory");
    let members = Members::first(1);
    let identity = Identity { volume: 1, instance: 2, seed: 3, member: 0, members, generation: 1 };
    let buffer = BufferIndex(BUFFERS_MAX - 1);
    StoreSetup {
        config,
        pools: Vec::new(),
        start: Start::Create(identity),
        pool: Arc::new(pool),
        buffer,
        presence: None,
    }
}

/// The shard as the control thread gets it.
pub(crate) fn served(volume: u16, device: DeviceIndex, setup: &StoreSetup) -> ServedStore {
    let shard = ServedShard {
        device,
        config: setup.config,
        pools: Vec::new(),
        restart: setup.start,
        presence: None,
        rated: None,
    };
    ServedStore { volume, shards: vec![shard] }
}

/// The shard as clients see it.
pub(crate) fn content() -> VolumeContent {
    let (block_bytes_max, segment_bytes) = (SHAPE.block_bytes_max(), SHAPE.segment_bytes);
    VolumeContent::Store(StoreInfo { block_bytes_max, segment_bytes, members: None })
}
