//! A host that has not loaded the target's modules yet, and what it has to be for `bring`.

use kvrail_target::{Claims, PermittedContent, TargetError, TargetSpec};
use rustix::io::Errno;

use crate::fake::{FakeTree, Flavor, MemoryStore};
use crate::machine::{Machine, NEAR};
use crate::world::{open, wish};

const WISH: &str = r#"
[[subsystem]]
nqn = "nqn.2026-01.org.example:kv0"
hosts = ["nqn.2026-01.org.example:a"]
[[subsystem.namespace]]
nsid = 1
device = "serial:A/1"
[[port]]
id = 1
transport = "loop"
subsystems = ["nqn.2026-01.org.example:kv0"]
"#;

/// A host with one drive, and its tree; no module is loaded.
struct Host {
    machine: Machine,
    node: std::path::PathBuf,
    tree: FakeTree,
    store: MemoryStore,
}

impl Host {
    fn new() -> Self {
        let machine = Machine::new();
        let node = machine.drive("nvme0", "A", &format!("{NEAR}/0000:02:00.0/0000:03:00.0"));
        let (tree, store) = (FakeTree::new(Flavor::Stable), MemoryStore::default());
        tree.state().devices.insert(node.display().to_string(), 0);
        tree.state().modules.clear();
        Self { machine, node, tree, store }
    }

    fn plan(&self, wish: &TargetSpec) -> Result<(Vec<String>, Vec<String>), TargetError> {
        let planned = open(&self.tree, &self.store).plan(wish, &self.machine.root());
        let words =
            |steps: Vec<kvrail_target::Step>| steps.iter().map(ToString::to_string).collect();
        planned.map(|(plan, steps)| (words(steps), plan.notes))
    }

    fn bring(&self, wish: &TargetSpec, claims: &mut Claims) -> Result<usize, TargetError> {
        let applied = open(&self.tree, &self.store).bring(wish, &self.machine.root(), claims);
        applied.map(|applied| applied.steps.len())
    }
}

/// A dry run on an empty tree, which loads nothing; apply does the same as planned.
#[test]
fn a_plan_says_which_modules_apply_loads() {
    let (host, wish) = (Host::new(), wish(WISH));
    let before = host.tree.text();
    let (steps, notes) = host.plan(&wish).unwrap();
    assert_eq!(steps[..2], ["modprobe nvmet", "modprobe nvme_loop"]);
    assert!(steps.last().unwrap().starts_with("link ports/1/subsystems/"), "{steps:?}");
    let note = "not loaded, apply loads them first: nvmet, nvme_loop";
    assert!(notes.iter().any(|other| other == note), "{notes:?}");
    assert!(host.tree.state().modules.is_empty() && host.tree.text() == before);
    assert_eq!(
        host.plan(&TargetSpec::default()).unwrap().0,
        [""; 0],
        "nothing wished, nothing to do"
    );

    let mut claims = Claims::default();
    host.bring(&wish, &mut claims).unwrap();
    assert!(host.tree.state().modules.contains("nvmet"));
    assert_eq!(host.tree.access().len(), 1);
    let (steps, notes) = host.plan(&wish).unwrap();
    assert!(steps.is_empty() && !notes.iter().any(|note| note.contains("not loaded")), "{notes:?}");
}

type Spoil = fn(&Host);

/// Hosts that plan and apply both refuse.
#[test]
fn what_a_host_lacks_is_refused_before_anything_is_done() {
    let cases: [(&str, Spoil, &[&str]); 4] = [
        (
            "configfs is not mounted",
            |host| host.tree.state().is_mounted = false,
            &["the nvmet tree", "configfs is not mounted", "mount -t configfs"],
        ),
        (
            "no nvmet",
            |host| host.tree.state().loadable.retain(|module| module != "nvmet"),
            &["target.configfs", "needs the module nvmet", "package", "modprobe nvmet"],
        ),
        (
            "no transport",
            |host| host.tree.state().loadable.retain(|module| module != "nvme_loop"),
            &["target.port.0.transport = loop", "needs the module nvme_loop", "package"],
        ),
        (
            "the device is gone",
            |host| {
                let link = host.machine.root().path("sys/class/block/nvme0n1");
                std::fs::remove_file(link).unwrap();
                let home = format!("{NEAR}/0000:02:00.0/0000:03:00.0/nvme/nvme0/nvme0n1");
                let home = host.machine.root().path(format!("sys/devices/{home}"));
                std::fs::remove_dir_all(home).unwrap();
            },
            &["target.subsystem.0.namespace.0.device = serial:A/1", "no NVMe namespace"],
        ),
    ];
    for (what, spoil, parts) in cases {
        let (host, wish) = (Host::new(), wish(WISH));
        spoil(&host);
        let before = host.tree.text();
        let planned = host.plan(&wish).map(drop).unwrap_err();
        let applied = host.bring(&wish, &mut Claims::default()).unwrap_err();
        for error in [planned, applied] {
            let words = format!("{error} {}", error.remedy());
            for part in parts {
                assert!(words.contains(part), "{what} lacks {part:?}: {words}");
            }
        }
        assert!(host.tree.state().modules.is_empty() && host.tree.text() == before, "{what}");
    }
}

/// Drives that are in use, or that hold foreign data: refused with the tree unchanged.
#[test]
fn a_drive_that_is_not_free_is_refused() {
    use std::os::unix::fs::FileExt;
    let (host, mut wish) = (Host::new(), wish(WISH));
    let refused = |wish: &TargetSpec, parts: &[&str]| {
        let error = host.bring(wish, &mut Claims::default()).unwrap_err();
        let words = format!("{error} {}", error.remedy());
        for part in parts {
            assert!(words.contains(part), "lacks {part:?}: {words}");
        }
        assert!(words.contains("target.subsystem.0.namespace.0.device = "), "{words}");
        assert!(host.tree.access().is_empty());
        assert!(!host.tree.text().keys().any(|path| path.starts_with("ports/")), "half done");
    };
    let mut holder = Claims::default();
    host.bring(&wish, &mut holder).unwrap();
    open(&host.tree, &host.store).undo().unwrap();
    refused(&wish, &["it is in use: process"]);
    drop(holder);
    let file = std::fs::File::options().write(true).open(&host.node).unwrap();
    file.write_all_at(&[0x53, 0xef], 1024 + 56).unwrap();
    refused(&wish, &["it holds an ext2/3/4", "content = \"any\""]);
    file.write_all_at(&[0; 2], 1024 + 56).unwrap();
    file.write_all_at(b"somebody's", 70_000).unwrap();
    refused(&wish, &["unknown data", "content = \"any\""]);
    wish.subsystem[0].namespace[0].content = PermittedContent::Any;
    host.bring(&wish, &mut Claims::default()).unwrap();
    assert_eq!(host.tree.access().len(), 1);
}

/// modprobe finds the module and cannot load it.
#[test]
fn a_module_that_does_not_load_is_told() {
    let host = Host::new();
    host.tree.state().is_root = false;
    let error = host.bring(&wish(WISH), &mut Claims::default()).unwrap_err();
    let TargetError::Step { errno, .. } = &error else { panic!("{error}") };
    assert_eq!(*errno, Errno::ACCESS);
    assert!(error.to_string().contains("modprobe nvmet") && error.remedy().contains("root"));
}
