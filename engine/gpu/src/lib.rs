//! KV blocks between devices and GPU memory: layouts, handles, mechanisms, the GPU poller.

mod contract;
pub mod cuda;
mod error;
mod handle;
pub mod layout;
mod region;
mod staging;
pub mod udev;

pub use contract::*;
pub use error::*;
pub use handle::*;
pub use layout::Layout;
pub use region::*;
pub use staging::*;
