//! Reading sysfs, on made-up hosts.

mod drive;
mod fake;
mod resolve;
