//! kvrail's arms: requests over a lane, to GPU memory by either mechanism, or to host memory.

use std::time::Instant;

use anyhow::{Result, ensure};
use kvrail_ring::{AdaptiveSpin, Opcode, RegionId, Request, RingBell, Status};

use super::case::{GpuCase, KV_BLOCKS};
use super::meter::{Meter, Moved};
use super::pollers::{GPU, GpuPollers, HOST};
use crate::port::Direction;

/// As a sidecar's clients: longest spin for the next completion, in nanoseconds.
const SPIN_NS: u64 = 100_000;

/// Which memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockMemory {
    Gpu,
    Host,
}

/// One request in flight, by place.
#[derive(Clone, Copy, Debug)]
struct GpuFlight {
    block: u32,
    volume_block: u64,
    since: Instant,
}

/// Keeps `depth` requests in flight until the time is over.
pub(super) fn run(
    pollers: &mut GpuPollers,
    case: GpuCase,
    memory: BlockMemory,
    mut meter: Meter<'_>,
) -> Result<Moved> {
    let mut flights: Vec<Option<GpuFlight>> = vec![None; case.depth as usize];
    // As the threads of a pool: each place goes through blocks of its own, so that a slow member
    // of the volume does not gather all requests.
    let mut next: Vec<u64> = (0..u64::from(case.depth)).collect();
    let (mut open, mut adaptive, mut seen_at) = (0_u32, AdaptiveSpin::default(), Instant::now());
    meter.begin()?;
    loop {
        let over = meter.is_over();
        for (place, flight) in flights.iter_mut().enumerate() {
            if over || flight.is_some() || pollers.lane.free(1)? == 0 {
                continue;
            }
            // Blocks of the cache and of the volume drift against each other.
            let it = GpuFlight {
                block: u32::try_from(next[place] % u64::from(KV_BLOCKS))?,
                volume_block: case.volume_block(next[place], pollers.volume_bytes),
                since: Instant::now(),
            };
            next[place] += u64::from(case.depth);
            pollers.lane.stage(request(case, memory, place, &it));
            *flight = Some(it);
            open += 1;
        }
        if pollers.lane.publish() == RingBell::Now {
            pollers.doorbell.ring();
        }
        if open == 0 {
            return meter.finish();
        }
        let mut seen = 0;
        while let Some(completion) = pollers.lane.take()? {
            let place = usize::try_from(completion.user_data())?;
            let flight = flights[place].take().expect("a completion for what is in flight");
            let status = completion.status();
            ensure!(status == Status::Ok, "block {}: {status}", flight.volume_block);
            meter.moved(case.block_bytes, flight.block, flight.volume_block, flight.since);
            seen += 1;
        }
        pollers.lane.release();
        open -= seen;
        let waited_ns = u64::try_from(seen_at.elapsed().as_nanos())?;
        if seen > 0 {
            adaptive.learn(waited_ns, SPIN_NS);
            seen_at = Instant::now();
        } else if case.depth > 1 && !(adaptive.should_spin() && waited_ns < SPIN_NS) {
            pollers.sleep()?;
        }
    }
}

fn request(case: GpuCase, memory: BlockMemory, place: usize, flight: &GpuFlight) -> Request {
    let (region, region_offset, layout_block): (RegionId, u64, u32) = match memory {
        BlockMemory::Gpu => (GPU, 0, flight.block),
        BlockMemory::Host => (HOST, place as u64 * u64::from(case.block_bytes), 0),
    };
    let opcode = match case.direction {
        Direction::Read => Opcode::Read,
        Direction::Write => Opcode::Write,
    };
    Request {
        user_data: place as u64,
        opcode: opcode as u8,
        region: region.0,
        length: case.block_bytes,
        volume_offset: flight.volume_block * u64::from(case.block_bytes),
        region_offset,
        layout_block,
        ..Request::default()
    }
}
