//! Moves by copy engines: rectangles and lists, and a word that is written when they are done.
//!
//! Kernels of this process take turns with those of the engine that serves the model: on a busy GPU
//! each waits for a slice of 2 ms and takes one. Copy engines do not; so whatever they can move at
//! the speed of the bus is theirs.
#![expect(unsafe_code, reason = "copies by address")]
// UNSAFETY: staging memory is held by the mover, regions by its caller, until the word was seen;
// the lists are copied by the driver during the call.

use std::ptr;
use std::time::Instant;

use cudarc::driver::sys;

use super::contention::SmContention;
use super::context::{check, has};
use super::import::OpenedMemory;
use super::launch::Stream;
use super::mapped::Mapped;
use super::memcpy_2d::{CopyShape, Rectangle, Rectangles};
use crate::contract::{Move, Way};
use crate::error::{CudaError, GpuError};
use kvrail_layout::FRAGMENTS_MAX;

/// Below this the driver sends the bytes of a plain copy to the GPU along with its commands, and
/// the part of the GPU that unpacks them is the one that runs kernels. Rows are never sent so.
const INLINE_BYTES_MAX: usize = 32 << 10;

/// Bytes that are moved once at the start, so that the driver's first time is over.
const TRIAL_BYTES: usize = 64 << 10;

/// Copies for one mover.
#[derive(Debug)]
pub(super) struct Engines {
    listed: Option<Box<Lists>>,
}

/// Parameters of a copy with a list.
#[derive(Debug)]
struct Lists {
    paged: [u64; FRAGMENTS_MAX],
    staged: [u64; FRAGMENTS_MAX],
    bytes: [usize; FRAGMENTS_MAX],
}

impl Engines {
    /// Tries what a mover will do: copies both ways, and a word written behind them.
    ///
    /// # Errors
    /// The driver's, where it does not write words.
    pub(super) fn try_out(stream: &Stream, staging: &Mapped, flag: u64) -> Result<Self, GpuError> {
        stream.context().enter()?;
        let listed = has("cuMemcpyBatchAsync").then(|| {
            let (paged, staged) = ([0; FRAGMENTS_MAX], [0; FRAGMENTS_MAX]);
            Box::new(Lists { paged, staged, bytes: [0; FRAGMENTS_MAX] })
        });
        let engines = Self { listed };
        let bytes = TRIAL_BYTES.min(staging.bytes());
        let scratch = OpenedMemory::allocate(stream.context(), bytes as u64)?;
        let all =
            Rectangle { address: scratch.address, staged: 0, width: bytes, pitch: 0, rows: 1 };
        for way in [Way::Scatter, Way::Gather] {
            // SAFETY: the scratch memory and the staging memory are held until the stream has
            // drained; no slot of the pool is in use yet.
            unsafe { copy(way, stream, staging, &all) }?;
        }
        // SAFETY: the flag is held by the caller, and the stream drains before this returns.
        let written = unsafe { write_word(stream, flag, 0) };
        stream.drain()?;
        written?;
        Ok(engines)
    }

    /// Its mechanism, for people.
    pub(super) fn description(&self) -> String {
        let listed = match self.listed {
            Some(_) => "else copy engines with lists",
            None => "no lists: older driver",
        };
        format!("copy engines for even rows, kernels for others while the GPU has time ({listed})")
    }

    /// Whether all of these moves are work for engines, rather than for a kernel.
    pub(super) fn suit(&self, moves: &[Move<'_>], crowd: SmContention) -> bool {
        let lists = self.listed.is_some() && crowd.is_contended(Instant::now());
        moves.iter().all(|copy| match CopyShape::of(*copy) {
            CopyShape::Rectangles => true,
            CopyShape::List => lists,
            CopyShape::Scattered => false,
        })
    }

    /// Starts all moves, then the word.
    ///
    /// # Safety
    /// Regions, staging memory and the word must stay until it shows the ticket or the stream has
    /// drained.
    pub(super) unsafe fn start(
        &mut self,
        way: Way,
        stream: &Stream,
        staging: &Mapped,
        moves: &[Move<'_>],
        (flag, ticket): (u64, u32),
    ) -> Result<(), CudaError> {
        for whole in moves {
            match (CopyShape::of(*whole), &mut self.listed) {
                (CopyShape::List, Some(lists)) => {
                    // SAFETY: the caller's promise.
                    unsafe { lists.copy(way, stream, staging, *whole) }?;
                }
                _ => {
                    for one in Rectangles::of(*whole) {
                        // SAFETY: the caller's promise.
                        unsafe { copy(way, stream, staging, &one) }?;
                    }
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { write_word(stream, flag, ticket) }
    }
}

impl Lists {
    /// One call for all runs of a move.
    ///
    /// # Safety
    /// As for `Engines::start`.
    unsafe fn copy(
        &mut self,
        way: Way,
        stream: &Stream,
        staging: &Mapped,
        it: Move<'_>,
    ) -> Result<(), CudaError> {
        let mut count = 0;
        for run in it.region.layout().runs(it.block, it.start, it.length) {
            let at = it.staged + usize::try_from(run.at).expect("64-bit machine");
            self.paged[count] = it.region.memories()[usize::from(run.memory)].address + run.offset;
            self.staged[count] = staging.at(at).addr() as u64;
            self.bytes[count] = usize::try_from(run.bytes).expect("64-bit machine");
            count += 1;
        }
        let (to, from) = match way {
            Way::Scatter => (&mut self.paged, &mut self.staged),
            Way::Gather => (&mut self.staged, &mut self.paged),
        };
        let nowhere = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID,
            id: 0,
        };
        let mut attributes = sys::CUmemcpyAttributes {
            srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
        };
        let (mut first, mut failed) = (0, 0);
        // SAFETY: lists of `count` entries, read during the call; what they name is the caller's
        // promise.
        let got = unsafe {
            sys::cuMemcpyBatchAsync(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                self.bytes.as_mut_ptr(),
                count,
                &raw mut attributes,
                &raw mut first,
                1,
                &raw mut failed,
                stream.raw(),
            )
        };
        check("cuMemcpyBatchAsync", got)
    }
}

/// Starts one copy.
///
/// # Safety
/// Both sides must hold the rectangle and stay until the stream has come past it.
unsafe fn copy(
    way: Way,
    stream: &Stream,
    staging: &Mapped,
    it: &Rectangle,
) -> Result<(), CudaError> {
    let end = it.staged + it.width * it.rows;
    assert!(end <= staging.bytes(), "a copy of {} rows leaves the staging memory", it.rows);
    let mut it = *it;
    if it.rows == 1 && it.width < INLINE_BYTES_MAX && it.width.is_multiple_of(32) {
        (it.width, it.pitch, it.rows) = (it.width / 2, it.width / 2, 2);
    }
    let host = staging.at(it.staged);
    if it.rows == 1 {
        let (call, got) = match way {
            // SAFETY: the caller's promise.
            Way::Scatter => ("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(it.address, host, it.width, stream.raw())
            }),
            // SAFETY: the caller's promise.
            Way::Gather => ("cuMemcpyDtoHAsync", unsafe {
                sys::cuMemcpyDtoHAsync_v2(host, it.address, it.width, stream.raw())
            }),
        };
        return check(call, got);
    }
    let (inward, outward) = match way {
        Way::Scatter => (true, false),
        Way::Gather => (false, true),
    };
    let kind = |host: bool| match host {
        true => sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        false => sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
    };
    let pitch = |host: bool| if host { it.width } else { it.pitch };
    let parameters = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: kind(inward),
        srcHost: host,
        srcDevice: it.address,
        srcArray: ptr::null_mut(),
        srcPitch: pitch(inward),
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: kind(outward),
        dstHost: host,
        dstDevice: it.address,
        dstArray: ptr::null_mut(),
        dstPitch: pitch(outward),
        WidthInBytes: it.width,
        Height: it.rows,
    };
    // SAFETY: the parameters live on this stack and are copied during the call; what they name is
    // the caller's promise.
    check("cuMemcpy2DAsync", unsafe {
        sys::cuMemcpy2DAsync_v2(&raw const parameters, stream.raw())
    })
}

/// Has a word in mapped memory written once everything before it in the stream is done; the
/// default flags order it behind the bytes of the copies.
///
/// # Safety
/// The word must stay mapped until then.
unsafe fn write_word(stream: &Stream, flag: u64, ticket: u32) -> Result<(), CudaError> {
    let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
    // SAFETY: the caller's promise.
    let got = unsafe { sys::cuStreamWriteValue32_v2(stream.raw(), flag, ticket, flags) };
    check("cuStreamWriteValue32", got)
}
