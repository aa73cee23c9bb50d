//! Asks a discovery service what there is: connects, reads its log page, disconnects.

use std::time::{Duration, Instant};

use kvrail_memory::Root;
use kvrail_nvme::{Discovery, RECORD_BYTES};

use crate::connect::dial;
use crate::disconnect::delete;
use crate::error::FabricsError;
use crate::log_page::{Entry, read_page};
use crate::options::Options;

/// How long the controller's node may take to show up.
const NODE_PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// A discovery controller; goes with the value, whatever happened.
struct Connection<'a> {
    root: &'a Root,
    name: String,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        // The explicit way reports errors; here an earlier one is being reported.
        let _ = delete(self.root, &self.name);
    }
}

/// The entries of the service's log page. Nothing stays connected.
///
/// # Errors
/// As for [`crate::connect()`]; the page keeps changing, or is malformed.
pub fn discover(root: &Root, options: &Options) -> Result<Vec<Entry>, FabricsError> {
    let number = dial(root, options)?;
    let controller = Connection { root, name: format!("nvme{number}") };
    let node = root.path(format!("/dev/{}", controller.name));
    let deadline = Instant::now() + NODE_PATIENCE;
    let device = loop {
        match Discovery::open(&node) {
            Ok(device) => break device,
            Err(why) if Instant::now() >= deadline => {
                return Err(FabricsError::failed(why, "see the kernel's log (dmesg)"));
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    };
    let entries = read_page(&mut |offset| record(&device, offset));
    drop(device);
    delete(root, &controller.name)?;
    entries
}

fn record(device: &Discovery, offset: u64) -> Result<[u8; RECORD_BYTES], FabricsError> {
    device.record(offset).map_err(|why| {
        let words = format!("reading the discovery log page: {why}");
        FabricsError::failed(words, "check that the service is a discovery service")
    })
}
