//! The mover: copies by engines and by kernels, watched through flags in host memory.
#![expect(unsafe_code, reason = "starts copies over memory it holds")]
// UNSAFETY: staging memory, flags and counters are held by the mover, which waits for its streams
// in drop; regions are held by the jobs of the poller until their launch is done.

use std::sync::Arc;
use std::time::Instant;

use kvrail_memory::HeapBlock;

use super::contention::SmContention;
use super::context::{PrimaryContext, check};
use super::dma_copies::Engines;
use super::import::OpenedMemory;
use super::launch::{Batch, DeviceJob, Kernels, Stream};
use super::mapped::Mapped;
use crate::contract::{Fault, LaunchId, LaunchProgress, MOVES_MAX, Move, Mover, Way};
use crate::error::{CudaError, GpuError};
use crate::staging::Staging;

/// Streams for each way: while one launch ends, the next already moves.
const STREAMS: usize = 4;

/// Looks at a flag between two looks at the stream's health: about a millisecond of spinning.
const LOOKS_PER_QUERY: u32 = 1 << 12;

/// Bytes of a flag or counter.
const WORD_BYTES: u64 = 4;

/// The means of copying between staging and GPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copies {
    /// Copy engines where they are as fast as the bus, else kernels.
    #[default]
    Auto,
    /// Kernels alone: to compare with.
    Kernels,
}

/// Moves. Fields drop in this order: streams drain before what copies touch goes.
#[derive(Debug)]
pub(super) struct CudaMover {
    streams: [Vec<Stream>; 2],
    kernels: Kernels,
    engines: Result<Engines, String>,
    staging: Mapped,
    flags: Mapped,
    arrived: OpenedMemory,
    batch: Box<Batch>,
    launches: Box<[KernelLaunch]>,
    crowd: SmContention,
    turn: usize,
    context: Arc<PrimaryContext>,
    _pool: Arc<Staging>,
}

#[derive(Clone, Copy, Debug)]
struct KernelLaunch {
    /// Value of the flag when it is done.
    ticket: u32,
    running: Option<(Way, usize)>,
    looks: u32,
    /// When it began, where it is a kernel.
    kernel: Option<Instant>,
}

impl CudaMover {
    pub(super) fn new(
        context: &Arc<PrimaryContext>,
        pool: &Arc<Staging>,
        launches: u16,
        copies: Copies,
    ) -> Result<Self, GpuError> {
        let streams = || (0..STREAMS).map(|_| Stream::new(context)).collect::<Result<Vec<_>, _>>();
        let words = u64::from(launches) * WORD_BYTES;
        let flags = HeapBlock::new(usize::try_from(words).expect("few launches"));
        let arrived = OpenedMemory::allocate(context, words)?;
        zero(&arrived)?;
        let region: Arc<kvrail_memory::Region> = Arc::clone(pool.region());
        let idle = KernelLaunch { ticket: 0, running: None, looks: 0, kernel: None };
        let (staging, flags) =
            (Mapped::new(context, region)?, Mapped::new(context, Arc::new(flags))?);
        let streams = [streams()?, streams()?];
        let engines = match copies {
            Copies::Kernels => Err("configured".to_owned()),
            Copies::Auto => Engines::try_out(&streams[0][0], &staging, flags.address())
                .map_err(|error| error.to_string()),
        };
        Ok(Self {
            streams,
            kernels: Kernels::load(context)?,
            engines,
            staging,
            flags,
            arrived,
            batch: Box::new(Batch::EMPTY),
            launches: vec![idle; usize::from(launches)].into(),
            crowd: SmContention::default(),
            turn: 0,
            context: Arc::clone(context),
            _pool: Arc::clone(pool),
        })
    }

    /// Starts a launch by engines, or by a kernel where a move is nothing for them.
    fn start(
        &mut self,
        way: Way,
        turn: usize,
        index: usize,
        moves: &[Move<'_>],
    ) -> Result<(), CudaError> {
        let by_engines = self.engines.as_ref().is_ok_and(|engines| engines.suit(moves, self.crowd));
        self.launches[index].kernel = (!by_engines).then(Instant::now);
        if !by_engines {
            self.fill(index, moves);
        }
        let Self { streams, engines, kernels, staging, flags, launches, batch, .. } = self;
        let stream = &streams[way as usize][turn];
        let flag = (flags.address() + index as u64 * WORD_BYTES, launches[index].ticket);
        match engines.as_mut().ok().filter(|_| by_engines) {
            // SAFETY: the mover holds staging and flags until its streams have drained; the caller
            // holds the regions until `progress` reports the launch's end; ranges were checked
            // against layouts by the caller and lie in slots of the pool.
            Some(engines) => unsafe { engines.start(way, stream, staging, moves, flag) },
            // SAFETY: the same, and the counters are the mover's too.
            None => unsafe { kernels.launch(way, stream, batch, moves.len()) },
        }
    }

    fn fill(&mut self, index: usize, moves: &[Move<'_>]) {
        let word = index as u64 * WORD_BYTES;
        self.batch.arrived = self.arrived.address + word;
        self.batch.flag = self.flags.address() + word;
        self.batch.ticket = self.launches[index].ticket;
        for (job, it) in self.batch.jobs.iter_mut().zip(moves) {
            *job = DeviceJob {
                fragments: it.region.table(),
                staged: self.staging.address() + it.staged as u64,
                start: it.start,
                length: it.length,
                block: it.block,
                count: u32::try_from(it.region.layout().fragments().len()).expect("at most 1024"),
                reserved: 0,
            };
        }
    }
}

/// Zeroes counters before the first launch.
fn zero(memory: &OpenedMemory) -> Result<(), GpuError> {
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
    fn description(&self) -> String {
        match &self.engines {
            Ok(engines) => engines.description(),
            Err(reason) => format!("kernels ({reason})"),
        }
    }

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
        for one in moves {
            let held = one.region.layout().holds(one.block, one.start, one.length);
            assert!(held, "checked when it was accepted");
        }
        let turn = self.turn;
        self.turn = (self.turn + 1) % STREAMS;
        if let Err(error) = self.start(way, turn, index, moves) {
            // Some of them may have begun, and nothing may run when the caller gets this error.
            let _drained = self.streams[way as usize][turn].drain();
            self.launches[index].running = None;
            return Err(fault(error));
        }
        Ok(Some(LaunchId(u16::try_from(index).expect("made from a u16"))))
    }

    fn progress(&mut self, id: LaunchId) -> Result<LaunchProgress, Fault> {
        let index = usize::from(id.0);
        let launch = &mut self.launches[index];
        let (way, stream) = launch.running.expect("the state of a launch is read while it runs");
        if self.flags.word(index) == launch.ticket {
            launch.running = None;
            if let Some(started) = launch.kernel {
                self.crowd.done(started, Instant::now());
            }
            return Ok(LaunchProgress::Done);
        }
        launch.looks += 1;
        if launch.looks.is_multiple_of(LOOKS_PER_QUERY) {
            self.streams[way as usize][stream].health().map_err(fault)?;
        }
        Ok(LaunchProgress::Running)
    }
}
