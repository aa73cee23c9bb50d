//! The options of a connection as one checked table, and the string that the kernel takes.

use std::collections::{BTreeMap, BTreeSet};

use kvrail_nvme::Nqn;

use kvrail_nvme::Transport;

use crate::address::Address;
use crate::error::FabricsError;
use crate::identity::Identity;
use crate::secret::Secret;

use Transport::{Loop, Rdma, Tcp};

/// A number that may be set: its key as the kernel and nvme-cli (with dashes) call it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The kernel's key.
    pub key: &'static str,
    /// Smallest value.
    pub min: i64,
    /// Largest value.
    pub max: i64,
    /// Transports that know it.
    pub transports: &'static [Transport],
}

const ALL: &[Transport] = &[Rdma, Tcp, Loop];
const WIRES: &[Transport] = &[Rdma, Tcp];

const fn setting(
    key: &'static str,
    min: i64,
    max: i64,
    transports: &'static [Transport],
) -> Setting {
    Setting { key, min, max, transports }
}

/// Every number. Bounds and transports are those of `drivers/nvme/host/{fabrics,rdma,tcp}.c` and
/// `drivers/nvme/target/loop.c`; times are in seconds, -1 is for ever.
pub const SETTINGS: [Setting; 11] = [
    setting("nr_io_queues", 1, 65_535, ALL),
    setting("nr_write_queues", 1, 65_535, WIRES),
    setting("nr_poll_queues", 1, 65_535, WIRES),
    setting("queue_size", 16, 1024, ALL),
    setting("keep_alive_tmo", 1, 86_400, ALL),
    setting("reconnect_delay", 1, 86_400, WIRES),
    setting("ctrl_loss_tmo", -1, 604_800, WIRES),
    setting("fast_io_fail_tmo", -1, 604_800, ALL),
    setting("tos", 0, 255, WIRES),
    setting("keyring", 1, i32::MAX as i64, &[Tcp]),
    setting("tls_key", 1, i32::MAX as i64, &[Tcp]),
];

/// A switch of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flag {
    /// Checksum over headers.
    HdrDigest,
    /// Checksum over data.
    DataDigest,
    /// A second connection between the same two ends is wanted.
    DuplicateConnect,
    /// No flow control of the submission queue.
    DisableSqflow,
    /// TLS.
    Tls,
    /// TLS with a key from authentication.
    Concat,
}

impl Flag {
    /// The kernel's key.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::HdrDigest => "hdr_digest",
            Self::DataDigest => "data_digest",
            Self::DuplicateConnect => "duplicate_connect",
            Self::DisableSqflow => "disable_sqflow",
            Self::Tls => "tls",
            Self::Concat => "concat",
        }
    }

    const fn transports(self) -> &'static [Transport] {
        match self {
            Self::HdrDigest | Self::DataDigest | Self::Tls | Self::Concat => &[Tcp],
            Self::DuplicateConnect | Self::DisableSqflow => ALL,
        }
    }
}

/// What makes a connection, checked as it is put together.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) nqn: Nqn,
    pub(crate) address: Address,
    pub(crate) identity: Identity,
    numbers: BTreeMap<&'static str, i64>,
    flags: BTreeSet<Flag>,
    secrets: Vec<(&'static str, Secret)>,
}

impl Options {
    /// A connection with the kernel's defaults.
    ///
    /// # Errors
    /// An interface named for a transport that takes none.
    pub fn new(nqn: Nqn, address: Address, identity: Identity) -> Result<Self, FabricsError> {
        let transport = address.transport;
        let keys = [
            ("host_traddr", address.host_traddr.is_some(), WIRES),
            ("host_iface", address.host_iface.is_some(), &[Tcp]),
        ];
        for (key, given, transports) in keys {
            if given {
                fits(key, transports, transport)?;
            }
        }
        let (numbers, flags, secrets) = Default::default();
        Ok(Self { nqn, address, identity, numbers, flags, secrets })
    }

    /// Sets a number of [`SETTINGS`].
    ///
    /// # Errors
    /// The key is unknown, the value out of its bounds, or the transport has no such thing.
    pub fn set(&mut self, key: &str, value: i64) -> Result<(), FabricsError> {
        let setting = SETTINGS.iter().find(|setting| setting.key == key).ok_or_else(|| {
            FabricsError::usage(format!("{key}: no such option"), "see kvrail host connect --help")
        })?;
        let option = option_name(setting.key);
        fits(setting.key, setting.transports, self.address.transport)?;
        if !(setting.min..=setting.max).contains(&value) {
            let words = format!("{option} {value}: must be {} to {}", setting.min, setting.max);
            return Err(FabricsError::usage(words, "leave it out for the kernel's default"));
        }
        self.numbers.insert(setting.key, value);
        Ok(())
    }

    /// Turns a switch on.
    ///
    /// # Errors
    /// The transport has no such thing.
    pub fn turn_on(&mut self, flag: Flag) -> Result<(), FabricsError> {
        fits(flag.key(), flag.transports(), self.address.transport)?;
        self.flags.insert(flag);
        Ok(())
    }

    /// Authenticates this host, and the controller too where there is a secret for it.
    ///
    /// # Errors
    /// A controller's secret without one of the host.
    pub fn authenticate(
        &mut self,
        host: Option<Secret>,
        controller: Option<Secret>,
    ) -> Result<(), FabricsError> {
        if controller.is_some() && host.is_none() {
            let words = "--dhchap-ctrl-secret-file without --dhchap-secret-file";
            return Err(FabricsError::usage(words, "name the host's secret too"));
        }
        let keys = [("dhchap_secret", host), ("dhchap_ctrl_secret", controller)];
        self.secrets = keys.into_iter().filter_map(|(key, it)| Some((key, it?))).collect();
        Ok(())
    }

    pub(crate) fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    /// Every pair for the kernel, in a fixed order; switches have no value.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, Option<String>)> {
        let to = &self.address;
        let words = [
            ("nqn", Some(self.nqn.to_string())),
            ("transport", Some(to.transport.to_string())),
            ("traddr", to.traddr.clone()),
            ("trsvcid", to.trsvcid.map(|port| port.to_string())),
            ("host_traddr", to.host_traddr.clone()),
            ("host_iface", to.host_iface.clone()),
            ("hostnqn", Some(self.identity.nqn.to_string())),
            ("hostid", Some(self.identity.id.to_string())),
        ];
        let words = words.into_iter().filter(|(_, value)| value.is_some());
        let numbers = self.numbers.iter().map(|(key, value)| (*key, Some(value.to_string())));
        let flags = self.flags.iter().map(|flag| (flag.key(), None));
        let secrets = self.secrets.iter().map(|(key, it)| (*key, Some(it.expose().to_owned())));
        words.chain(numbers).chain(flags).chain(secrets).collect()
    }

    /// The string that `/dev/nvme-fabrics` takes. Holds the secrets: never shown.
    pub(crate) fn string(&self) -> String {
        let pair = |(key, value): (&str, Option<String>)| match value {
            Some(value) => format!("{key}={value}"),
            None => key.to_owned(),
        };
        self.pairs().into_iter().map(pair).collect::<Vec<_>>().join(",")
    }
}

/// The option as it stands on the command line.
pub(crate) fn option_name(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

fn fits(key: &str, transports: &[Transport], it: Transport) -> Result<(), FabricsError> {
    if transports.contains(&it) {
        return Ok(());
    }
    let known: Vec<&str> = transports.iter().map(|transport| transport.name()).collect();
    let option = option_name(key);
    let words = format!("{option}: transport {it} has none, only {}", known.join(" and "));
    Err(FabricsError::usage(words, format!("leave out {option}")))
}

#[cfg(test)]
mod tests {
    use super::{Flag, Options, SETTINGS};
    use kvrail_nvme::Transport;

    use crate::address::{Address, Purpose};
    use crate::identity::Identity;
    use crate::secret::Secret;

    fn options(transport: Transport) -> Options {
        let traddr = (transport != Transport::Loop).then(|| "192.0.2.1".to_owned());
        let address = Address::new(transport, traddr, None, Purpose::Io).unwrap();
        let nqn = "nqn.2026-11.org.example:host".parse().unwrap();
        let id = "5a0a6e4c-6d0c-4d8b-8a3f-0d0f3c1b2a10".parse().unwrap();
        let identity = Identity::given(nqn, id);
        Options::new("nqn.2026-11.org.example:kv0".parse().unwrap(), address, identity).unwrap()
    }

    #[test]
    fn the_string_is_what_the_kernel_takes() {
        let mut it = options(Transport::Tcp);
        it.set("nr_poll_queues", 2).unwrap();
        it.set("ctrl_loss_tmo", -1).unwrap();
        it.turn_on(Flag::DataDigest).unwrap();
        let secret = "DHHC-1:00:2g/EmxpayOZwta8IGV4z4nFtrksO0ZiLMHv4l5co4bCcSMdp:";
        let secret: Secret = secret.parse().unwrap();
        it.authenticate(Some(secret), None).unwrap();
        assert_eq!(
            it.string(),
            "nqn=nqn.2026-11.org.example:kv0,transport=tcp,traddr=192.0.2.1,trsvcid=4420,\
             hostnqn=nqn.2026-11.org.example:host,hostid=5a0a6e4c-6d0c-4d8b-8a3f-0d0f3c1b2a10,\
             ctrl_loss_tmo=-1,nr_poll_queues=2,data_digest,\
             dhchap_secret=DHHC-1:00:2g/EmxpayOZwta8IGV4z4nFtrksO0ZiLMHv4l5co4bCcSMdp:"
        );
        assert!(!format!("{it:?}").contains("Emxpay"), "secrets do not show");
        assert!(
            options(Transport::Loop).string().starts_with("nqn=nqn.2026-11.org.example:kv0,tr")
        );
    }

    #[test]
    fn every_number_has_bounds_and_transports() {
        for setting in SETTINGS {
            for transport in [Transport::Rdma, Transport::Tcp, Transport::Loop] {
                let mut it = options(transport);
                let knows = setting.transports.contains(&transport);
                for value in [setting.min, setting.max] {
                    assert_eq!(it.set(setting.key, value).is_ok(), knows, "{setting:?}");
                }
                for value in [setting.min - 1, setting.max + 1] {
                    let error = it.set(setting.key, value).unwrap_err();
                    let option = setting.key.replace('_', "-");
                    assert!(error.message.contains(&option), "{error}");
                    let said = if knows { value.to_string() } else { transport.to_string() };
                    assert!(error.message.contains(&said), "{error}");
                }
            }
        }
        assert!(options(Transport::Tcp).set("color", 1).unwrap_err().message.contains("color"));
    }

    #[test]
    fn switches_know_their_transports() {
        let error = options(Transport::Rdma).turn_on(Flag::Tls).unwrap_err();
        assert_eq!(error.message, "--tls: transport rdma has none, only tcp");
        options(Transport::Loop).turn_on(Flag::DuplicateConnect).unwrap();
        let secret = "DHHC-1:00:2g/EmxpayOZwta8IGV4z4nFtrksO0ZiLMHv4l5co4bCcSMdp:";
        let error = options(Transport::Tcp).authenticate(None, Some(secret.parse().unwrap()));
        assert!(error.unwrap_err().message.contains("without --dhchap-secret-file"));
    }

    #[test]
    fn an_interface_is_for_tcp_alone() {
        let address = Address::new(Transport::Rdma, Some("::1".into()), None, Purpose::Io).unwrap();
        let address = address.from_host(None, Some("eth0".into())).unwrap();
        let it = options(Transport::Rdma);
        let error = Options::new(it.nqn, address, it.identity).unwrap_err();
        assert!(error.message.contains("--host-iface"), "{error}");
    }
}
