//! The report of a benchmark: the JSON, the table, the log.

mod aims;
mod log;
mod schema;
mod table;
mod words;

pub use self::aims::aims;
pub use self::log::{LogEntry, write_log};
pub use self::schema::{
    Aim, Bound, Comparison, GpuFound, Ratio, Report, Run, SCHEMA, SidecarCost, Verification,
};
pub use self::table::table;
pub(crate) use self::table::{empty, machine};
pub use self::words::LEGEND;
