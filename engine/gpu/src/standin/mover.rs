//! Copies of the stand-in. A launch does nothing when it starts and everything right before it is
//! seen to be done, so a slot that is used too early or too late shows.

use std::sync::Arc;

use kvrail_memory::{Region, load, store};

use super::plan::{GpuControl, GpuFault};
use crate::contract::{Fault, LaunchId, LaunchProgress, Move, Mover, Way};
use crate::region::Backing;
use crate::staging::Staging;

/// Looks at a launch before it is done.
const LOOKS: u32 = 3;

/// A run of bytes to be moved: memory and offset, staging offset, bytes.
#[derive(Debug)]
struct CopyRun {
    memory: Arc<Region>,
    offset: usize,
    staged: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Launch {
    way: Way,
    copies: Vec<CopyRun>,
    looks: u32,
    fault: Option<GpuFault>,
}

/// Moves with the processor.
#[derive(Debug)]
pub(super) struct HostMover {
    staging: Arc<Staging>,
    launches: Vec<Option<Launch>>,
    control: Arc<GpuControl>,
}

impl HostMover {
    pub(super) fn new(staging: &Arc<Staging>, launches: u16, control: Arc<GpuControl>) -> Self {
        let launches = (0..launches).map(|_| None).collect();
        Self { staging: Arc::clone(staging), launches, control }
    }
}

/// Every run of a move: the reference that the kernels are compared with.
fn copies(it: &Move<'_>) -> impl Iterator<Item = CopyRun> {
    let runs = it.region.layout().runs(it.block, it.start, it.length);
    let number = |value: u64| usize::try_from(value).expect("64-bit machine");
    runs.map(move |run| {
        let memory = &it.region.memories()[usize::from(run.memory)];
        let Backing::Host(region) = &memory.backing else {
            panic!("a region of the stand-in is host memory");
        };
        CopyRun {
            memory: Arc::clone(region),
            offset: number(memory.address + run.offset),
            staged: it.staged + number(run.at),
            bytes: number(run.bytes),
        }
    })
}

impl Launch {
    fn run(&self, staging: &Region) {
        let mut bytes = Vec::new();
        for copy in &self.copies {
            bytes.resize(copy.bytes, 0);
            match self.way {
                Way::Gather => {
                    load(&*copy.memory, copy.offset, &mut bytes);
                    store(staging, copy.staged, &bytes);
                }
                Way::Scatter => {
                    load(staging, copy.staged, &mut bytes);
                    store(&*copy.memory, copy.offset, &bytes);
                }
            }
        }
    }
}

impl Mover for HostMover {
    fn description(&self) -> String {
        "memory copies (stand-in)".to_owned()
    }

    fn begin(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn launch(&mut self, way: Way, moves: &[Move<'_>]) -> Result<Option<LaunchId>, Fault> {
        let Some(index) = self.launches.iter().position(Option::is_none) else { return Ok(None) };
        let fault = self.control.take(&[GpuFault::Launch, GpuFault::Running, GpuFault::Hang]);
        if fault == Some(GpuFault::Launch) {
            return Err(Fault("the stand-in fails at a launch by order".to_owned()));
        }
        let copies = moves.iter().flat_map(copies).collect();
        self.launches[index] = Some(Launch { way, copies, looks: 0, fault });
        Ok(Some(LaunchId(u16::try_from(index).expect("made from a u16"))))
    }

    fn progress(&mut self, launch: LaunchId) -> Result<LaunchProgress, Fault> {
        let place = &mut self.launches[usize::from(launch.0)];
        let running = place.as_mut().expect("the state of a launch is read while it runs");
        running.looks += 1;
        let hung = running.fault == Some(GpuFault::Hang) && !self.control.is_released();
        if running.looks < LOOKS || hung {
            return Ok(LaunchProgress::Running);
        }
        if running.fault == Some(GpuFault::Running) {
            return Err(Fault("the stand-in fails during a launch by order".to_owned()));
        }
        running.run(self.staging.region());
        *place = None;
        Ok(LaunchProgress::Done)
    }
}
