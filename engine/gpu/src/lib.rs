//! KV blocks between devices and GPU memory: layouts, handles, mechanisms, the GPU's poller.
//!
//! Owns everything about GPUs: a client's exported memory (`GpuHandle`, `GpuRegion`), the staging
//! pool, the bridge that makes a device reach GPU memory, and the poller that copies. `layout`
//! defines where the bytes of a block lie. Has no notion of lanes or sessions.
//!
//! A GPU is used through the contract (`Gpu`, `Mover`, `DirectGpu`): by CUDA, loaded at run time,
//! or by a stand-in on host memory, which follows fault plans. One conformance suite runs over
//! both.

mod bridge;
mod contract;
pub mod cuda;
mod error;
mod handle;
mod health;
mod mechanism;
mod poller;
mod port;
mod region;
mod staging;
mod standin;
mod udev;

pub use bridge::Bridge;
pub use contract::{
    BatchIo, DirectEnd, DirectEntry, DirectFailure, DirectGpu, DirectPath, DirectWay, Fault,
    FileIndex, Gpu, GpuIdentity, LaunchId, LaunchProgress, MOVES_MAX, Move, Mover, OwnMemory,
    Registered, Way,
};
pub use error::{CudaError, GpuError};
pub use handle::{BadUuid, GpuHandle, GpuUuid};
pub use health::Health;
pub use kvrail_layout::{self as layout, Fragment, Layout, LayoutError};
pub use mechanism::{Choice, MechanismChoice, MemberFile, choose};
pub use poller::{
    BatchPool, GpuPoller, GpuPollerHandle, GpuSeat, GpuSetup, GpuStartError, GpuTurn, start,
};
pub use port::{CopyRoute, JOBS_MAX, Port, PortOptions};
pub use region::{Backing, GpuRegion, MemoryGuard, RegionMemory};
pub use staging::{STAGING_ENTRIES, SlotIndex, Staging, StagingOptions};
pub use standin::{EmulatedGpu, GpuControl, GpuFault};
