//! How a namespace is named so that the name survives a boot.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::address::PciAddress;

/// The namespace id that means all of them (NVM Express base specification, "Namespace
/// Identifier"); never the id of one.
pub(crate) const NSID_ALL: u32 = 0xffff_ffff;

/// A namespace by what it is, or by a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// `pci:0000:3b:00.0`, `pci:0000:3b:00.0/2`: the controller in a slot. Without a namespace id
    /// the controller must have one namespace.
    Pci {
        /// Where the controller sits.
        address: PciAddress,
        /// Which of its namespaces.
        nsid: Option<u32>,
    },
    /// `serial:S6CKNE0T`, `serial:S6CKNE0T/2`: the drive with a serial number, wherever it sits.
    Serial {
        /// As the drive reports it, without the blanks around it.
        serial: String,
        /// Which of its namespaces.
        nsid: Option<u32>,
    },
    /// `wwid:eui.0025385b71b0a1b2`, `wwid:uuid.…`, `wwid:nvme.…`: one namespace of the world.
    Wwid(String),
    /// Everything else: a path, `/dev/disk/by-id/...` among them. Of a device or of a file.
    Path(PathBuf),
}

/// A text that begins like a selector and is none.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{text:?}: {why}")]
pub struct BadSelector {
    text: String,
    why: String,
}

impl Selector {
    /// The path, where it is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            _ => None,
        }
    }
}

impl FromStr for Selector {
    type Err = BadSelector;

    fn from_str(text: &str) -> Result<Self, BadSelector> {
        let bad = |why: String| BadSelector { text: text.to_owned(), why };
        let Some((kind, rest)) = text.split_once(':') else { return path(text).map_err(bad) };
        match kind {
            "pci" => {
                let (address, nsid) = with_nsid(rest).map_err(bad)?;
                Ok(Self::Pci { address: address.parse().map_err(bad)?, nsid })
            }
            "serial" => {
                let (serial, nsid) = with_nsid(rest).map_err(bad)?;
                let serial = serial.trim().to_owned();
                if serial.is_empty() {
                    return Err(bad("no serial number; write serial:S6CKNE0T".into()));
                }
                Ok(Self::Serial { serial, nsid })
            }
            "wwid" => wwid(rest).map(Self::Wwid).map_err(bad),
            _ => path(text).map_err(bad),
        }
    }
}

fn path(text: &str) -> Result<Selector, String> {
    if text.is_empty() {
        return Err("nothing is named; write pci:, serial:, wwid: or a path".into());
    }
    Ok(Selector::Path(text.into()))
}

/// The text before a slash, and the namespace id behind it.
fn with_nsid(text: &str) -> Result<(&str, Option<u32>), String> {
    let Some((what, id)) = text.rsplit_once('/') else { return Ok((text, None)) };
    let plain = id.bytes().all(|byte| byte.is_ascii_digit());
    let nsid = id.parse().ok().filter(|&nsid| plain && nsid != 0 && nsid != NSID_ALL);
    match nsid {
        Some(nsid) => Ok((what, Some(nsid))),
        None => Err(format!(
            "{id:?} is no namespace id; write a number from 1 to {} behind the slash",
            NSID_ALL - 1
        )),
    }
}

fn wwid(text: &str) -> Result<String, String> {
    let known = ["eui.", "nvme.", "uuid."].iter().any(|kind| {
        text.strip_prefix(kind).is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
    });
    if known {
        return Ok(text.to_ascii_lowercase());
    }
    Err("a WWID begins with eui., nvme. or uuid., as in /sys/block/nvme0n1/wwid".into())
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nsid = match self {
            Self::Pci { address, nsid } => {
                write!(f, "pci:{address}")?;
                nsid
            }
            Self::Serial { serial, nsid } => {
                write!(f, "serial:{serial}")?;
                nsid
            }
            Self::Wwid(wwid) => return write!(f, "wwid:{wwid}"),
            Self::Path(path) => return path.display().fmt(f),
        };
        nsid.map_or(Ok(()), |nsid| write!(f, "/{nsid}"))
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::Selector;

    #[test]
    fn each_form_is_read_and_written() {
        for (text, written) in [
            ("pci:0000:3b:00.0", "pci:0000:3b:00.0"),
            ("pci:3b:00.0/12", "pci:0000:3b:00.0/12"),
            ("serial: S6 CK /1", "serial:S6 CK/1"),
            ("wwid:eui.0025385B71B0A1B2", "wwid:eui.0025385b71b0a1b2"),
            ("wwid:nvme.1b36-5341-51-00000001", "wwid:nvme.1b36-5341-51-00000001"),
            ("/dev/disk/by-id/nvme-eui.00", "/dev/disk/by-id/nvme-eui.00"),
            ("./pci:x", "./pci:x"),
            ("null:4GiB", "null:4GiB"),
        ] {
            assert_eq!(text.parse::<Selector>().unwrap().to_string(), written);
        }
        assert!("kv.img".parse::<Selector>().unwrap().path().is_some());
    }

    #[test]
    fn bad_ones_say_how_to_write_it() {
        for (text, remedy) in [
            ("", "pci:, serial:, wwid: or a path"),
            ("pci:", "0000:3b:00.0"),
            ("pci:3b:00.0/", "behind the slash"),
            ("pci:3b:00.0/0", "from 1 to"),
            ("pci:3b:00.0/4294967295", "from 1 to 4294967294"),
            ("pci:3b:00.0/+1", "from 1 to"),
            ("serial:", "serial:S6CKNE0T"),
            ("serial: /1", "serial:S6CKNE0T"),
            ("serial:A/one", "\"one\" is no namespace id"),
            ("wwid:0025385b71b0a1b2", "eui., nvme. or uuid."),
            ("wwid:eui.", "eui., nvme. or uuid."),
        ] {
            let why = text.parse::<Selector>().unwrap_err().to_string();
            assert!(why.contains(remedy), "{text}: {why}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(text in "(pci:|serial:|wwid:eui\\.)?\\PC{0,16}") {
            if let Ok(selector) = text.parse::<Selector>() {
                prop_assert_eq!(selector.to_string().parse(), Ok(selector));
            }
        }
    }
}
