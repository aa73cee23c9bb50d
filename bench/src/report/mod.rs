//! What a benchmark says: the JSON, the table, the page, the log.

mod aims;
mod charts;
mod html;
mod log;
mod parts;
mod schema;
mod table;

pub use self::aims::aims;
pub use self::html::html;
pub use self::log::{LogEntry, write_log};
pub use self::parts::{Aim, ArmMode, Bound, Latency};
pub use self::schema::{Comparison, Ratio, Report, Run, SCHEMA, SidecarCost, Verification};
pub use self::table::{aims_table, machine, table};
