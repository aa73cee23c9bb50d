//! Every check on made-up hosts: a sound part is ok, a fault has cost and remedy, a part that
//! cannot be examined is reported as such.

mod cases;
mod host;
mod stores;

use std::fs;
use std::path::{Path, PathBuf};

use HostPurpose::{Gpu, Host as Initiator, Serve};
use Verdict::{Failure, Unseen, Warning};
use kvrail_check::{CheckReport, Finding, HostPurpose, Live, Machine, Tried, Verdict, examine};
use kvrail_memory::Root;

use crate::cases::CASES;
use crate::host::{Host, RELEASE};

fn works() -> Live {
    Live { io_uring: Some(Tried::Works("tried".into())), ..Live::default() }
}

fn find<'a>(report: &'a CheckReport, check: &str) -> Vec<&'a Finding> {
    report.findings.iter().filter(|finding| finding.check == check).collect()
}

#[test]
fn on_a_good_host_nothing_is_wrong_but_what_excludes_each_other() {
    let host = Host::good();
    for purpose in HostPurpose::ALL {
        let report = host.report(Some(purpose), works());
        let bad: Vec<&Finding> =
            report.findings.iter().filter(|finding| finding.verdict != Verdict::Ok).collect();
        // Native multipath and P2PDMA exclude each other: a host is for one of them.
        let expected: &[&str] = if purpose == HostPurpose::Gpu { &["gpu-p2pdma"] } else { &[] };
        let names: Vec<&str> = bad.iter().map(|finding| finding.check).collect();
        assert_eq!(names, expected, "{purpose:?}: {bad:?}");
    }
}

#[test]
fn each_thing_that_is_wrong_is_found_with_cost_and_remedy() {
    for (check, purpose, verdict, words, harm) in CASES {
        let host = Host::good();
        harm(&host);
        // Only a try shows whether a filter lets io_uring pass: here nothing was tried.
        let report = host.report(Some(*purpose), Live::default());
        let found = find(&report, check);
        let hit = found
            .iter()
            .find(|finding| finding.verdict == *verdict && finding.seen.contains(words));
        let hit = hit.unwrap_or_else(|| panic!("{check} {verdict:?} `{words}`: {found:?}"));
        if *verdict > Unseen {
            assert!(hit.cost.is_some_and(|cost| cost.len() > 10), "{hit:?}");
            assert!(hit.remedy.as_ref().is_some_and(|remedy| remedy.len() > 10), "{hit:?}");
        }
    }
}

#[test]
fn every_check_that_can_complain_has_a_case() {
    let report = Host::good().report(None, works());
    // These three only report.
    let telling = ["container", "hugepage-mounts", "direct-io", "io-uring-tried"];
    for finding in &report.findings {
        let told = telling.contains(&finding.check);
        let tried = CASES.iter().any(|(check, ..)| *check == finding.check);
        assert!(told || tried, "{} has no case", finding.check);
    }
}

#[test]
fn the_try_of_io_uring_is_believed() {
    let host = Host::good();
    let fails = Tried::Fails { seen: "EPERM".into(), remedy: "allow io_uring_setup".into() };
    let report = host.report(Some(Serve), Live { io_uring: Some(fails), ..Live::default() });
    let found = find(&report, "io-uring-tried")[0];
    assert_eq!((found.verdict, found.seen.as_str()), (Failure, "EPERM"));
    assert_eq!(found.remedy.as_deref(), Some("allow io_uring_setup"));
    assert_eq!(report.worst(), Failure);
    host.status("000001ffffffffff", "2");
    let report = host.report(Some(Serve), works());
    assert!(find(&report, "seccomp")[0].seen.contains("io_uring passes"));
}

#[test]
fn without_a_use_only_what_the_sidecar_needs_fails() {
    let host = Host::good();
    host.remove("sys/module/nvmet");
    let report = host.report(None, works());
    assert_eq!(find(&report, "module-nvmet")[0].verdict, Warning);
    host.put("proc/sys/kernel/io_uring_disabled", "2");
    let report = host.report(None, works());
    assert_eq!(find(&report, "io-uring-switch")[0].verdict, Failure);
}

#[test]
fn an_empty_root_is_all_unseen_or_absent_and_never_a_panic() {
    let empty = tempfile::tempdir().unwrap();
    for purpose in HostPurpose::ALL {
        let root = Root::new(empty.path());
        let report = examine(&Machine::read(root, Some(purpose), Vec::new(), Live::default()));
        assert!(report.count(Unseen) > 1, "{purpose:?}");
    }
}

#[test]
fn modules_may_be_loadable_or_built_in() {
    let host = Host::good();
    host.remove("sys/module/nvme_tcp");
    for (list, line) in [
        ("lib/modules/6.12.107-example/modules.dep", "kernel/drivers/nvme/host/nvme-tcp.ko.xz: a"),
        (
            "usr/lib/modules/6.12.107-example/modules.builtin",
            "kernel/drivers/nvme/host/nvme-tcp.ko",
        ),
    ] {
        host.put(list, line);
        let report = host.report(Some(Initiator), works());
        assert!(find(&report, "module-nvme-tcp")[0].seen.contains("can be loaded"));
        host.remove(list);
    }
}

#[test]
fn options_come_from_any_of_their_homes() {
    let host = Host::good();
    host.remove("proc/config.gz");
    host.put(&format!("boot/config-{RELEASE}"), "# CONFIG_X is not set\nCONFIG_PCI_P2PDMA=y");
    let report = host.report(Some(Gpu), works());
    assert_eq!(find(&report, "option-p2pdma")[0].seen, "CONFIG_PCI_P2PDMA=y");
}

#[test]
fn a_configuration_of_cufile_may_be_elsewhere() {
    let host = Host::good();
    host.put("opt/cufile.json", "{}");
    let live = Live { cufile_config: Some(PathBuf::from("/opt/cufile.json")), ..works() };
    let report = host.report(Some(Gpu), live);
    assert!(find(&report, "cufile-configuration")[0].seen.starts_with("/opt/cufile.json"));
}

#[test]
fn memory_of_a_drive_that_is_published_is_shown() {
    let host = Host::good();
    host.put("sys/class/nvme/nvme0/cmb", "cmbloc : 0x00000002");
    host.put("sys/bus/pci/devices/0000:03:00.0/p2pmem/size", "67108864");
    let report = host.report(Some(HostPurpose::Target), works());
    let found = find(&report, "p2p-memory")[0];
    assert_eq!((found.subject.as_str(), found.verdict), ("nvme0", Verdict::Ok));
    assert!(found.seen.starts_with("67108864 bytes"), "{found:?}");
}

/// cuFile needs the device that a file lies on, so no other one's entry counts.
#[test]
fn the_udev_entry_is_that_of_the_device_below_the_path() {
    let host = Host::good();
    let root = "22 1 259:1 / / rw - ext4 /dev/nvme0n1 rw";
    let data = "40 22 259:7 / /data rw - xfs /dev/nvme0n1p7 rw";
    host.put("proc/self/mountinfo", &format!("{root}\n{data}"));
    let report = host.report(Some(Gpu), works());
    let found = find(&report, "cufile-udev");
    assert_eq!((found.len(), found[0].verdict), (1, Failure));
    assert_eq!(found[0].subject, "/data");
    let remedy = found[0].remedy.as_deref().unwrap();
    assert!(remedy.contains("E:ID_FS_TYPE=xfs\\n' >/run/udev/data/b259:7"), "{remedy}");
    host.put("run/udev/data/b259:7", "E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=xfs");
    let report = host.report(Some(Gpu), works());
    assert_eq!(find(&report, "cufile-udev")[0].verdict, Verdict::Ok);
}

#[test]
fn nothing_below_the_root_is_changed() {
    let host = Host::good();
    let before = listing(host.0.path());
    host.report(None, works());
    assert_eq!(listing(host.0.path()), before);
}

/// Every path with its length and time of change.
fn listing(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let meta = entry.path().symlink_metadata().unwrap();
        let (path, modified) = (entry.path(), meta.modified().unwrap());
        all.push(format!("{} {} {modified:?}", path.display(), meta.len()));
        if meta.is_dir() {
            all.extend(listing(&path));
        }
    }
    all.sort();
    all
}
