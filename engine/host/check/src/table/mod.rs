//! Every check, group by group: what it looks at, what is lost when it is wrong, what to do.

mod devices;
mod system;

use crate::machine::Purpose;
use crate::probe::Check;

const ALL: &[Purpose] =
    &[Purpose::Serve, Purpose::Target, Purpose::Host, Purpose::Gpu, Purpose::Bench];
const RINGS: &[Purpose] = &[Purpose::Serve, Purpose::Gpu, Purpose::Bench];
const LOCAL: &[Purpose] = &[Purpose::Serve, Purpose::Target, Purpose::Gpu, Purpose::Bench];
const WIRE: &[Purpose] = &[Purpose::Target, Purpose::Host];
const TARGET: &[Purpose] = &[Purpose::Target];
const HOST: &[Purpose] = &[Purpose::Host];
const GPU: &[Purpose] = &[Purpose::Gpu];
const PEER: &[Purpose] = &[Purpose::Target, Purpose::Gpu];

/// The tables of all groups, in the order of the report.
pub(crate) const CHECKS: [&[Check]; 9] = [
    system::KERNEL,
    system::MEMORY,
    system::CPU,
    devices::NVME,
    devices::FILE_SYSTEMS,
    devices::RDMA,
    devices::TOOLS,
    devices::GPUS,
    devices::CONTAINER,
];
