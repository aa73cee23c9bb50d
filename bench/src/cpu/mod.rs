//! CPU time and cores.
//!
//! Two accounts, because neither is enough alone. `process` reads the clocks of the processes that
//! an arm consists of: exact, blind for interrupts, which the kernel charges to the process on that
//! core, or to none when it idles. `machine` takes the busy time of the cores, less the time of all
//! other processes: it sees interrupts and kernel threads, and a busy neighbour that ends meanwhile
//! disturbs it. So where others work (`load`), the first one counts.

mod account;
mod cores;
mod load;
mod machine;
mod process;

pub use self::account::{Account, CpuSeconds, Meters};
pub use self::cores::{pin, usable_cores};
pub use self::load::{LoadMeter, MachineLoad};
pub use self::machine::MachineMeter;
pub use self::process::CpuMeter;
