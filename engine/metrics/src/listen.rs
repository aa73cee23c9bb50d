//! Where the endpoint listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Prefix of a path.
const UNIX: &str = "unix:";

/// Where the endpoint listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// At an address of this host; port 0 takes any that is free.
    Tcp(SocketAddr),
    /// At a Unix socket, by absolute path.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        if let Some(path) = text.strip_prefix(UNIX) {
            let path = PathBuf::from(path);
            return if path.is_absolute() && path.file_name().is_some() {
                Ok(Self::Unix(path))
            } else {
                Err(format!("{text:?} has no absolute path of a socket behind {UNIX:?}"))
            };
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            format!(
                "{text:?} is no place to listen at; write \"127.0.0.1:9464\" (an IP address and a \
                 port), \"unix:/run/kvrail/metrics.sock\" or \"off\""
            )
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        kvrail_units::deserialize(from, "a place to listen at such as \"127.0.0.1:9464\"")
    }
}

#[cfg(test)]
mod tests {
    use super::Listen;

    #[test]
    fn places_are_read_back() {
        for text in ["off", "127.0.0.1:9464", "[::1]:0", "unix:/run/kvrail/metrics.sock"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_place_is_named_with_what_would_be() {
        for bad in ["", "on", "9464", "localhost:9464", ":9464", "127.0.0.1", "127.0.0.1:70000"] {
            let why = bad.parse::<Listen>().unwrap_err();
            assert!(why.contains("127.0.0.1:9464") && why.contains("off"), "{why}");
        }
        for bad in ["unix:", "unix:run/x", "unix:/", "unix:/run/.."] {
            assert!(bad.parse::<Listen>().unwrap_err().contains("absolute path"), "{bad:?}");
        }
    }
}
