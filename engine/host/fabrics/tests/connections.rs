//! Listing and disconnecting on sysfs as kernels show it, with and without native multipath, and
//! every request that must be refused.

use std::fs;
use std::os::unix::fs::symlink;

use kvrail_fabrics::{
    Address, ErrorClass, FabricsError, Identity, IoPolicy, Options, Purpose, Which, connect,
    disconnect, discover, set_io_policy, subsystems,
};
use kvrail_memory::Root;
use kvrail_nvme::Transport;

const NQN: &str = "nqn.2026-11.org.example:kv";
const LOCAL: &str = "nqn.2026-11.org.example:drive";

/// A host with sysfs in a temporary directory.
struct Host(tempfile::TempDir);

impl Host {
    /// A local drive `nvme0`, and two connections to one subsystem with native multipath.
    fn two_paths() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        host.subsystem("nvme-subsys0", LOCAL, Some("numa"));
        host.controller("nvme-subsys0", "nvme0", "pcie", "0000:01:00.0");
        host.namespace("sys/class/nvme/nvme0/nvme0n1", None);
        host.subsystem("nvme-subsys1", NQN, Some("round-robin"));
        host.namespace("sys/class/nvme-subsystem/nvme-subsys1/nvme1n1", None);
        for (name, traddr) in [("nvme1", "192.0.2.1"), ("nvme2", "2001:db8::2")] {
            let address = format!("traddr={traddr},trsvcid=4420");
            host.controller("nvme-subsys1", name, "rdma", &address);
            let number = name.trim_start_matches("nvme");
            let path = format!("sys/class/nvme/{name}/nvme1c{number}n1");
            host.namespace(&path, Some("optimized"));
        }
        host
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.0.path().join(path)).unwrap()
    }

    fn subsystem(&self, name: &str, nqn: &str, policy: Option<&str>) {
        let dir = format!("sys/class/nvme-subsystem/{name}");
        self.put(&format!("{dir}/subsysnqn"), nqn);
        self.put(&format!("{dir}/model"), "Linux");
        self.put(&format!("{dir}/serial"), "7");
        if let Some(policy) = policy {
            self.put(&format!("{dir}/iopolicy"), policy);
        }
    }

    fn controller(&self, subsystem: &str, name: &str, transport: &str, address: &str) {
        let dir = format!("sys/class/nvme/{name}");
        for (file, text) in [
            ("transport", transport),
            ("address", address),
            ("state", "live"),
            ("hostnqn", "nqn.2026-11.org.example:host"),
            ("queue_count", "3"),
            ("kato", "5"),
            ("ctrl_loss_tmo", "off"),
            ("dhchap_secret", "none"),
            ("delete_controller", ""),
        ] {
            self.put(&format!("{dir}/{file}"), text);
        }
        let link = self.0.path().join(format!("sys/class/nvme-subsystem/{subsystem}/{name}"));
        symlink(self.0.path().join(&dir), link).unwrap();
    }

    fn namespace(&self, place: &str, ana: Option<&str>) {
        self.put(&format!("{place}/nsid"), "1");
        self.put(&format!("{place}/size"), "2048");
        if let Some(state) = ana {
            self.put(&format!("{place}/ana_state"), state);
            self.put(&format!("{place}/ana_grpid"), "1");
        }
    }

    fn root(&self) -> Root {
        Root::new(self.0.path())
    }
}

#[test]
fn paths_hang_below_the_device_they_lead_to() {
    let found = subsystems(&Host::two_paths().root());
    assert_eq!(found.len(), 2);
    let (local, remote) = (&found[0], &found[1]);
    assert_eq!(local.namespaces[0].device, "/dev/nvme0n1");
    assert!(!local.controllers[0].is_remote());
    assert_eq!(remote.io_policy.as_deref(), Some("round-robin"));
    assert_eq!(remote.namespaces.len(), 1);
    let head = &remote.namespaces[0];
    assert_eq!((head.device.as_str(), head.nsid, head.bytes), ("/dev/nvme1n1", 1, 1 << 20));
    let paths: Vec<_> =
        head.paths.iter().map(|it| (it.controller.as_str(), it.ana_state.as_deref())).collect();
    assert_eq!(paths, [("nvme1", Some("optimized")), ("nvme2", Some("optimized"))]);
    let second = &remote.controllers[1];
    assert_eq!(second.pair("traddr"), Some("2001:db8::2"));
    assert_eq!((second.queues, second.keep_alive_s), (Some(3), Some(5)));
    assert_eq!(second.loss_timeout_s.as_deref(), Some("off"));
    assert!(!second.authenticated);
}

#[test]
fn a_secret_is_reported_and_not_shown() {
    let host = Host::two_paths();
    host.put("sys/class/nvme/nvme1/dhchap_secret", "DHHC-1:00:secret:");
    let found = subsystems(&host.root());
    assert!(found[1].controllers[0].authenticated);
    assert!(!format!("{found:?}").contains("DHHC"));
}

#[test]
fn without_native_multipath_each_connection_has_its_own_device() {
    let host = Host(tempfile::tempdir().unwrap());
    host.subsystem("nvme-subsys3", NQN, None);
    host.controller("nvme-subsys3", "nvme4", "tcp", "traddr=192.0.2.1,trsvcid=4420");
    host.namespace("sys/class/nvme/nvme4/nvme4n1", None);
    let found = subsystems(&host.root());
    assert_eq!(found[0].namespaces[0].device, "/dev/nvme4n1");
    assert_eq!(found[0].namespaces[0].paths[0].controller, "nvme4");
    let error = set_io_policy(&host.root(), NQN, IoPolicy::Numa).unwrap_err();
    assert!(error.message.contains("without native multipath"), "{error}");
}

#[test]
fn what_vanishes_while_it_is_read_is_left_out() {
    let host = Host::two_paths();
    fs::remove_file(host.0.path().join("sys/class/nvme/nvme1/transport")).unwrap();
    fs::remove_file(host.0.path().join("sys/class/nvme-subsystem/nvme-subsys0/subsysnqn")).unwrap();
    let found = subsystems(&host.root());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].controllers.len(), 1);
    assert_eq!(subsystems(&Root::new("/nonexistent".as_ref())), []);
}

#[test]
fn the_policy_is_written_where_it_is_meant() {
    let host = Host::two_paths();
    set_io_policy(&host.root(), NQN, IoPolicy::QueueDepth).unwrap();
    let file = "sys/class/nvme-subsystem/nvme-subsys1/iopolicy";
    assert_eq!(host.read(file), "queue-depth");
    assert_eq!(host.read("sys/class/nvme-subsystem/nvme-subsys0/iopolicy"), "numa\n");
    assert!("fastest".parse::<IoPolicy>().unwrap_err().message.contains("`fastest`"));
}

#[test]
fn which_connections_are_meant() {
    let host = Host::two_paths();
    let names = |which: Which| -> Result<Vec<String>, FabricsError> {
        Ok(which.controllers(&host.root())?.into_iter().map(|it| it.name).collect())
    };
    assert_eq!(names(Which::Nqn(NQN.into())).unwrap(), ["nvme1", "nvme2"]);
    assert_eq!(names(Which::Controller("/dev/nvme2".into())).unwrap(), ["nvme2"]);
    assert_eq!(names(Which::All).unwrap(), ["nvme1", "nvme2"], "local drives never");
    for (which, words) in [
        (Which::Nqn("nqn.2026-11.org.example:none".into()), "not connected"),
        (Which::Controller("nvme9".into()), "--device nvme9: not connected"),
        (Which::Controller("nvme0".into()), "local drive"),
        (Which::Nqn(LOCAL.into()), "local drive"),
    ] {
        let error = names(which).unwrap_err();
        assert!(error.message.contains(words), "{error}");
        assert_eq!(error.class, ErrorClass::Refused);
    }
}

#[test]
fn disconnecting_asks_the_kernel_and_waits_until_it_is_done() {
    let host = Host::two_paths();
    let dir = host.0.path().join("sys/class/nvme/nvme2");
    // What the kernel does once it is asked.
    let kernel = std::thread::spawn(move || {
        while fs::read_to_string(dir.join("delete_controller")).unwrap() != "1" {
            std::thread::yield_now();
        }
        fs::remove_dir_all(&dir).unwrap();
    });
    let gone = disconnect(&host.root(), &Which::Controller("nvme2".into())).unwrap();
    kernel.join().unwrap();
    assert_eq!(gone, ["nvme2"]);
    assert!(host.0.path().join("sys/class/nvme/nvme1").exists());
    let nothing = Host(tempfile::tempdir().unwrap());
    assert_eq!(disconnect(&nothing.root(), &Which::All).unwrap(), [""; 0]);
}

fn options(transport: Transport, traddr: Option<&str>) -> Options {
    let traddr = traddr.map(ToOwned::to_owned);
    let address = Address::new(transport, traddr, None, Purpose::Io).unwrap();
    let id = "5a0a6e4c-6d0c-4d8b-8a3f-0d0f3c1b2a10".parse().unwrap();
    let identity = Identity::given("nqn.2026-11.org.example:host".parse().unwrap(), id);
    Options::new(NQN.parse().unwrap(), address, identity).unwrap()
}

#[test]
fn the_same_two_ends_are_not_connected_twice() {
    let host = Host::two_paths();
    host.put("dev/nvme-fabrics", "");
    for (traddr, name) in [("192.0.2.1", "nvme1"), ("2001:db8::2", "nvme2")] {
        let error = connect(&host.root(), &options(Transport::Rdma, Some(traddr))).unwrap_err();
        assert!(error.message.contains(&format!("already connected as {name}")), "{error}");
        assert!(error.remedy.contains("--duplicate-connect"), "{error:?}");
    }
    assert_eq!(host.read("dev/nvme-fabrics"), "\n", "nothing was written");
    // Another address or transport is another way; this device takes it and answers nothing.
    for it in [options(Transport::Rdma, Some("192.0.2.9")), options(Transport::Loop, None)] {
        let error = connect(&host.root(), &it).unwrap_err();
        assert!(error.message.contains("not instance="), "{error}");
    }
}

#[test]
fn without_the_device_both_ways_name_the_module() {
    let host = Host::two_paths();
    let it = options(Transport::Tcp, Some("192.0.2.9"));
    for error in [
        connect(&host.root(), &it).map(|_| ()).unwrap_err(),
        discover(&host.root(), &it).map(|_| ()).unwrap_err(),
    ] {
        assert!(error.remedy.contains("modprobe nvme-fabrics"), "{error:?}");
        assert_eq!(error.class, ErrorClass::Refused);
    }
}
