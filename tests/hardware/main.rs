//! The hardware suite: kvrail on NVMe controllers with faults and on a kernel of its own.
//!
//! Runs as root in the machine that `scripts/dev vm test` boots; anywhere else every test prints
//! that it was skipped. Tests share the machine's devices, so they run one at a time.
#![forbid(unsafe_code)]

mod bed;
mod calibration;
mod devices;
mod errors;
mod fabrics;
mod health;
mod identity;
mod in_use;
mod kills;
mod load;
mod machine;
mod modes;
mod monitor;
mod multipath;
mod one;
mod passthrough;
mod removal;
mod resize;
mod slow;
mod starved;
mod store_power;
mod target;
mod timeline;
mod transfers;
mod unplug;

#[path = "../flow/rig/mod.rs"]
#[expect(dead_code, unused_imports, reason = "the flows use all of it, this suite a part")]
mod rig;
