//! What is read from sysfs, on made-up hosts.

mod fake;
mod resolve;
