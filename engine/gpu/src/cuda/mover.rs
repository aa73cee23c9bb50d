//! The mover: launches of the gather and scatter kernels, watched through flags in host memory.
#![expect(unsafe_code, reason = "launches kernels over memory it holds")]
// UNSAFETY: staging memory, flags and counters are held by the mover, which waits for its streams
// in drop; regions are held by the jobs of the poller until their launch is done.

use std::sync::Arc;

use kvrail_memory::HeapBlock;

use super::context::{Context, check};
use super::import::Opened;
use super::launch::{Batch, DeviceJob, Kernels, Stream};
use super::mapped::Mapped;
use crate::contract::{Fault, LaunchId, MOVES_MAX, Move, Mover, Progress, Way};
use crate::error::GpuError;
use crate::staging::Staging;

/// Streams for each way: while one launch ends, the next already moves.
const STREAMS: usize = 4;

/// Looks at a flag between two looks at the stream's health: about a millisecond of spinning.
const LOOKS_PER_QUERY: u32 = 1 << 12;

/// Bytes of a flag or counter.
const WORD_BYTES: u64 = 4;

/// Moves by kernel. Fields drop in this order: streams drain before what kernels touch goes.
#[derive(Debug)]
pub(super) struct CudaMover {
    streams: [Vec<Stream>; 2],
    kernels: Kernels,
    staging: Mapped,
    flags: Mapped,
    arrived: Opened,
    batch: Box<Batch>,
    launches: Box<[Launch]>,
    turn: usize,
    context: Arc<Context>,
    _pool: Arc<Staging>,
}

#[derive(Clone, Copy, Debug)]
struct Launch {
    /// What the flag says when it is done.
    ticket: u32,
    running: Option<(Way, usize)>,
    looks: u32,
}

impl CudaMover {
    pub(super) fn new(
        context: &Arc<Context>,
        pool: &Arc<Staging>,
        launches: u16,
    ) -> Result<Self, GpuError> {
        let streams = || (0..STREAMS).map(|_| Stream::new(context)).collect::<Result<Vec<_>, _>>();
        let words = u64::from(launches) * WORD_BYTES;
        let flags = HeapBlock::new(usize::try_from(words).expect("few launches"));
        let arrived = Opened::allocate(context, words)?;
        zero(&arrived)?;
        let region: Arc<kvrail_memory::Region> = Arc::clone(pool.region());
        let idle = Launch { ticket: 0, running: None, looks: 0 };
        Ok(Self {
            streams: [streams()?, streams()?],
            kernels: Kernels::load(context)?,
            staging: Mapped::new(context, region)?,
            flags: Mapped::new(context, Arc::new(flags))?,
            arrived,
            batch: Box::new(Batch::EMPTY),
            launches: vec![idle; usize::from(launches)].into(),
            turn: 0,
            context: Arc::clone(context),
            _pool: Arc::clone(pool),
        })
    }

    fn fill(&mut self, index: usize, moves: &[Move<'_>]) {
        let word = index as u64 * WORD_BYTES;
        self.batch.arrived = self.arrived.address + word;
        self.batch.flag = self.flags.address() + word;
        self.batch.ticket = self.launches[index].ticket;
        for (job, it) in self.batch.jobs.iter_mut().zip(moves) {
            let layout = it.region.layout();
            assert!(layout.holds(it.block, it.start, it.length), "checked when it was accepted");
            *job = DeviceJob {
                fragments: it.region.table(),
                staged: self.staging.address() + it.staged as u64,
                start: it.start,
                length: it.length,
                block: it.block,
                count: u32::try_from(layout.fragments().len()).expect("at most 1024"),
                reserved: 0,
            };
        }
    }
}

/// Zeroes counters before the first launch.
fn zero(memory: &Opened) -> Result<(), GpuError> {
    let zeroes = vec![0_u8; usize::try_from(memory.bytes).expect("few")];
    let to = memory.address;
    // SAFETY: as many bytes as the memory has, read before the call returns.
    let got =
        unsafe { cudarc::driver::sys::cuMemcpyHtoD_v2(to, zeroes.as_ptr().cast(), zeroes.len()) };
    Ok(check("cuMemcpyHtoD", got)?)
}

fn fault(error: impl std::fmt::Display) -> Fault {
    Fault(error.to_string())
}

impl Mover for CudaMover {
    fn begin(&mut self) -> Result<(), Fault> {
        self.context.enter().map_err(fault)
    }

    fn launch(&mut self, way: Way, moves: &[Move<'_>]) -> Result<Option<LaunchId>, Fault> {
        assert!((1..=MOVES_MAX).contains(&moves.len()), "{} moves", moves.len());
        let free = self.launches.iter().position(|launch| launch.running.is_none());
        let Some(index) = free else { return Ok(None) };
        let launch = &mut self.launches[index];
        launch.ticket = launch.ticket.wrapping_add(1);
        (launch.looks, launch.running) = (0, Some((way, self.turn)));
        self.fill(index, moves);
        let stream = &self.streams[way as usize][self.turn];
        self.turn = (self.turn + 1) % STREAMS;
        // SAFETY: the mover holds staging, flags and counters until its streams have drained; the
        // caller holds the regions until `progress` says that the launch ended; ranges were
        // checked against layouts in `fill` and lie in slots of the pool.
        let started = unsafe { self.kernels.launch(way, stream, &self.batch, moves.len()) };
        if let Err(error) = started {
            self.launches[index].running = None;
            return Err(fault(error));
        }
        Ok(Some(LaunchId(u16::try_from(index).expect("made from a u16"))))
    }

    fn progress(&mut self, id: LaunchId) -> Result<Progress, Fault> {
        let index = usize::from(id.0);
        let launch = &mut self.launches[index];
        let (way, stream) = launch.running.expect("a launch is asked about while it runs");
        if self.flags.word(index) == launch.ticket {
            launch.running = None;
            return Ok(Progress::Done);
        }
        launch.looks += 1;
        if launch.looks.is_multiple_of(LOOKS_PER_QUERY) {
            self.streams[way as usize][stream].health().map_err(fault)?;
        }
        Ok(Progress::Running)
    }
}
