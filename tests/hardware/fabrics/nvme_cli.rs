//! nvme-cli, the host of the target.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::target::NQN;
use crate::machine::tool;
use crate::rig::{Outcome, eventually, run};

/// The machine's host NQN, of a fixed identity.
pub(crate) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:0f3c1a52-5d1c-44e0-8412-3fcf7d99df27";
const HOST_ID: &str = "0f3c1a52-5d1c-44e0-8412-3fcf7d99df27";

/// `nvme discover`, with a way such as `RDMA`; returns its output.
pub(crate) fn discover(way: &str) -> String {
    tool(&format!("nvme discover {way} -q {HOST} -I {HOST_ID}"))
}

/// `nvme connect`.
pub(crate) fn connect(way: &str, more: &[&str]) -> Outcome {
    let mut command = Command::new("nvme");
    command.arg("connect").args(way.split(' ')).args(["-n", NQN, "-q", HOST, "-I", HOST_ID]);
    run(command.args(more))
}

/// `nvme disconnect`.
pub(crate) fn disconnect() {
    tool(&format!("nvme disconnect -n {NQN}"));
}

/// The block device of the target's namespace on this machine as a host.
pub(crate) fn seen() -> Option<PathBuf> {
    let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let blocks = fs::read_dir("/sys/block").expect("sysfs is mounted").flatten();
    let mut ours = blocks.filter(|block| {
        let path = block.path();
        let name = block.file_name().to_string_lossy().into_owned();
        name.starts_with("nvme")
            && text(path.join("nsid")) == "1"
            && text(path.join("device/subsysnqn")) == NQN
    });
    ours.next().map(|block| PathBuf::from("/dev").join(block.file_name()))
}

/// As `seen`, once it is there.
pub(crate) fn namespace() -> PathBuf {
    eventually("the namespace shows up", || seen().is_some_and(|path| path.exists()));
    seen().expect("it was there")
}
