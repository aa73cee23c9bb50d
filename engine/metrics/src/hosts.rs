//! By which names a browser may have found this endpoint.
//!
//! A foreign page can have its own name lead to this host (DNS rebinding), and the browser would
//! then let it read the answers of this endpoint. The name is in the request: the endpoint accepts
//! addresses, names that no other party can assign, and configured names.

use std::net::IpAddr;

use rustix::system::uname;

/// Names that requests may have, beside addresses, `localhost` and this host's own name.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    names: Vec<String>,
}

impl Hosts {
    /// These too; `*` stands for any.
    #[must_use]
    pub fn new(names: &[String]) -> Self {
        let own = uname().nodename().to_string_lossy().into_owned();
        let names = names.iter().chain([&own]).map(|name| name.to_lowercase()).collect();
        Self { names }
    }

    /// Whether a request with this `Host` is answered. Browsers always send one.
    pub(crate) fn allow(&self, host: Option<&str>) -> bool {
        let Some(host) = host else { return true };
        let name = name_of(host).to_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        name.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.names.iter().any(|known| known == "*" || known == name)
    }
}

/// A host without its port, and an address without its brackets.
fn name_of(host: &str) -> &str {
    let host = host.trim();
    match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::Hosts;

    #[test]
    fn addresses_and_known_names_are_answered_and_others_are_not() {
        let hosts = Hosts::new(&["GPU7.example.org".into()]);
        for host in [
            "127.0.0.1:9464",
            "10.1.2.3",
            "[::1]:9464",
            "[fe80::1]",
            "localhost:9464",
            "kv.localhost",
            "gpu7.example.org:80",
            "Gpu7.Example.org.",
        ] {
            assert!(hosts.allow(Some(host)), "{host}");
        }
        for host in ["evil.example.org", "example.org", "127.0.0.1.evil.org", "localhost.evil.org"]
        {
            assert!(!hosts.allow(Some(host)), "{host}");
        }
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert!(hosts.allow(Some(&own)) && hosts.allow(None));
        assert!(Hosts::new(&["*".into()]).allow(Some("evil.example.org")));
    }
}
