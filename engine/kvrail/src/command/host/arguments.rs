//! Options that connecting and discovering share, called as nvme-cli calls them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kvrail_fabrics::{Address, Flag, Identity, Options, Purpose, Secret};
use kvrail_memory::Root;
use kvrail_nvme::{Nqn, Transport};
use uuid::Uuid;

use crate::failure::{Exit, Failure};

/// Where the target is and who this host is.
#[derive(Debug, Args)]
pub(super) struct EndArgs {
    /// How packets travel
    #[arg(short, long, value_enum)]
    transport: TransportArg,
    /// The target's IP address
    #[arg(short = 'a', long, value_name = "ADDRESS")]
    traddr: Option<String>,
    /// The target's port [default: 4420; 8009 for discovery over TCP]
    #[arg(short = 's', long, value_name = "PORT")]
    trsvcid: Option<u16>,
    /// This host's address to go from
    #[arg(short = 'w', long, value_name = "ADDRESS")]
    host_traddr: Option<String>,
    /// This host's interface to go through; TCP only
    #[arg(short = 'f', long, value_name = "NAME")]
    host_iface: Option<String>,
    /// This host's NQN [default: /etc/nvme/hostnqn, else from the machine's UUID, else made]
    #[arg(long, value_name = "NQN")]
    hostnqn: Option<Nqn>,
    /// This host's id [default: /etc/nvme/hostid, else the UUID in the NQN]
    #[arg(short = 'I', long, value_name = "UUID")]
    hostid: Option<Uuid>,
    /// File with this host's secret (DHHC-1:...); `-` is standard input
    #[arg(long, value_name = "FILE")]
    dhchap_secret_file: Option<PathBuf>,
    /// File with the controller's secret, to authenticate it too
    #[arg(long, value_name = "FILE")]
    dhchap_ctrl_secret_file: Option<PathBuf>,
    /// nvme-cli's way, which shows the secret to every process of the host
    #[arg(short = 'S', long, hide = true)]
    dhchap_secret: Option<String>,
    /// Likewise
    #[arg(short = 'C', long, hide = true)]
    dhchap_ctrl_secret: Option<String>,
    #[command(flatten)]
    tuning: TuningArgs,
}

/// Numbers and switches of a connection.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tuning")]
struct TuningArgs {
    /// I/O queues [default: one a CPU]
    #[arg(short = 'i', long, value_name = "N")]
    nr_io_queues: Option<i64>,
    /// Queues for writes alone
    #[arg(short = 'W', long, value_name = "N")]
    nr_write_queues: Option<i64>,
    /// Queues that are polled: modes iopoll and sqpoll+iopoll need them
    #[arg(short = 'P', long, value_name = "N")]
    nr_poll_queues: Option<i64>,
    /// Entries of a queue, 16 to 1024 [default: 128]
    #[arg(short = 'Q', long, value_name = "N")]
    queue_size: Option<i64>,
    /// Seconds between signs of life [default: 5]
    #[arg(short = 'k', long, value_name = "SECONDS")]
    keep_alive_tmo: Option<i64>,
    /// Seconds between attempts to reconnect [default: 10]
    #[arg(short = 'c', long, value_name = "SECONDS")]
    reconnect_delay: Option<i64>,
    /// Seconds until a lost controller is given up; -1 is never [default: 600]
    #[arg(short = 'l', long, value_name = "SECONDS", allow_hyphen_values = true)]
    ctrl_loss_tmo: Option<i64>,
    /// Seconds until I/O to a lost controller fails; -1 is never [default: never]
    #[arg(short = 'F', long, alias = "fast_io_fail_tmo", value_name = "SECONDS")]
    #[arg(allow_hyphen_values = true)]
    fast_io_fail_tmo: Option<i64>,
    /// Type of service of the packets
    #[arg(short = 'T', long, value_name = "N")]
    tos: Option<i64>,
    /// Kernel keyring with the TLS key, by number
    #[arg(long, value_name = "ID")]
    keyring: Option<i64>,
    /// TLS key, by its number in the kernel
    #[arg(long, alias = "tls_key", value_name = "ID")]
    tls_key: Option<i64>,
    /// TLS
    #[arg(long)]
    tls: bool,
    /// TLS with a key from authentication
    #[arg(long)]
    concat: bool,
    /// Checksums over headers; TCP only
    #[arg(short = 'g', long)]
    hdr_digest: bool,
    /// Checksums over data; TCP only
    #[arg(short = 'G', long)]
    data_digest: bool,
    /// No flow control of submission queues
    #[arg(long)]
    disable_sqflow: bool,
    /// Connect although the same two ends are connected
    #[arg(short = 'D', long)]
    duplicate_connect: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransportArg {
    /// RoCE, InfiniBand, iWARP, software RDMA
    Rdma,
    /// TCP
    Tcp,
    /// This host's own target
    Loop,
}

impl EndArgs {
    /// The checked options of a connection to `nqn`.
    pub(super) fn options(
        &self,
        nqn: Nqn,
        purpose: Purpose,
        root: &Root,
    ) -> Result<Options, Failure> {
        if self.dhchap_secret.is_some() || self.dhchap_ctrl_secret.is_some() {
            let words = "--dhchap-secret, --dhchap-ctrl-secret: every process of this host can \
                         read a command line";
            return Err(Failure::new(Exit::Usage, words)
                .with_remedy("put the secret into a file and give --dhchap-secret-file"));
        }
        let transport = match self.transport {
            TransportArg::Rdma => Transport::Rdma,
            TransportArg::Tcp => Transport::Tcp,
            TransportArg::Loop => Transport::Loop,
        };
        let address = Address::new(transport, self.traddr.clone(), self.trsvcid, purpose)?;
        let address = address.from_host(self.host_traddr.clone(), self.host_iface.clone())?;
        let secret = |file: &Option<PathBuf>| file.as_deref().map(Secret::read).transpose();
        let secrets = (secret(&self.dhchap_secret_file)?, secret(&self.dhchap_ctrl_secret_file)?);
        let identity = Identity::find(root, self.hostnqn.clone(), self.hostid)?;
        let mut options = Options::new(nqn, address, identity)?;
        for (key, value) in self.tuning.numbers() {
            if let Some(value) = value {
                options.set(key, value)?;
            }
        }
        for (flag, given) in self.tuning.flags() {
            if given {
                options.turn_on(flag)?;
            }
        }
        options.authenticate(secrets.0, secrets.1)?;
        Ok(options)
    }
}

impl TuningArgs {
    fn numbers(&self) -> [(&'static str, Option<i64>); 11] {
        [
            ("nr_io_queues", self.nr_io_queues),
            ("nr_write_queues", self.nr_write_queues),
            ("nr_poll_queues", self.nr_poll_queues),
            ("queue_size", self.queue_size),
            ("keep_alive_tmo", self.keep_alive_tmo),
            ("reconnect_delay", self.reconnect_delay),
            ("ctrl_loss_tmo", self.ctrl_loss_tmo),
            ("fast_io_fail_tmo", self.fast_io_fail_tmo),
            ("tos", self.tos),
            ("keyring", self.keyring),
            ("tls_key", self.tls_key),
        ]
    }

    fn flags(&self) -> [(Flag, bool); 6] {
        [
            (Flag::HdrDigest, self.hdr_digest),
            (Flag::DataDigest, self.data_digest),
            (Flag::DuplicateConnect, self.duplicate_connect),
            (Flag::DisableSqflow, self.disable_sqflow),
            (Flag::Tls, self.tls),
            (Flag::Concat, self.concat),
        ]
    }
}
