//! KVBM's worker, leader and offload engine around the object tier. Its worker needs a GPU.

use std::path::Path;
use std::sync::Arc;

use kvbm_engine::leader::{FindMatchesOptions, InstanceLeader, Leader, StagingMode};
use kvbm_engine::object::ObjectBlockOps;
use kvbm_engine::offload::{
    ObjectPipelineBuilder, ObjectPresenceFilter, OffloadEngine, S3PresenceChecker,
};
use kvbm_engine::testing::{
    TestManagerBuilder, TestRegistryBuilder, create_messenger_tcp, create_token_sequence,
    populate_manager_with_blocks,
};
use kvbm_engine::worker::{PhysicalWorker, WorkerTransfers};
use kvbm_engine::{BlockId, G2, LogicalLayoutHandle};
use kvbm_logical::blocks::{BlockRegistry, ImmutableBlock};
use kvbm_logical::manager::BlockManager;
use kvbm_physical::TransferManager;
use kvbm_physical::layout::PhysicalLayout;
use kvbm_physical::transfer::{FillPattern, NixlAgent, TransferOptions, fill_blocks};
use kvrail_kvbm::{HostMemory, KvrailBlocks};

use crate::rig::{BLOCKS, Host, MODEL, config, sums};

const INNER: usize = 256;

/// One start of an engine on a GPU.
struct Instance {
    host: PhysicalLayout,
    blocks: KvrailBlocks,
    worker: Arc<PhysicalWorker>,
    registry: BlockRegistry,
    manager: Arc<BlockManager<G2>>,
    leader: Arc<InstanceLeader>,
}

impl Instance {
    /// With host memory that drives reach, or KVBM's own.
    async fn start(name: &str, sidecar: &Host, reached: bool) -> Self {
        let agent = NixlAgent::with_backends(name, &["UCX"]).unwrap();
        let manager = TransferManager::builder().nixl_agent(agent.clone()).build().unwrap();
        let layout =
            || PhysicalLayout::builder(agent.clone()).with_config(config(INNER)).fully_contiguous();
        let gpu = layout().allocate_device(0).build().unwrap();
        let host = if reached {
            let memory = HostMemory::pinned(config(INNER).required_bytes(), 0).unwrap();
            layout().with_memory_regions(vec![memory]).unwrap()
        } else {
            layout().allocate_pinned(Some(0))
        };
        let host = host.build().unwrap();
        let blocks = sidecar.blocks(MODEL, &host);
        let worker = PhysicalWorker::builder()
            .g1_handle(manager.register_layout(gpu).unwrap())
            .g2_handle(manager.register_layout(host.clone()).unwrap())
            .manager(manager)
            .object_client(Arc::new(blocks.clone()))
            .build();
        let worker = Arc::new(worker.unwrap());
        let registry = TestRegistryBuilder::new().build();
        let manager = TestManagerBuilder::<G2>::new().block_count(BLOCKS).block_size(16);
        let manager = Arc::new(manager.registry(registry.clone()).build());
        let leader = InstanceLeader::builder()
            .messenger(create_messenger_tcp().await.unwrap())
            .registry(registry.clone())
            .g2_manager(Arc::clone(&manager))
            .worker(worker.clone())
            .object_client(Arc::new(blocks.clone()));
        let leader = Arc::new(leader.build().unwrap());
        Self { host, blocks, worker, registry, manager, leader }
    }

    /// Moves blocks between tiers of the worker, to where they were.
    async fn transfer(&self, from: LogicalLayoutHandle, to: LogicalLayoutHandle, ids: &[BlockId]) {
        let (ids, how) = (Arc::<[BlockId]>::from(ids), TransferOptions::default());
        self.worker.execute_local_transfer(from, to, ids.clone(), ids, how).unwrap().await.unwrap();
    }

    /// Through the GPU and back; the host's bytes are overwritten in between.
    async fn through_the_gpu(&self, ids: &[BlockId]) {
        self.transfer(LogicalLayoutHandle::G2, LogicalLayoutHandle::G1, ids).await;
        fill_blocks(&self.host, ids, FillPattern::Constant(0xee)).unwrap();
        self.transfer(LogicalLayoutHandle::G1, LogicalLayoutHandle::G2, ids).await;
    }
}

fn ids_of(blocks: &[ImmutableBlock<G2>]) -> Vec<BlockId> {
    blocks.iter().map(ImmutableBlock::block_id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_comes_back_in_another_run() {
    if !Path::new("/dev/nvidiactl").exists() {
        return println!("skipped: {}", HostMemory::pinned(4096, 0).unwrap_err());
    }
    let sidecar = Host::start();
    let first = Instance::start("first", &sidecar, true).await;
    let tokens = create_token_sequence(BLOCKS, 16, 0);
    let hashes = populate_manager_with_blocks(&first.manager, tokens.blocks()).unwrap();
    let held = first.manager.match_blocks(&hashes);
    let ids = ids_of(&held);
    fill_blocks(&first.host, &ids, FillPattern::Sequential).unwrap();
    let expected = sums(&first.host, ids.iter().copied());
    first.through_the_gpu(&ids).await;
    assert_eq!(sums(&first.host, ids.iter().copied()), expected);

    // From host memory to the object tier, each block once.
    let worker: Arc<dyn ObjectBlockOps> = first.worker.clone();
    let there = Arc::new(S3PresenceChecker::new(Arc::clone(&worker)));
    let pipeline = ObjectPipelineBuilder::new().policy(Arc::new(ObjectPresenceFilter::new(there)));
    let engine = OffloadEngine::builder(Arc::clone(&first.leader))
        .with_registry(Arc::new(first.registry.clone()))
        .with_object_ops(worker)
        .with_g2_to_g4_pipeline(pipeline.build());
    let engine = engine.build().unwrap();
    for expected in [BLOCKS, 0] {
        let done = engine.enqueue_g2_to_g4(held.clone()).unwrap().wait().await.unwrap();
        assert_eq!(done.completed_blocks.len(), expected, "{done:?}");
        assert_eq!(done.filtered_blocks.len(), BLOCKS - expected, "{done:?}");
    }
    assert_eq!(first.blocks.copied_bytes(), 0);

    // Another run has nothing but the prompt; first with KVBM's own memory.
    for (name, copied) in [("second", config(INNER).required_bytes()), ("third", 0)] {
        let next = Instance::start(name, &sidecar, copied == 0).await;
        let how = FindMatchesOptions { search_remote: true, staging_mode: StagingMode::Full };
        let mut found = next.leader.find_matches_with_options(&hashes, how).unwrap();
        found.wait_for_completion().await.unwrap();
        let found = found.take_g2_blocks().unwrap();
        assert_eq!(found.iter().map(ImmutableBlock::sequence_hash).collect::<Vec<_>>(), hashes);
        let ids = ids_of(&found);
        assert_eq!(sums(&next.host, ids.iter().copied()), expected);
        next.through_the_gpu(&ids).await;
        assert_eq!(sums(&next.host, ids.iter().copied()), expected);
        assert_eq!(next.blocks.copied_bytes(), copied as u64);
    }
}
