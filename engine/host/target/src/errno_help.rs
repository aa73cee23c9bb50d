//! The meaning of an errno of the kernel's target at a step, and its remedy.

use rustix::io::Errno;

use crate::place::{ObjectKind, place};
use crate::step::Step;

/// Cause and remedy.
pub(crate) fn explain(step: &Step, errno: Errno) -> (String, String) {
    let (cause, remedy) = match (step, errno) {
        (_, Errno::ACCESS | Errno::PERM) => {
            ("the kernel does not let this user do it", "run as root")
        }
        (Step::Load { .. }, _) => (
            "the module cannot be loaded",
            "install the kernel's module package (CONFIG_NVME_TARGET_RDMA, _TCP, _LOOP), or load \
             it by hand to see why not",
        ),
        (Step::Link { path, .. }, errno) if place(path) == Some(ObjectKind::Opening) => {
            opening(errno)
        }
        (Step::Write { path, .. }, errno) => write(path, errno),
        (Step::MakeDir { .. }, Errno::EXIST) => (
            "another program made it meanwhile",
            "look at it with `kvrail target status`, and try again",
        ),
        (Step::RemoveDir { .. }, Errno::BUSY | Errno::NOTEMPTY) => {
            ("a foreign link or object holds it", "have its owner remove that, and try again")
        }
        (_, Errno::NOENT) => (
            "it, or what it belongs to, is not there any more: another program changed the tree",
            "try again; no other program should manage these objects",
        ),
        (_, Errno::NOMEM | Errno::NOSPC) => ("the kernel has no room for it", "free memory"),
        _ => ("the kernel refused it", "see the kernel's log (`dmesg`)"),
    };
    (cause.into(), remedy.into())
}

/// The port starts to listen when its first subsystem is linked.
fn opening(errno: Errno) -> (&'static str, &'static str) {
    match errno {
        Errno::ADDRINUSE => (
            "something else listens at the port's address and service",
            "choose another service, or stop what listens there (`ss -ltnp`)",
        ),
        Errno::ADDRNOTAVAIL => (
            "the port's address is not on this host, or not known to its RDMA device",
            "check target.port.address against `ip address` and `rdma link`",
        ),
        Errno::NODEV => (
            "no RDMA device has the port's address",
            "check target.port.address against `rdma link`; set the interface up first",
        ),
        Errno::INVAL => (
            "the transport is not there, or the address and its family do not fit",
            "load the transport's module (nvmet_rdma, nvmet_tcp, nvme_loop); see `dmesg`",
        ),
        Errno::BUSY | Errno::EXIST => (
            "the port is taken: an offloaded port has one subsystem",
            "give the subsystem a port of its own",
        ),
        _ => ("the port cannot be opened", "see the kernel's log (`dmesg`)"),
    }
}

fn write(path: &str, errno: Errno) -> (&'static str, &'static str) {
    let name = path.rsplit('/').next().unwrap_or_default();
    match (name, errno) {
        ("enable", Errno::NOENT | Errno::NODEV | Errno::NXIO | Errno::NOTBLK) => (
            "the device behind the namespace is gone",
            "check the drive (`kvrail target plan` resolves it again)",
        ),
        ("enable", Errno::INVAL) => (
            "the kernel does not take the device: not set, not a block device, or without the \
             requested peer-to-peer memory",
            "see the kernel's log (`dmesg`); set p2pmem = \"off\"",
        ),
        ("enable", Errno::BUSY) => (
            "the drive has no queue left for it",
            "raise num_p2p_queues of the module nvme, or set offload = \"off\"",
        ),
        ("p2pmem", Errno::NODEV) => {
            ("that device has no peer-to-peer memory", "set p2pmem = \"auto\" or \"off\"")
        }
        ("dhchap_key" | "dhchap_ctrl_key", Errno::INVAL) => (
            "the kernel does not understand the key",
            "make one with `nvme gen-dhchap-key`; it begins with DHHC-1:",
        ),
        (_, Errno::NOENT) => (
            "this kernel has no such attribute, or its object is not there any more",
            "leave the key away, or use a kernel that has it",
        ),
        (_, Errno::BUSY) => (
            "it cannot change while its object is enabled: another program enabled it",
            "try again; no other program should manage these objects",
        ),
        (_, Errno::INVAL) => ("the kernel does not take the value", "see `dmesg` for its reason"),
        _ => ("the kernel refused it", "see the kernel's log (`dmesg`)"),
    }
}
