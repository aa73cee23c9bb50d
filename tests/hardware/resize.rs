//! A namespace that shrinks and grows under a running sidecar: one of the kernel's own target, on a
//! file, because the emulator's namespaces never change their size. Reached over TCP, which has
//! queues to poll and takes commands passed through.

use std::fs;
use std::path::{Path, PathBuf};

use kvrail_client::{Request, Status};
use kvrail_protocol::DeviceState;
use tempfile::TempDir;

use crate::fabrics::nvme_cli::{connect, disconnect, namespace};
use crate::fabrics::target::{NQN, TREE};
use crate::machine::{self, tool};
use crate::one::One;
use crate::rig::{Place, Sidecar, eventually, kvrail, run};

const MIB: u64 = 1 << 20;
/// The namespace, the volume on it, and the namespace when it is smaller and larger.
const WHOLE: u64 = 64 * MIB;
const VOLUME: u64 = 48 * MIB;
const SMALL: u64 = 32 * MIB;
const LARGE: u64 = 96 * MIB;

/// An offset of the volume that the small namespace does not have.
const BEYOND: u64 = 40 * MIB;

const WAY: &str = "-t tcp -a 127.0.0.1 -s 4427";

/// The namespace, exported and attached on this machine until it is dropped.
struct Elastic {
    folder: TempDir,
    device: PathBuf,
}

impl Elastic {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("blocks");
        set_length(&file, WHOLE);
        let (subsystem, port) = (format!("{TREE}/subsystems/{NQN}"), format!("{TREE}/ports/7"));
        tool(&format!(
            "modprobe -a nvmet-tcp nvme-tcp; mkdir -p {subsystem}/namespaces/1 {port}
             echo 1 >{subsystem}/attr_allow_any_host
             cd {subsystem}/namespaces/1
             echo -n {} >device_path; echo 1 >buffered_io; echo 1 >enable
             cd {port}
             echo tcp >addr_trtype; echo ipv4 >addr_adrfam
             echo 127.0.0.1 >addr_traddr; echo 4427 >addr_trsvcid
             ln -s {subsystem} subsystems/",
            file.display()
        ));
        connect(WAY, &["--nr-poll-queues", "1"]).expect(0, &[]);
        Self { folder, device: namespace() }
    }

    /// Sets another size, and waits until the kernel has it.
    fn resize(&self, bytes: u64) {
        set_length(&self.folder.path().join("blocks"), bytes);
        tool(&format!("echo 1 >{TREE}/subsystems/{NQN}/namespaces/1/revalidate_size"));
        let name = self.device.file_name().expect("a node has a name");
        let size = Path::new("/sys/block").join(name).join("size");
        eventually("the kernel has its new size", || {
            fs::read_to_string(&size).is_ok_and(|text| text.trim() == (bytes / 512).to_string())
        });
    }
}

impl Drop for Elastic {
    fn drop(&mut self) {
        disconnect();
        tool(&format!(
            "cd {TREE}; rm ports/7/subsystems/{NQN}; rmdir ports/7
             rmdir subsystems/{NQN}/namespaces/1 subsystems/{NQN}"
        ));
    }
}

fn set_length(path: &Path, bytes: u64) {
    let file = fs::File::options().create(true).write(true).truncate(false).open(path);
    file.and_then(|file| file.set_len(bytes)).expect("our own file");
}

#[test]
fn a_namespace_that_shrinks_is_gone_until_it_has_its_size_again() {
    if !machine::is_ours() {
        return;
    }
    let elastic = Elastic::new();
    for mode in ["interrupt", "iopoll", "passthrough"] {
        shrink_and_grow(&elastic, mode);
    }
}

fn shrink_and_grow(elastic: &Elastic, mode: &str) {
    let mut at = Place::empty(0);
    at.members = vec![elastic.device.clone()];
    at.extra.clear(); // O_DIRECT is required, as it is by default
    at.configure(&format!("device.mode = {mode:?}"));
    at.create(VOLUME, "256KiB").expect(0, &[]);
    let sidecar = Sidecar::start(&at);
    let mut one = One::of(&sidecar);
    let mut ends = |offset| [one.end(offset, Request::write), one.end(offset, Request::read)];

    elastic.resize(LARGE);
    assert_eq!(ends(BEYOND), [Status::Ok; 2], "a larger namespace costs no request");
    elastic.resize(WHOLE);
    assert_eq!(ends(BEYOND), [Status::Ok; 2]);

    elastic.resize(SMALL);
    assert_eq!(ends(BEYOND), [Status::DeviceGone; 2]);
    let state = || sidecar.status().devices[0].state;
    assert_eq!(state(), DeviceState::Gone);
    let why = format!("it has {SMALL} bytes, its label needs");
    eventually("the log has the reason", || sidecar.stderr().contains(&why));

    elastic.resize(WHOLE);
    eventually("it is served again", || state() == DeviceState::Serving);
    assert_eq!(ends(BEYOND), [Status::Ok; 2]);
    let log = sidecar.stop();
    for line in log.lines().filter(|line| line.contains("/dev/nvme")) {
        println!("{mode}: log: {line}");
    }

    elastic.resize(SMALL);
    run(&mut at.serve()).expect(3, &["it shrank", &why]);
    elastic.resize(LARGE);
    Sidecar::start(&at).stop();
    elastic.resize(WHOLE);
    run(kvrail().args(["volume", "wipe", "kv"]).args(&at.members)).expect(0, &[]);
}
