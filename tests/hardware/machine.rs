//! The machine the tests run in: whether this is it, and its devices by serial number.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of a label.
const LABEL_BYTES: usize = 1 << 20;

/// Whether this is a machine whose devices may be overwritten; prints a line when it is not.
pub(crate) fn is_ours() -> bool {
    let ours = std::env::var_os("KVRAIL_HARDWARE").is_some();
    if !ours {
        println!("skipped: not in the machine of `scripts/dev vm test`");
    }
    ours
}

/// The block device of a namespace, if it is there now. Kernel names change with every boot. With
/// native multipath it may be a head; its paths are hidden.
pub(crate) fn find(serial: &str, nsid: u32) -> Option<PathBuf> {
    let entries = fs::read_dir("/sys/block").expect("sysfs is mounted");
    let names = entries.map(|entry| entry.expect("sysfs can be listed").file_name());
    let mut ours = names.filter(|name| {
        let attribute = |of: &str| {
            let path = PathBuf::from("/sys/block").join(name).join(of);
            fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
        };
        attribute("device/serial") == serial
            && attribute("nsid") == nsid.to_string()
            && attribute("hidden") != "1"
    });
    ours.next().map(|name| PathBuf::from("/dev").join(name))
}

/// Whether a namespace hangs below a subsystem, which may have several controllers.
pub(crate) fn is_head(serial: &str, nsid: u32) -> bool {
    let above = Path::new("/sys/block").join(name(serial, nsid)).join("device");
    above.join("iopolicy").exists()
}

/// As `find`, for a namespace that must be there.
pub(crate) fn namespace(serial: &str, nsid: u32) -> PathBuf {
    find(serial, nsid).unwrap_or_else(|| panic!("no namespace {nsid} of {serial} in this machine"))
}

/// Overwrites the place of a label, without kvrail.
pub(crate) fn wipe_label(node: &Path) {
    write_label(node, &vec![0; LABEL_BYTES]);
}

/// The bytes where a label is.
pub(crate) fn read_label(node: &Path) -> Vec<u8> {
    let mut bytes = vec![0; LABEL_BYTES];
    let file = fs::File::open(node).expect("our own device");
    file.read_exact_at(&mut bytes, 0).expect("it can be read");
    bytes
}

/// Replaces them.
pub(crate) fn write_label(node: &Path, bytes: &[u8]) {
    let file = fs::File::options().write(true).open(node).expect("our own device");
    file.write_all_at(bytes, 0).expect("it can be written");
    file.sync_all().expect("it can be flushed");
}

/// Kernel name of a namespace that must be there.
pub(crate) fn name(serial: &str, nsid: u32) -> String {
    let path = namespace(serial, nsid);
    path.file_name().expect("a node has a name").to_string_lossy().into_owned()
}

/// PCIe address of the controller behind a namespace.
pub(crate) fn address(serial: &str, nsid: u32) -> String {
    let device = Path::new("/sys/block").join(name(serial, nsid)).join("device/device");
    let device = fs::canonicalize(device).expect("a PCIe controller");
    device.file_name().expect("an address").to_string_lossy().into_owned()
}

/// Runs a program of the machine, which must succeed; returns its output.
pub(crate) fn tool(line: &str) -> String {
    let output = Command::new("bash").args(["-ec", line]).output().expect("the machine has bash");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {}: {printed}{wrong}", output.status);
    printed
}
