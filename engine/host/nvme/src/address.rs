//! Where a controller sits: its PCIe address.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Domain, bus, device and function, as in `0000:3b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// 32 bits wide: host bridges of some platforms (VMD) count from 0x10000 on.
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl FromStr for PciAddress {
    type Err = String;

    /// Takes the long form and, for domain 0, the short one (`3b:00.0`).
    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| {
            format!("{text:?} is no PCIe address; write it as `lspci -D` does: 0000:3b:00.0")
        })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (place, function) = text.rsplit_once('.')?;
    let mut parts: Vec<&str> = place.split(':').collect();
    if parts.len() == 2 {
        parts.insert(0, "0000");
    }
    let [domain, bus, device] = parts[..] else { return None };
    Some(PciAddress {
        domain: hex(domain, 4..=8)?,
        bus: u8::try_from(hex(bus, 2..=2)?).ok()?,
        device: u8::try_from(hex(device, 2..=2)?).ok().filter(|&device| device < 32)?,
        function: u8::try_from(hex(function, 1..=1)?).ok().filter(|&function| function < 8)?,
    })
}

fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (plain && digits.contains(&text.len())).then(|| u32::from_str_radix(text, 16).ok())?
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl Serialize for PciAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::PciAddress;

    #[test]
    fn long_short_and_wide_addresses_are_read_and_written_in_full() {
        for (text, full) in [
            ("0000:3b:00.0", "0000:3b:00.0"),
            ("3B:1f.7", "0000:3b:1f.7"),
            ("10000:e1:00.0", "10000:e1:00.0"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), full);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_an_example() {
        let bad = [
            "",
            "3b",
            "3b:00",
            "3b:20.0",
            "3b:00.8",
            "000:3b:00.0",
            "0:0:0:0.0",
            "+b:00.0",
            "0000:3b:00.0 ",
            "123456789:3b:00.0",
        ];
        for text in bad {
            let why = text.parse::<PciAddress>().unwrap_err();
            assert!(why.contains("0000:3b:00.0"), "{text}: {why}");
        }
    }
}
