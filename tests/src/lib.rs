//! Tests that need several crates at once: contract suites, flows between processes, faults, house
//! rules. Each target below `tests/` runs alone; this library is what their processes share: the
//! verified traffic of a client, to host memory and to a GPU, its ledger, a file system in user
//! space that leaves requests unanswered, and the figures of a quiet client among others. Touches a
//! sidecar through `kvrail-client` only, but for `Seat`, a client of stores that speaks lanes
//! itself.
#![forbid(unsafe_code)]

mod blocks;
mod control;
mod fuse;
mod gpu;
mod keyed;
mod ledger;
mod paged;
mod quiet;
mod steady;
mod tally;
mod traffic;
mod worker;

pub use blocks::{Block, LARGE_BYTES, blocks_of, span_bytes};
pub use control::{Control, ControlOp, ControlRound};
pub use fuse::{Fuse, FuseRequest};
pub use gpu::{GPU_BLOCK_BYTES, GpuPlan, drive_gpu};
pub use keyed::{
    Books, End, Gone, KeyedPlan, KeyedTally, Op, Seat, SeatOptions, TwinTally, bytes_of,
    drive_keyed, half, hold, key_of, length_of, noise, role_seat, twin,
};
pub use ledger::{Kind, Ledger};
pub use paged::{Device, Export, PagedCache};
pub use quiet::{QUIET_BLOCK_BYTES, Quiet, QuietRound};
pub use steady::{Steady, SteadyTally};
pub use tally::{Acknowledged, Tally};
pub use traffic::{Plan, drive, verify};
