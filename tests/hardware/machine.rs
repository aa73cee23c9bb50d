//! The machine the tests run in: whether this is it, and its devices by serial number.

use std::fs;
use std::path::PathBuf;

/// Whether this is a machine whose devices may be overwritten; says so when it is not.
pub(crate) fn is_ours() -> bool {
    let ours = std::env::var_os("KVRAIL_HARDWARE").is_some();
    if !ours {
        println!("skipped: not in the machine of `scripts/dev vm test`");
    }
    ours
}

/// The block device of a namespace, if it is there now. Kernel names change with every boot.
pub(crate) fn find(serial: &str, nsid: u32) -> Option<PathBuf> {
    let entries = fs::read_dir("/sys/block").expect("sysfs is mounted");
    let names = entries.map(|entry| entry.expect("sysfs can be listed").file_name());
    let mut ours = names.filter(|name| {
        let attribute = |of: &str| {
            let path = PathBuf::from("/sys/block").join(name).join(of);
            fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
        };
        attribute("device/serial") == serial && attribute("nsid") == nsid.to_string()
    });
    ours.next().map(|name| PathBuf::from("/dev").join(name))
}

/// As `find`, for a namespace that must be there.
pub(crate) fn namespace(serial: &str, nsid: u32) -> PathBuf {
    find(serial, nsid).unwrap_or_else(|| panic!("no namespace {nsid} of {serial} in this machine"))
}
