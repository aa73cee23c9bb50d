//! The kernel's fabrics device: one write makes a connection, one read says which.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::time::Duration;

use kvrail_memory::Root;
use rustix::io::Errno;

use crate::deadline::within;
use crate::error::FabricsError;
use crate::kernel_log::KernelLog;
use crate::options::{Options, option_name};

const DEVICE: &str = "/dev/nvme-fabrics";

/// How long a target may take to answer. Unasked, the kernel waits two minutes over TCP and more
/// than one over RDMA (seen: 78 s).
const PATIENCE: Duration = Duration::from_secs(15);

/// The opened device.
pub(crate) struct Fabrics<'a> {
    file: File,
    root: &'a Root,
}

impl<'a> Fabrics<'a> {
    /// Opens the device.
    pub(crate) fn open(root: &'a Root) -> Result<Self, FabricsError> {
        let file = OpenOptions::new().read(true).write(true).open(root.path(DEVICE));
        let file = file.map_err(|why| match why.kind() {
            ErrorKind::NotFound => FabricsError::refused(
                format!("{DEVICE} is missing: the module nvme-fabrics is not loaded"),
                "modprobe nvme-fabrics (a kernel without it: install its extra modules)",
            ),
            ErrorKind::PermissionDenied => FabricsError::refused(
                format!("{DEVICE}: {why}"),
                "run as root; in a container also pass the device",
            ),
            _ => FabricsError::failed(format!("{DEVICE}: {why}"), "check the device node"),
        })?;
        Ok(Self { file, root })
    }

    /// Refuses options that this kernel's fabrics do not know. Kernels before 5.17 do not tell
    /// what they know; there the write decides.
    pub(crate) fn check(&self, options: &Options) -> Result<(), FabricsError> {
        let Ok(mut other) = Self::open(self.root) else { return Ok(()) };
        let mut text = String::new();
        // What cannot be read is not a refusal.
        if other.file.read_to_string(&mut text).is_err() {
            return Ok(());
        }
        let known = known_keys(&text);
        let missing = options.pairs().into_iter().find(|(key, _)| !known.contains(key));
        match missing {
            Some((key, _)) if known.contains("nqn") => Err(unknown_to_kernel(key)),
            _ => Ok(()),
        }
    }

    /// Writes the options; gives the controller's number.
    pub(crate) fn connect(&mut self, options: &Options) -> Result<u32, FabricsError> {
        let mut log = KernelLog::open(self.root);
        // The whole string in one write: that is what the kernel takes as one connection.
        let text = options.string();
        if let Err(why) = within(PATIENCE, || rustix::io::write(&self.file, text.as_bytes())) {
            let said = log.as_mut().map(KernelLog::nvme_lines).unwrap_or_default();
            return Err(failure(options, why, &said));
        }
        let mut answer = String::new();
        let read = self.file.read_to_string(&mut answer);
        let number = read.ok().and_then(|_| instance(&answer));
        number.ok_or_else(|| {
            let words = format!("{DEVICE} answered `{}`, not instance=N", answer.trim());
            FabricsError::failed(words, "report it with the kernel's version")
        })
    }
}

/// The keys of what the device says before a connection: `instance=-1,nqn=%s,tls,...`.
fn known_keys(text: &str) -> BTreeSet<&str> {
    text.trim().split(',').map(|pair| pair.split_once('=').map_or(pair, |(key, _)| key)).collect()
}

/// `instance=3,cntlid=1`
fn instance(answer: &str) -> Option<u32> {
    answer.trim().split(',').find_map(|pair| pair.strip_prefix("instance=")?.parse().ok())
}

fn unknown_to_kernel(key: &str) -> FabricsError {
    let remedy = match key {
        "dhchap_secret" | "dhchap_ctrl_secret" => {
            "boot a kernel with CONFIG_NVME_HOST_AUTH (6.0 or later)"
        }
        "tls" | "tls_key" | "keyring" | "concat" => {
            "boot a kernel with CONFIG_NVME_TCP_TLS (6.7 or later)"
        }
        _ => "leave it out, or boot a newer kernel",
    };
    let option = option_name(key);
    FabricsError::refused(format!("{option}: this kernel's fabrics do not know `{key}`"), remedy)
}

fn failure(options: &Options, why: Errno, said: &[String]) -> FabricsError {
    let remedy = match why {
        Errno::ALREADY => "disconnect first, or give --duplicate-connect",
        Errno::CONNREFUSED => "nobody listens there: check the port, start the target",
        Errno::INTR | Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH => {
            "the address does not answer: check it, the route and the target's firewall"
        }
        Errno::CONNRESET | Errno::PIPE => {
            "the target hung up: check --transport and --trsvcid against its port"
        }
        Errno::NODEV | Errno::ADDRNOTAVAIL => {
            "no local device leads there: check the address and `rdma link`"
        }
        Errno::KEYREJECTED | Errno::NOKEY | Errno::ACCESS => {
            "authentication failed: check both secrets and that the target has this host's"
        }
        Errno::IO => {
            "the target refused: check that it exports --nqn, allows this host's NQN, and has the \
             same secrets"
        }
        Errno::INVAL => {
            "the kernel refused the options: is the transport's module (nvme-rdma, nvme-tcp, \
             nvme-loop) there, and does --hostnqn always go with the same --hostid?"
        }
        Errno::PERM => "run as root",
        _ => "see the kernel's log (dmesg)",
    };
    let (nqn, address) = (&options.nqn, &options.address);
    let said = if said.is_empty() { String::new() } else { format!(" ({})", said.join("; ")) };
    let why = match why {
        Errno::INTR => format!("no answer within {} s", PATIENCE.as_secs()),
        errno => std::io::Error::from(errno).to_string(),
    };
    FabricsError::failed(format!("connecting to {nqn} over {address}: {why}{said}"), remedy)
}

#[cfg(test)]
mod tests {
    use kvrail_memory::Root;
    use rustix::io::Errno;

    use super::{Fabrics, failure, instance, known_keys, unknown_to_kernel};
    use kvrail_nvme::Transport;

    use crate::address::{Address, Purpose};
    use crate::error::ErrorClass;
    use crate::identity::Identity;
    use crate::options::Options;

    fn options() -> Options {
        let address = Address::new(Transport::Tcp, Some("::1".into()), None, Purpose::Io).unwrap();
        let id = "5a0a6e4c-6d0c-4d8b-8a3f-0d0f3c1b2a10".parse().unwrap();
        let identity = Identity::given("nqn.2026-11.org.example:h".parse().unwrap(), id);
        Options::new("nqn.2026-11.org.example:kv".parse().unwrap(), address, identity).unwrap()
    }

    #[test]
    fn the_kernels_answers_are_read() {
        assert_eq!(instance("instance=12,cntlid=3\n"), Some(12));
        assert_eq!(instance("instance=-1"), None);
        let keys = known_keys("instance=-1,cntlid=-1,nqn=%s,tls,dhchap_secret=%s\n");
        assert!(keys.contains("tls") && keys.contains("dhchap_secret") && !keys.contains("x"));
    }

    #[test]
    fn every_refusal_of_the_kernel_has_a_cause_and_a_remedy() {
        for (errno, remedy) in [
            (Errno::ALREADY, "--duplicate-connect"),
            (Errno::CONNREFUSED, "nobody listens"),
            (Errno::TIMEDOUT, "does not answer"),
            (Errno::HOSTUNREACH, "route"),
            (Errno::INTR, "does not answer"),
            (Errno::CONNRESET, "--transport"),
            (Errno::NODEV, "rdma link"),
            (Errno::KEYREJECTED, "authentication"),
            (Errno::IO, "allows this host's NQN"),
            (Errno::INVAL, "nvme-rdma"),
            (Errno::PERM, "root"),
            (Errno::NOMEM, "dmesg"),
        ] {
            let error = failure(&options(), errno, &["nvme1: said so".into()]);
            assert!(error.remedy.contains(remedy), "{error:?}");
            assert!(error.message.contains("tcp ::1 port 4420") && error.message.contains("said"));
        }
        for (key, remedy) in
            [("dhchap_secret", "HOST_AUTH"), ("tls", "TCP_TLS"), ("tos", "newer kernel")]
        {
            assert!(unknown_to_kernel(key).remedy.contains(remedy), "{key}");
        }
    }

    #[test]
    fn a_missing_device_names_the_module() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let error = Fabrics::open(&root).err().unwrap();
        assert_eq!(error.class, ErrorClass::Refused);
        assert!(error.remedy.contains("modprobe nvme-fabrics"), "{error:?}");
    }

    #[test]
    fn options_that_the_kernel_does_not_list_are_refused_before_the_write() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let device = dir.path().join("dev/nvme-fabrics");
        std::fs::create_dir_all(device.parent().unwrap()).unwrap();
        let known = "nqn=%s,transport=%s,traddr=%s,trsvcid=%s,hostnqn=%s,hostid=%s,tos=%d\n";
        for (says, refused) in [(known, true), ("instance=-1,cntlid=-1\n", false)] {
            std::fs::write(&device, says).unwrap();
            let fabrics = Fabrics::open(&root).unwrap();
            fabrics.check(&options()).unwrap();
            let mut more = options();
            more.set("nr_poll_queues", 1).unwrap();
            assert_eq!(fabrics.check(&more).is_err(), refused, "{says}");
        }
    }
}
