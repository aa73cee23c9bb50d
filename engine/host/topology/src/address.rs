//! The IP addresses of a network interface, from procfs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kvrail_memory::Root;

/// Addresses of the interface, link-local ones left out.
pub(crate) fn interface_addresses(root: &Root, interface: &str) -> Vec<IpAddr> {
    let text = |path: &str| root.text(path).ok().flatten().unwrap_or_default();
    let routes = routes(&text("proc/net/route"), interface);
    let local = local_v4(&text("proc/net/fib_trie"));
    let here =
        |address: &Ipv4Addr| routes.iter().any(|(net, mask)| address.to_bits() & mask == *net);
    let four = local.into_iter().filter(here).map(IpAddr::V4);
    let six = v6(&text("proc/net/if_inet6"), interface).into_iter().map(IpAddr::V6);
    four.chain(six).collect()
}

/// Addresses of this host: in the trie each stands on the line before its `/32 host LOCAL`.
fn local_v4(trie: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in trie.lines() {
        if let Some((_, address)) = line.split_once("|-- ") {
            last = address.trim().parse().ok();
        } else if line.contains("/32 host LOCAL") {
            found.extend(last.filter(|address| !found.contains(address)));
        }
    }
    found
}

/// Networks right behind an interface, as number and mask: `ib0 0002000A 00000000 ... mask`, the
/// numbers in hexadecimal and in the byte order of this machine's memory.
fn routes(table: &str, interface: &str) -> Vec<(u32, u32)> {
    let hex = |text: &str| {
        let word = u32::from_str_radix(text, 16).ok()?;
        Some(u32::from_be_bytes(word.to_ne_bytes()))
    };
    let network = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, network, gateway, _, _, _, _, mask, ..] = words[..] else { return None };
        let direct = name == interface && gateway == "00000000" && mask != "00000000";
        direct.then_some((hex(network)?, hex(mask)?))
    };
    table.lines().filter_map(network).collect()
}

/// `20010db8000000000000000000000001 04 40 00 80 ib0`: the fourth field is the scope, 0 global.
fn v6(table: &str, interface: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [bits, _, _, scope, _, name] = words[..] else { return None };
        let global = name == interface && scope == "00";
        global.then(|| u128::from_str_radix(bits, 16).ok().map(Ipv6Addr::from_bits))?
    };
    table.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::{local_v4, routes, v6};

    const TRIE: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.0.2.0
        /24 link UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.0.2.15
        /32 host LOCAL
     |-- 10.0.2.255
        /32 link BROADCAST
     |-- 127.0.0.1
        /32 host LOCAL
";
    const ROUTES: &str = "\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
ib0	00000000	0202000A	0003	0	0	0	00000000	0	0	0
ib0	0002000A	00000000	0001	0	0	0	00FFFFFF	0	0	0
eth0	0003000A	00000000	0001	0	0	0	00FFFFFF	0	0	0
";

    #[test]
    fn tables_of_the_kernel_are_read() {
        let local: Vec<String> = local_v4(TRIE).iter().map(ToString::to_string).collect();
        assert_eq!(local, ["10.0.2.15", "127.0.0.1"]);
        assert_eq!(routes(ROUTES, "ib0"), [(0x0a00_0200, 0xffff_ff00)]);
        let table = "fe800000000000000000000000000001 04 40 20 80 ib0\n\
                     20010db8000000000000000000000001 04 40 00 80 ib0\n";
        assert_eq!(v6(table, "ib0"), ["2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap()]);
    }
}
