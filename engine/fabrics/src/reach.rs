//! Whether a TCP address answers, asked before the kernel is: its own connect waits for minutes.
//!
//! RDMA's connection manager gives up after 3 s by itself, loop never waits.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

use crate::address::{Address, Transport};
use crate::error::FabricsError;

/// How long an address may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes and drops a TCP connection.
pub(crate) fn reach(address: &Address) -> Result<(), FabricsError> {
    let (Transport::Tcp, Some(ip), Some(port)) = (address.transport, address.ip(), address.trsvcid)
    else {
        return Ok(());
    };
    // A zone (fe80::1%eth0) or an interface binds to a device: left to the kernel.
    let zoned = address.traddr.as_ref().is_some_and(|text| text.contains('%'));
    if zoned || address.host_iface.is_some() {
        return Ok(());
    }
    let from = address.host_traddr.as_deref().and_then(crate::address::ip);
    try_connect(SocketAddr::new(ip, port), from).map_err(|errno| {
        let cause = std::io::Error::from(errno);
        let remedy = match errno {
            Errno::CONNREFUSED => "nobody listens there: check the port, start the target",
            Errno::ADDRNOTAVAIL => "--host-traddr must be an address of this host",
            _ => "check the address, the route and the target's firewall",
        };
        FabricsError::failed(format!("{address} does not answer: {cause}"), remedy)
    })
}

fn try_connect(to: SocketAddr, from: Option<std::net::IpAddr>) -> Result<(), Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    if let Some(from) = from {
        bind(&socket, &SocketAddr::new(from, 0))?;
    }
    match connect(&socket, &to) {
        Ok(()) => return Ok(()),
        Err(Errno::INPROGRESS) => {}
        Err(errno) => return Err(errno),
    }
    let mut watched = [PollFd::new(&socket, PollFlags::OUT)];
    let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    if poll(&mut watched, Some(&patience))? == 0 {
        return Err(Errno::TIMEDOUT);
    }
    sockopt::socket_error(&socket)?
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::reach;
    use crate::address::{Address, Purpose, Transport};

    fn tcp(traddr: &str, port: u16) -> Address {
        Address::new(Transport::Tcp, Some(traddr.into()), Some(port), Purpose::Io).unwrap()
    }

    #[test]
    fn a_listener_answers_and_a_closed_port_is_said() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        reach(&tcp("127.0.0.1", port)).unwrap();
        let here = tcp("127.0.0.1", port).from_host(Some("127.0.0.2".into()), None).unwrap();
        reach(&here).unwrap();
        let foreign = tcp("127.0.0.1", port).from_host(Some("192.0.2.9".into()), None).unwrap();
        assert!(reach(&foreign).unwrap_err().remedy.contains("--host-traddr"));
        drop(listener);
        let error = reach(&tcp("127.0.0.1", port)).unwrap_err();
        assert!(error.message.contains("127.0.0.1 port") && error.remedy.contains("listens"));
    }

    #[test]
    fn other_transports_and_zones_are_left_to_the_kernel() {
        let rdma = Address::new(Transport::Rdma, Some("::1".into()), Some(9), Purpose::Io).unwrap();
        reach(&rdma).unwrap();
        reach(&tcp("fe80::1%lo", 9)).unwrap();
        reach(&tcp("127.0.0.1", 9).from_host(None, Some("lo".into())).unwrap()).unwrap();
    }
}
