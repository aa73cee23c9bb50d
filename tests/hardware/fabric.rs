//! The target's other side: nvme-cli as the host, the kernel's target tree as text.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fabrics::network::{ADDRESS, OTHER};
use crate::machine::tool;
use crate::rig::{Outcome, eventually, kvrail, run};

/// The kernel's tree.
pub(crate) const TREE: &str = "/sys/kernel/config/nvmet";

/// Addresses of this machine that RDMA reaches.
pub(crate) const ADDRESSES: [&str; 2] = [ADDRESS, OTHER];

/// The name this machine has as a host, of a fixed identity.
pub(crate) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:0f3c1a52-5d1c-44e0-8412-3fcf7d99df27";
const HOST_ID: &str = "0f3c1a52-5d1c-44e0-8412-3fcf7d99df27";

/// The whole tree: every directory, link and attribute with its value.
pub(crate) fn tree() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![PathBuf::from(TREE)];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("the target's module is loaded").flatten() {
            let (path, kind) = (entry.path(), entry.file_type().expect("configfs knows"));
            let text = if kind.is_symlink() {
                format!("link to {}", fs::read_link(&path).expect("a link").display())
            } else if kind.is_dir() {
                open.push(path.clone());
                "directory".into()
            } else {
                fs::read_to_string(&path).unwrap_or_else(|error| error.to_string())
            };
            found.insert(path, text);
        }
    }
    found
}

/// nvme-cli's words for a transport's place.
pub(crate) fn place(transport: &str, address: &str, service: u16) -> Vec<String> {
    let mut words = vec!["-t".to_owned(), transport.to_owned()];
    if transport != "loop" {
        words.extend(["-a".into(), address.into(), "-s".into(), service.to_string()]);
    }
    words.extend(["-q".into(), HOST.into(), "-I".into(), HOST_ID.into()]);
    words
}

/// `nvme connect`.
pub(crate) fn connect(place: &[String], subsystem: &str, more: &[&str]) -> Outcome {
    run(Command::new("nvme").arg("connect").args(place).args(["-n", subsystem]).args(more))
}

/// `nvme disconnect`.
pub(crate) fn disconnect(subsystem: &str) {
    tool(&format!("nvme disconnect -n {subsystem}"));
}

/// The block device that this machine, as a host, has of a subsystem's namespace.
pub(crate) fn seen(subsystem: &str, nsid: u32) -> Option<PathBuf> {
    let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let blocks = fs::read_dir("/sys/block").expect("sysfs is mounted").flatten();
    let mut ours = blocks.filter(|block| {
        let path = block.path();
        let name = block.file_name().to_string_lossy().into_owned();
        name.starts_with("nvme")
            && text(path.join("nsid")) == nsid.to_string()
            && text(path.join("device/subsysnqn")) == subsystem
    });
    ours.next().map(|block| PathBuf::from("/dev").join(block.file_name()))
}

/// As `seen`, once it is there.
pub(crate) fn namespace(subsystem: &str, nsid: u32) -> PathBuf {
    eventually("the namespace shows up", || seen(subsystem, nsid).is_some_and(|it| it.exists()));
    seen(subsystem, nsid).expect("it was there")
}

/// 4 MiB of noise through one device, read back through both. `folder` is for the files.
pub(crate) fn same_data(folder: &Path, written: &Path, read: &Path) {
    let [noise, back] = ["noise", "back"].map(|name| folder.join(name));
    let (noisy, backed) = (noise.display(), back.display());
    tool(&format!("dd if=/dev/urandom of={noisy} bs=1M count=4 status=none"));
    // Behind the label's place, so that the device stays blank to the next plan.
    let to = written.display();
    tool(&format!("dd if={noisy} of={to} bs=128k seek=16 oflag=direct status=none"));
    for device in [written, read].map(Path::display) {
        tool(&format!(
            "dd if={device} of={backed} bs=128k count=32 skip=16 iflag=direct status=none"
        ));
        let same = fs::read(&noise).expect("our file") == fs::read(&back).expect("our file");
        assert!(same, "written to {to}, read from {device}");
    }
}

/// `kvrail target` with a configuration.
pub(crate) fn target(configuration: &Path, words: &[&str]) -> Outcome {
    run(kvrail().arg("target").args(words).arg("--config").arg(configuration))
}
