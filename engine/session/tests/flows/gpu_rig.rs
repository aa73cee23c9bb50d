//! A sidecar in this process that serves a stand-in for a GPU, and a client's paged cache on it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kvrail_client::{Client, GpuCache, GpuMemory, GpuRegion, Queue, Request, Status, Volume};
use kvrail_device::FaultPlan;
use kvrail_gpu::{
    BatchPool, Bridge, CopyRoute, DirectGpu, DirectPath, EmulatedGpu, Fragment, Gpu, GpuControl,
    GpuHandle, GpuPollerHandle, GpuSeat, GpuSetup, Health, MechanismChoice, OwnMemory, Port,
    PortOptions, Staging, StagingOptions,
};
use kvrail_protocol::{GpuMechanism, GpuRoute};
use kvrail_ring::{Doorbell, ThreadWaker};
use kvrail_session::{ServedGpu, ServerConfig};

use crate::sidecar::{MEMBER, STRIPE, Sidecar, config, real_pollers};

pub(crate) const LONG: Duration = Duration::from_secs(10);

/// Bytes of a KV block.
pub(crate) const BLOCK: u64 = STRIPE;
/// Where the blocks begin in the volume: each lies on two members, of two pollers at times.
const FIRST: u64 = STRIPE / 4;
/// Blocks of a cache.
pub(crate) const BLOCKS: u32 = 8;
/// Layers of a cache: a memory each, with K before V.
const LAYERS: u16 = 4;
/// Bytes of K or V of one layer and block.
const FRAGMENT: u64 = BLOCK / (2 * LAYERS as u64);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Staged,
    /// By the stand-in's batches, on a file of its own.
    Direct,
}

/// The sidecar and its GPU.
pub(crate) struct Station {
    pub(crate) sidecar: Sidecar,
    pub(crate) control: Arc<GpuControl>,
    pub(crate) staging: Arc<Staging>,
    gpu: Option<GpuPollerHandle>,
}

impl Station {
    pub(crate) fn start(way: Way) -> Self {
        Self::start_with(way, |_| {})
    }

    /// Two pollers over three simulated devices, each bridged to stand-in number 0.
    pub(crate) fn start_with(way: Way, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let gpu = EmulatedGpu::new(0, DirectPath::Direct);
        let route = match way {
            Way::Staged => CopyRoute::Staged,
            Way::Direct => CopyRoute::Direct(file(&gpu, directory.path())),
        };
        let batches = (way == Way::Direct)
            .then(|| BatchPool::new(gpu.direct().unwrap(), DirectPath::Direct).unwrap());
        let pool = StagingOptions { slot_bytes: 16 << 10, slots: 8 };
        let (staging, health) =
            (Arc::new(Staging::new(pool).unwrap()), Arc::new(Health::default()));
        let (to_gpu, to_control) =
            (Arc::new(ThreadWaker::new().unwrap()), Arc::new(Doorbell::eventfd().unwrap()));
        let mut ports = Vec::new();
        let (handles, _) = real_pollers(
            &to_control,
            |_| FaultPlan::none(),
            |device, mailbox| {
                let port = Port::new(PortOptions {
                    gpu: gpu.identity().uuid,
                    health: Arc::clone(&health),
                    staging: Arc::clone(&staging),
                    to_gpu: Arc::clone(&to_gpu),
                    to_device: Arc::clone(mailbox.nudge()),
                    route,
                    reason: "test".into(),
                });
                ports.push(Arc::clone(&port));
                Bridge::new(device, vec![port]).unwrap()
            },
        );
        let setup = GpuSetup {
            ports,
            staging: Arc::clone(&staging),
            batches,
            health: Arc::clone(&health),
            nudge: to_gpu,
            stop: Arc::new(AtomicBool::new(false)),
        };
        let seat = GpuSeat { cpu: None, spin: Duration::from_micros(20) };
        let poller = kvrail_gpu::start(&gpu, seat, setup).unwrap();
        let control = gpu.control();
        let mechanism = match way {
            Way::Staged => GpuMechanism::Staged,
            Way::Direct => GpuMechanism::Direct,
        };
        let served = ServedGpu {
            gpu: Arc::new(gpu),
            health,
            staging: Arc::clone(&staging),
            cpu: None,
            configured: MechanismChoice::Auto,
            routes: vec![GpuRoute { volume: 0, mechanism, reason: "test".into() }],
        };
        let mut config = config(directory.path());
        config.gpus.push(served);
        change(&mut config);
        let sidecar = Sidecar::serve(directory, config, (handles, to_control), Arc::default());
        Self { sidecar, control, staging, gpu: Some(poller) }
    }

    pub(crate) fn attach(&self) -> Client {
        Client::attach(self.sidecar.socket()).unwrap()
    }

    /// Releases all hung operations on drop, also when a test fails: a hang would hide the failure.
    pub(crate) fn releases(&self) -> impl Drop {
        Releases(Arc::clone(&self.control))
    }
}

struct Releases(Arc<GpuControl>);

impl Drop for Releases {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.control.release();
        if let Some(gpu) = self.gpu.take() {
            gpu.ask_to_stop();
        }
    }
}

/// A file that the stand-in's batches read and write.
fn file(gpu: &EmulatedGpu, directory: &std::path::Path) -> kvrail_gpu::FileIndex {
    let path = directory.join("direct");
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.set_len(MEMBER + (1 << 20)).unwrap();
    gpu.register(file.into(), "direct").unwrap().file
}

/// The memories of a client's cache, and their description.
pub(crate) struct Cache {
    pub(crate) memories: Vec<Box<dyn OwnMemory>>,
}

impl Cache {
    pub(crate) fn new() -> Self {
        let gpu = EmulatedGpu::new(0, DirectPath::Direct);
        let bytes = 2 * FRAGMENT * u64::from(BLOCKS);
        Self { memories: (0..LAYERS).map(|_| gpu.allocate(bytes).unwrap()).collect() }
    }

    pub(crate) fn fragments() -> Vec<Fragment> {
        let both = |memory| {
            [0, FRAGMENT * u64::from(BLOCKS)].map(|base| Fragment {
                memory,
                base,
                stride: FRAGMENT,
                bytes: FRAGMENT,
            })
        };
        (0..LAYERS).flat_map(both).collect()
    }

    /// A client's description in its attach request.
    pub(crate) fn described(&self) -> GpuCache {
        let cache = GpuCache::new(EmulatedGpu::uuid(0).to_string(), BLOCKS);
        let cache = self.memories.iter().fold(cache, |cache, it| cache.memory(exported(&**it)));
        Self::fragments().into_iter().fold(cache, GpuCache::fragment)
    }

    /// The places of a block's fragments, in order.
    fn places(block: u32) -> impl Iterator<Item = (usize, u64)> {
        let at = move |fragment: Fragment| {
            (usize::from(fragment.memory), fragment.base + u64::from(block) * fragment.stride)
        };
        Self::fragments().into_iter().map(at)
    }

    pub(crate) fn fill(&mut self, block: u32, bytes: &[u8]) {
        let parts = bytes.chunks(usize::try_from(FRAGMENT).unwrap());
        for ((memory, at), part) in Self::places(block).zip(parts) {
            self.memories[memory].write(at, part).unwrap();
        }
    }

    pub(crate) fn read(&self, block: u32) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(BLOCK).unwrap()];
        let parts = bytes.chunks_mut(usize::try_from(FRAGMENT).unwrap());
        for ((memory, at), part) in Self::places(block).zip(parts) {
            self.memories[memory].read(at, part).unwrap();
        }
        bytes
    }
}

/// Memory as the client library takes it.
pub(crate) fn exported(memory: &dyn OwnMemory) -> GpuMemory {
    match memory.export().unwrap() {
        GpuHandle::Vmm { fd, bytes } => GpuMemory::Descriptor { fd, bytes },
        GpuHandle::LegacyIpc { handle, offset, bytes } => {
            GpuMemory::Legacy { handle, offset, bytes }
        }
    }
}

/// A client with a cache and a queue.
pub(crate) struct Engine {
    pub(crate) client: Client,
    pub(crate) volume: Volume,
    pub(crate) queue: Queue,
    pub(crate) cache: Cache,
    pub(crate) region: GpuRegion,
}

impl Engine {
    pub(crate) fn attach(station: &Station) -> Self {
        let client = station.attach();
        let (volume, queue) = (client.volume("kv").unwrap(), client.open_queue(256).unwrap());
        let cache = Cache::new();
        let region = client.attach_gpu(cache.described()).unwrap();
        Self { client, volume, queue, cache, region }
    }

    /// Begins to write a block of the cache to a block of the volume.
    pub(crate) fn write(&mut self, block: u32, to: u64) {
        let range = self.region.block(block).unwrap();
        self.queue.submit(Request::write_gpu(&self.volume, FIRST + to * BLOCK, range)).unwrap();
    }

    /// Begins to read a block of the volume into a block of the cache.
    pub(crate) fn read(&mut self, from: u64, block: u32) {
        let range = self.region.block(block).unwrap();
        self.queue.submit(Request::read_gpu(&self.volume, FIRST + from * BLOCK, range)).unwrap();
    }

    /// The next end.
    pub(crate) fn end(&mut self) -> Status {
        self.queue.wait(LONG).unwrap().expect("it ends").status
    }

    /// Host memory is served as if nothing had happened.
    pub(crate) fn host_works(&mut self) {
        let pages = kvrail_client::Pages::Base;
        let arena = self.client.create_arena(1 << 20, pages).unwrap();
        let mut lease = arena.lease(4096).unwrap();
        lease.fill(0x3c);
        self.queue.submit(Request::write(&self.volume, 60 * BLOCK, lease)).unwrap();
        let done = self.queue.wait(LONG).unwrap().unwrap();
        assert_eq!(done.status, Status::Ok);
        let mut lease = done.lease.unwrap();
        lease.fill(0);
        self.queue.submit(Request::read(&self.volume, 60 * BLOCK, lease)).unwrap();
        let done = self.queue.wait(LONG).unwrap().unwrap();
        assert_eq!(done.status, Status::Ok);
        assert!(done.lease.unwrap().iter().all(|byte| *byte == 0x3c));
        arena.detach().unwrap();
    }
}

/// Bytes of a block that look like no other's.
pub(crate) fn noise(seed: u64) -> Vec<u8> {
    let mut word = seed.wrapping_mul(2).wrapping_add(1);
    let words = std::iter::repeat_with(move || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    });
    words.take(usize::try_from(BLOCK / 8).unwrap()).flat_map(u64::to_ne_bytes).collect()
}
