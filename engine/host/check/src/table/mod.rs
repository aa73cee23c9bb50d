//! Every check, group by group: what it looks at, what is lost when it is wrong, what to do.

mod devices;
mod purposes;
mod system;

use crate::probe::Check;

/// The tables of all groups, in the order of the report.
pub(crate) const CHECKS: [&[Check]; 10] = [
    system::KERNEL,
    system::MEMORY,
    system::CPU,
    devices::NVME,
    devices::STORES,
    devices::FILE_SYSTEMS,
    devices::RDMA,
    devices::TOOLS,
    devices::GPUS,
    devices::CONTAINER,
];
