//! A target of the kernel, made by hand in configfs; taken down with the value.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::network::{ADDRESS, OTHER};
use crate::rig::{kvrail, run};

const NVMET: &str = "/sys/kernel/config/nvmet";

pub(super) const NQN: &str = "nqn.2026-11.org.example:kv";

/// Ways to the target as options of `kvrail host`, by number of the port.
pub(super) const RDMA: &str = "-t rdma -a 192.0.2.1 -s 4420";
pub(super) const TCP: &str = "-t tcp -a 192.0.2.1 -s 4421";
pub(super) const LOOP: &str = "-t loop";
pub(super) const RDMA_OTHER: &str = "-t rdma -a 192.0.2.2 -s 4420";

/// One subsystem with one namespace, on four ports.
pub(super) struct Target;

impl Target {
    /// Exports a device to any host.
    pub(super) fn of(backing: &Path) -> Self {
        let subsystem = Self::subsystem();
        fs::create_dir(&subsystem).expect("nvmet is loaded");
        put(&subsystem.join("attr_allow_any_host"), "1");
        let namespace = subsystem.join("namespaces/1");
        fs::create_dir(&namespace).expect("our subsystem");
        put(&namespace.join("device_path"), backing.to_str().expect("a plain path"));
        put(&namespace.join("enable"), "1");
        let it = Self;
        it.port(1, "rdma", Some((ADDRESS, "4420")));
        it.port(2, "tcp", Some((ADDRESS, "4421")));
        it.port(3, "loop", None);
        it.port(4, "rdma", Some((OTHER, "4420")));
        it
    }

    fn port(&self, number: u32, transport: &str, address: Option<(&str, &str)>) {
        let port = Self::port_dir(number);
        fs::create_dir(&port).expect("nvmet is loaded");
        put(&port.join("addr_trtype"), transport);
        if let Some((traddr, trsvcid)) = address {
            put(&port.join("addr_adrfam"), "ipv4");
            put(&port.join("addr_traddr"), traddr);
            put(&port.join("addr_trsvcid"), trsvcid);
        }
        self.open(number);
    }

    /// Lets the subsystem be reached through a port.
    pub(super) fn open(&self, number: u32) {
        symlink(Self::subsystem(), Self::link(number)).expect("the port can be enabled");
    }

    /// Takes the subsystem away from a port: its connections are lost.
    pub(super) fn shut(&self, number: u32) {
        fs::remove_file(Self::link(number)).expect("it was open");
    }

    /// The ANA state of all namespaces behind a port.
    pub(super) fn ana(&self, number: u32, state: &str) {
        put(&Self::port_dir(number).join("ana_groups/1/ana_state"), state);
    }

    /// Only this host from now on, with a secret if there is one.
    pub(super) fn only(&self, host: &str, secret: Option<&str>) {
        let dir = Path::new(NVMET).join("hosts").join(host);
        fs::create_dir(&dir).expect("nvmet is loaded");
        if let Some(secret) = secret {
            put(&dir.join("dhchap_key"), secret);
        }
        put(&Self::subsystem().join("attr_allow_any_host"), "0");
        let link = Self::subsystem().join("allowed_hosts").join(host);
        symlink(&dir, link).expect("a host can be allowed");
    }

    fn subsystem() -> PathBuf {
        Path::new(NVMET).join("subsystems").join(NQN)
    }

    fn port_dir(number: u32) -> PathBuf {
        Path::new(NVMET).join("ports").join(number.to_string())
    }

    fn link(number: u32) -> PathBuf {
        Self::port_dir(number).join("subsystems").join(NQN)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // What a test that failed left connected.
        run(kvrail().args(["host", "disconnect", "--force", "-n", NQN]));
        let subsystem = Self::subsystem();
        for number in 1..=4 {
            let _ = fs::remove_file(Self::link(number));
            let _ = fs::remove_dir(Self::port_dir(number));
        }
        let allowed = fs::read_dir(subsystem.join("allowed_hosts")).into_iter().flatten();
        for host in allowed.flatten() {
            let _ = fs::remove_file(host.path());
            let _ = fs::remove_dir(Path::new(NVMET).join("hosts").join(host.file_name()));
        }
        let _ = fs::write(subsystem.join("namespaces/1/enable"), "0");
        let _ = fs::remove_dir(subsystem.join("namespaces/1"));
        let _ = fs::remove_dir(subsystem);
    }
}

fn put(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|why| panic!("{text} to {}: {why}", path.display()));
}
