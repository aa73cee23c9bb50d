//! The arms `kvrail` and `store`: a sidecar, over its lanes, with the client library that everybody
//! uses.
//!
//! `attach` turns a socket and the names of volumes into ground for all arms; `target` is the way
//! to the volume, `store` that to the store, both over a `queue`; `lane` is the round trip to a
//! null device, `null_store` a store on one, `idle` what the sidecar costs.

mod attach;
mod idle;
mod lane;
mod null_store;
mod queue;
mod store;
mod target;

use anyhow::{Context, Result};
use kvrail_client::Client;
use kvrail_units::Size;

pub use self::attach::{AttachHarness, ServingSidecar, attach};
pub use self::idle::cost;
pub use self::lane::NullProbe;
pub use self::queue::ClientWait;
pub use self::store::StoreTarget;
pub use self::target::SidecarTarget;

/// The sidecar's memory that is not registered with its rings, as the end of a sentence.
///
/// # Errors
/// When the sidecar does not answer.
pub fn unregistered(client: &Client) -> Result<String> {
    let devices = client.status().context("asking the sidecar for its memory")?.devices;
    let bytes: u64 = devices.iter().filter_map(|device| device.counters.unregistered_bytes).sum();
    Ok(match bytes {
        0 => String::new(),
        _ => format!(
            "; {} of the sidecar's not registered, which is slower (kvrail check names the remedy)",
            Size::new(bytes)
        ),
    })
}
