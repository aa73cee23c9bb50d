//! Where a target is reached: transport, address, service.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use kvrail_nvme::{SERVICE_DEFAULT, Transport};
use serde::Serialize;

use crate::error::FabricsError;

/// Port of discovery services over TCP.
const SERVICE_DISCOVERY_TCP: u16 = 8009;

/// Where a target is reached, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Address {
    /// The transport.
    pub transport: Transport,
    /// The target's address; none for loop.
    pub traddr: Option<String>,
    /// The target's port; none for loop.
    pub trsvcid: Option<u16>,
    /// This host's address to go from.
    pub host_traddr: Option<String>,
    /// This host's interface to go through; TCP only.
    pub host_iface: Option<String>,
}

impl Address {
    /// An address for I/O, or for a discovery service where `nqn` is one; ports have defaults.
    ///
    /// # Errors
    /// A missing or malformed address, or one where none belongs.
    pub fn new(
        transport: Transport,
        traddr: Option<String>,
        trsvcid: Option<u16>,
        purpose: Purpose,
    ) -> Result<Self, FabricsError> {
        let plain = Self { transport, traddr, trsvcid, host_traddr: None, host_iface: None };
        match transport {
            Transport::Loop if plain.traddr.is_some() || plain.trsvcid.is_some() => {
                let words = "--traddr, --trsvcid: the loop transport has no address";
                Err(FabricsError::usage(words, "leave them out, or name --transport tcp or rdma"))
            }
            Transport::Loop => Ok(plain),
            Transport::Rdma | Transport::Tcp => {
                let Some(traddr) = &plain.traddr else {
                    let words = format!("--traddr: transport {transport} needs an address");
                    return Err(FabricsError::usage(words, "name the target's IP address"));
                };
                check_ip("--traddr", traddr)?;
                if plain.trsvcid == Some(0) {
                    let words = "--trsvcid 0: a port is 1 to 65535";
                    return Err(FabricsError::usage(words, "leave it out for the default"));
                }
                let service = match (transport, purpose) {
                    (Transport::Tcp, Purpose::Discovery) => SERVICE_DISCOVERY_TCP,
                    _ => SERVICE_DEFAULT,
                };
                Ok(Self { trsvcid: plain.trsvcid.or(Some(service)), ..plain })
            }
        }
    }

    /// Names the host's side of the way.
    ///
    /// # Errors
    /// What the transport cannot take, or a malformed address.
    pub fn from_host(
        mut self,
        traddr: Option<String>,
        iface: Option<String>,
    ) -> Result<Self, FabricsError> {
        if let Some(traddr) = &traddr {
            check_ip("--host-traddr", traddr)?;
        }
        let odd = |name: &String| name.is_empty() || name.contains([',', '/', ' ']);
        if let Some(name) = iface.as_ref().filter(|name| odd(name)) {
            let words = format!("--host-iface `{name}`: not the name of an interface");
            return Err(FabricsError::usage(words, "`ip link` lists them"));
        }
        self.host_traddr = traddr;
        self.host_iface = iface;
        Ok(self)
    }
}

/// What a connection is for: ports differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Reading and writing.
    Io,
    /// Asking what there is.
    Discovery,
}

/// An IP address, with a zone behind `%` where it is an IPv6 one.
fn is_ip(text: &str) -> bool {
    match text.split_once('%') {
        None => text.parse::<IpAddr>().is_ok(),
        Some((address, zone)) => {
            address.parse::<Ipv6Addr>().is_ok()
                && !zone.is_empty()
                && !zone.contains([',', '/', ' '])
        }
    }
}

fn check_ip(key: &str, text: &str) -> Result<(), FabricsError> {
    if is_ip(text) {
        return Ok(());
    }
    let words = format!("{key} `{}`: not an IP address", text.escape_debug());
    Err(FabricsError::usage(words, "names are not looked up: write 192.0.2.1 or 2001:db8::1"))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.transport)?;
        if let (Some(traddr), Some(port)) = (&self.traddr, self.trsvcid) {
            write!(f, " {traddr} port {port}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, Purpose, Transport};

    fn address(transport: Transport, traddr: Option<&str>, port: Option<u16>) -> Vec<String> {
        let purposes = [Purpose::Io, Purpose::Discovery];
        purposes
            .map(|purpose| match Address::new(transport, traddr.map(Into::into), port, purpose) {
                Ok(address) => address.to_string(),
                Err(error) => error.message,
            })
            .to_vec()
    }

    #[test]
    fn ports_have_defaults_by_purpose() {
        let to = Some("192.0.2.1");
        assert_eq!(
            address(Transport::Tcp, to, None),
            ["tcp 192.0.2.1 port 4420", "tcp 192.0.2.1 port 8009"]
        );
        assert_eq!(address(Transport::Rdma, to, None)[1], "rdma 192.0.2.1 port 4420");
        assert_eq!(address(Transport::Tcp, to, Some(99))[0], "tcp 192.0.2.1 port 99");
        assert_eq!(address(Transport::Loop, None, None)[0], "loop");
        let zoned = Some("fe80::1%eth0");
        assert_eq!(address(Transport::Rdma, zoned, None)[0], "rdma fe80::1%eth0 port 4420");
    }

    #[test]
    fn bad_addresses_are_refused_with_the_value() {
        for (traddr, words) in [
            (None, "needs an address"),
            (Some(""), "``: not an IP"),
            (Some("target.example"), "`target.example`: not an IP"),
            (Some("192.0.2.1,nqn=x"), "not an IP"),
            (Some("192.0.2.256"), "not an IP"),
            (Some("192.0.2.1%eth0"), "not an IP"),
            (Some("fe80::1%"), "not an IP"),
            (Some("fe80::1%a,b"), "not an IP"),
        ] {
            let said = &address(Transport::Tcp, traddr, None)[0];
            assert!(said.contains(words), "{traddr:?}: {said}");
        }
        assert!(address(Transport::Loop, Some("192.0.2.1"), None)[0].contains("no address"));
        assert!(address(Transport::Tcp, Some("192.0.2.1"), Some(0))[0].contains("1 to 65535"));
        let plain = || Address::new(Transport::Tcp, Some("::1".into()), None, Purpose::Io).unwrap();
        let far = plain().from_host(Some("here".into()), None).unwrap_err();
        assert!(far.message.contains("--host-traddr `here`"), "{far}");
        let odd = plain().from_host(None, Some("a,b".into())).unwrap_err();
        assert!(odd.message.contains("--host-iface `a,b`"), "{odd}");
    }
}
