//! A sidecar in this process: its configuration, and the one shard of a store on a member of the
//! caller's.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvrail_device::{BUFFERS_MAX, BufferIndex};
use kvrail_memory::{Region, Sealing};
use kvrail_poller::{STORE_OWNERS, StoreSetup};
use kvrail_protocol::{SpinHints, StoreInfo, VolumeContent};
use kvrail_ring::{DeviceIndex, Epoch, Geometry};
use kvrail_session::{
    Access, Limits, NumaPolicy, PagePolicy, Patience, Policy, Porter, ServedShard, ServedStore,
    ServerConfig, SidecarIdentity,
};
use kvrail_store::{Members, Start};
use kvrail_volume::{StoreMember, StoreShape};

/// Its shape: segments that hold a few of the largest blocks of a benchmark.
const SHAPE: StoreShape = StoreShape { segment_bytes: 8 << 20, block_mean: 16 << 10 };

/// A server below this folder, for clients of this user that spin so long.
pub(crate) fn config(directory: &Path, spin_ns: u64) -> ServerConfig {
    let user = rustix::process::geteuid().as_raw();
    ServerConfig {
        socket: directory.join("kvrail.sock"),
        socket_mode: 0o600,
        policy: Policy {
            access: Access { uids: vec![user], gids: vec![], operators: vec![user] },
            limits: Limits { handshake_timeout: Duration::from_secs(60), ..Limits::default() },
            pages: PagePolicy::Best,
            sealing: Sealing::Required,
            drain_timeout: Duration::from_secs(10),
            patience: Patience::default(),
            write_budgets: Vec::new(),
            tenants: Vec::new(),
            pools: Vec::new(),
        },
        numa: NumaPolicy::Anywhere,
        identity: SidecarIdentity { epoch: Epoch(1), version: "local".into() },
        spin: SpinHints { spin_ns, cores: 2, spinning_pollers: 0 },
        notes: vec![],
        gpus: vec![],
        stores: vec![],
        transfers: None,
        // No client here sends a descriptor.
        porter: Porter::new("/bin/false", &[]),
    }
}

/// A new store on a member of this geometry.
pub(crate) fn setup(geometry: &Geometry) -> StoreSetup {
    let member = StoreMember::new(geometry.member_bytes, geometry.logical_block);
    let config = SHAPE.config(member, STORE_OWNERS);
    let bytes = StoreSetup::pool_bytes(&config);
    let (pool, _) = Region::create_best("kvrail-store", bytes).expect("some memory");
    let members = Members::first(1);
    let identity = kvrail_store::StoreIdentity {
        volume: 1,
        instance: 2,
        seed: 3,
        member: 0,
        members,
        generation: 1,
    };
    let buffer = BufferIndex(BUFFERS_MAX - 1);
    StoreSetup {
        config,
        pools: Vec::new(),
        start: Start::Create(identity),
        pool: Arc::new(pool),
        buffer,
        tier: None,
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
        tier: None,
        rated: None,
    };
    ServedStore { volume, shards: vec![shard] }
}

/// The shard as clients see it.
pub(crate) fn content() -> VolumeContent {
    let (block_bytes_max, segment_bytes) = (SHAPE.block_bytes_max(), SHAPE.segment_bytes);
    VolumeContent::Store(StoreInfo { block_bytes_max, segment_bytes, members: None })
}
