//! Drives a bridge and its GPU's poller on one thread, and keeps a model of every byte of GPU
//! memory and device: after each run both must equal the model.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvrail_device::{
    BUFFERS_MAX, BufferIndex, Device, DirectIo, Durability, Finished, Interrupt, Operation,
    RemoteMemory, Uring, UringOptions, open_path,
};
use kvrail_gpu::{
    BatchPool, Bridge, Choice, Gpu, GpuPoller, GpuRegion, GpuSetup, Health, MechanismChoice,
    MemberFile, OwnMemory, Port, PortOptions, Staging, StagingOptions, choose,
};
use kvrail_memory::{HeapBlock, Pinned};
use kvrail_ring::{Opcode, Status, ThreadWaker};
use tempfile::TempPath;

use super::layouts::Plan;
use crate::accounts::{self, Accounts, Driven};
use crate::uring::{FILE_BYTES, file};

/// Bytes of the device that the model follows.
const VOLUME_BYTES: usize = 24 << 20;

/// Where the GPU region and a host region are attached.
pub(crate) const AT: BufferIndex = BufferIndex(BUFFERS_MAX);
pub(crate) const HOST: BufferIndex = BufferIndex(0);

/// All parts between a device and a GPU.
pub(crate) struct Rig {
    pub(crate) bridge: Bridge<Uring<Interrupt>>,
    pub(crate) poller: GpuPoller,
    pub(crate) health: Arc<Health>,
    pub(crate) staging: Arc<Staging>,
    pub(crate) region: Arc<GpuRegion>,
    pub(crate) choice: Choice,
    memories: Vec<Box<dyn OwnMemory>>,
    /// Expected content of each memory and of the device.
    shadow: Vec<Vec<u8>>,
    volume: Vec<u8>,
    path: TempPath,
    pub(crate) host: Arc<HeapBlock>,
    pub(crate) accounts: Accounts,
}

/// Pseudorandom bytes.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut out = vec![0; bytes];
    random.fill(&mut out);
    out
}

/// The first byte that differs; compares the whole first, which is fast.
fn differs_at(seen: &[u8], expected: &[u8]) -> Option<usize> {
    if seen == expected {
        return None;
    }
    seen.iter().zip(expected).position(|(seen, expected)| seen != expected)
}

/// The GPU's poller with one port.
fn poller(
    gpu: &dyn Gpu,
    choice: &Choice,
    (staging, health): (&Arc<Staging>, &Arc<Health>),
    batches: Option<BatchPool>,
) -> (Arc<Port>, GpuPoller) {
    let nudge = || Arc::new(ThreadWaker::new().expect("descriptors are left"));
    let (to_gpu, stop) = (nudge(), Arc::new(AtomicBool::new(false)));
    let port = Port::new(PortOptions {
        gpu: gpu.identity().uuid,
        health: Arc::clone(health),
        staging: Arc::clone(staging),
        to_gpu: Arc::clone(&to_gpu),
        to_device: nudge(),
        route: choice.route,
        reason: choice.reason.clone(),
    });
    let setup = GpuSetup {
        ports: vec![Arc::clone(&port)],
        staging: Arc::clone(staging),
        batches,
        health: Arc::clone(health),
        nudge: to_gpu,
        stop,
    };
    let mut poller = GpuPoller::new(gpu, setup).expect("the GPU takes the staging memory");
    poller.begin();
    (port, poller)
}

impl Rig {
    /// A fresh device, and GPU memory of this plan, full of noise.
    pub(crate) fn new(
        gpu: &dyn Gpu,
        wanted: MechanismChoice,
        plan: &Plan,
        pool: StagingOptions,
    ) -> Self {
        let path = file();
        let name = path.to_str().expect("UTF-8 paths").to_owned();
        let open = || open_path(&name, DirectIo::Optional).expect("our own file");
        let choice = choose(gpu, MemberFile { name: name.clone(), file: open() }, wanted);
        let choice = choice.unwrap_or_else(|error| panic!("{error}"));
        let batches = choice.path.map(|path| {
            BatchPool::new(gpu.direct().expect("chosen"), path).expect("handles are left")
        });
        let staging = Arc::new(Staging::new(pool).expect("a few MiB are free"));
        let health = Arc::new(Health::default());
        let (port, poller) = poller(gpu, &choice, (&staging, &health), batches);
        let options =
            UringOptions { direct: DirectIo::Optional, ..UringOptions::new(&name, open()) };
        let device = Uring::open(options).expect("io_uring works here");
        let mut bridge = Bridge::new(device, vec![port]).expect("entries are free");
        let host = Arc::new(HeapBlock::new(1 << 20));
        bridge.attach(HOST, Arc::clone(&host) as Arc<dyn Pinned>).expect("free");
        let memories = plan.memories.iter();
        let mut memories: Vec<_> =
            memories.map(|bytes| gpu.allocate(*bytes).expect("memory is left")).collect();
        let fill = |(index, memory): (usize, &mut Box<dyn OwnMemory>)| {
            let bytes = noise(index as u64, usize::try_from(memory.bytes()).expect("small"));
            memory.write(0, &bytes).expect("our own memory");
            bytes
        };
        let shadow = memories.iter_mut().enumerate().map(fill).collect();
        let handles = memories.iter().map(|memory| memory.export().expect("exportable")).collect();
        let region = gpu.import(handles, plan.fragments.clone(), plan.blocks);
        let region = region.unwrap_or_else(|error| panic!("{}: {error}", plan.name));
        bridge.attach_remote(AT, Arc::clone(&region) as Arc<dyn RemoteMemory>).expect("free");
        Self {
            bridge,
            poller,
            health,
            staging,
            region,
            choice,
            memories,
            shadow,
            volume: vec![0; VOLUME_BYTES],
            path,
            host,
            accounts: Accounts::default(),
        }
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(&self) -> u32 {
        u32::try_from(self.region.layout().block_bytes()).expect("small")
    }

    /// An operation on a range of a block, at this byte of the device.
    pub(crate) fn operation(
        &mut self,
        opcode: Opcode,
        (block, start, length): (u32, u64, u32),
        offset: u64,
    ) -> Operation {
        assert!(offset + u64::from(length) <= (VOLUME_BYTES as u64).min(FILE_BYTES));
        let tag = self.accounts.fresh_tag();
        let line = self.region.line(block, start, length).expect("the block holds the range");
        let durability = Durability::Visible;
        Operation { tag, opcode, durability, offset, length, buffer: AT, buffer_offset: line }
    }

    /// Offers an operation; true when the bridge took it.
    pub(crate) fn offer(&mut self, operation: Operation) -> bool {
        self.accounts.offer(&mut self.bridge, operation)
    }

    /// One turn of both pollers.
    pub(crate) fn turn(&mut self) {
        self.bridge.submit();
        self.poller.tick();
        self.accounts.reap(&mut self.bridge);
    }

    /// Turns until the condition holds.
    pub(crate) fn turn_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        accounts::turn_until(self, what, done);
    }

    /// Runs all operations, with the largest number in flight that is taken; returns their results
    /// in order.
    pub(crate) fn run(&mut self, operations: &[Operation]) -> Vec<Finished> {
        accounts::run(self, operations)
    }

    /// Runs operations on disjoint ranges that must succeed, and applies them to the model.
    pub(crate) fn must(&mut self, operations: &[Operation]) {
        let ended = self.run(operations);
        assert!(ended.iter().all(|finished| finished.status == Status::Ok), "{ended:?}");
        for operation in operations {
            self.model(operation);
        }
    }

    /// Applies the operation to the model, by the layout's runs and the processor.
    fn model(&mut self, operation: &Operation) {
        let (block, start) = self.region.place(operation.buffer_offset);
        let number = |value: u64| usize::try_from(value).expect("small");
        for run in self.region.layout().runs(block, start, operation.length) {
            let memory = &mut self.shadow[usize::from(run.memory)];
            let memory = &mut memory[number(run.offset)..number(run.offset + run.bytes)];
            let at = operation.offset + run.at;
            let volume = &mut self.volume[number(at)..number(at + run.bytes)];
            match operation.opcode {
                Opcode::Read => memory.copy_from_slice(volume),
                _ => volume.copy_from_slice(memory),
            }
        }
    }

    /// Every byte of memory and device equals the model.
    pub(crate) fn check(&self, what: &str) {
        for (index, (memory, expected)) in self.memories.iter().zip(&self.shadow).enumerate() {
            let mut seen = vec![0; expected.len()];
            memory.read(0, &mut seen).expect("our own memory");
            assert_eq!(differs_at(&seen, expected), None, "{what}: memory {index} differs there");
        }
        let mut seen = vec![0; VOLUME_BYTES];
        File::open(&self.path).unwrap().read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(differs_at(&seen, &self.volume), None, "{what}: the device differs there");
    }

    /// A host operation of 4 KiB, far from the range of the model.
    pub(crate) fn host_operation(&mut self, opcode: Opcode, nth: u64) -> Operation {
        let tag = self.accounts.fresh_tag();
        Operation {
            tag,
            opcode,
            durability: Durability::Visible,
            offset: VOLUME_BYTES as u64 + nth * 4096,
            length: 4096,
            buffer: HOST,
            buffer_offset: nth * 4096,
        }
    }
}

impl Driven for Rig {
    fn accounts(&mut self) -> &mut Accounts {
        &mut self.accounts
    }

    fn offer(&mut self, operation: Operation) -> bool {
        Rig::offer(self, operation)
    }

    fn turn(&mut self) {
        Rig::turn(self);
    }
}
