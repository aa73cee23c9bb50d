//! The discovery log page (NVMe over Fabrics 1.1, 5.3): 1 KiB of header, 1 KiB an entry.

use kvrail_nvme::RECORD_BYTES;
use serde::Serialize;

use crate::error::FabricsError;

/// Entries accepted at most: a page that claims more is broken, not large.
const ENTRIES_MAX: u64 = 65_536;

/// How often a page may change while it is read.
const TRIES: u32 = 10;

/// What an entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subtype {
    /// Another discovery service.
    Referral,
    /// A subsystem with namespaces.
    Nvme,
    /// The service itself.
    Current,
    /// A number that is not known here.
    Unknown(u8),
}

/// One way to one subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// `rdma`, `fc`, `tcp`, `loop`, or the number.
    pub transport: String,
    /// `ipv4`, `ipv6`, `ib`, `fc`, or the number; none for loop.
    pub family: Option<String>,
    /// What it leads to.
    pub subtype: Subtype,
    /// Number of the target's port.
    pub port: u16,
    /// The address.
    pub traddr: String,
    /// The service, a port number for IP.
    pub trsvcid: String,
    /// The subsystem's name.
    pub nqn: String,
}

/// Gives the record at a byte offset of the page.
pub(crate) type Source<'a> = dyn FnMut(u64) -> Result<[u8; RECORD_BYTES], FabricsError> + 'a;

/// Reads all entries, until the page's generation is the same before and after.
pub(crate) fn read_page(source: &mut Source<'_>) -> Result<Vec<Entry>, FabricsError> {
    for _ in 0..TRIES {
        let (before, count) = header(source)?;
        let mut entries = Vec::new();
        for index in 1..=count {
            entries.push(entry(&source(index * RECORD_BYTES as u64)?));
        }
        if header(source)? == (before, count) {
            return Ok(entries);
        }
    }
    let words = format!("the discovery log page changed {TRIES} times while it was read");
    Err(FabricsError::failed(words, "try again when the target stands still"))
}

/// Generation and number of entries.
fn header(source: &mut Source<'_>) -> Result<(u64, u64), FabricsError> {
    let record = source(0)?;
    let number = |at: usize| {
        u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes are eight"))
    };
    let (generation, count) = (number(0), number(8));
    if count > ENTRIES_MAX {
        let words = format!("the discovery log page claims {count} entries");
        return Err(FabricsError::failed(words, "check that the service is a discovery service"));
    }
    Ok((generation, count))
}

fn entry(record: &[u8; RECORD_BYTES]) -> Entry {
    let named = |number: u8, names: &[(u8, &str)]| {
        let name = names.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
        name.map_or_else(|| number.to_string(), ToOwned::to_owned)
    };
    let transport = named(record[0], &[(1, "rdma"), (2, "fc"), (3, "tcp"), (254, "loop")]);
    let family = named(record[1], &[(1, "ipv4"), (2, "ipv6"), (3, "ib"), (4, "fc")]);
    Entry {
        family: (transport != "loop").then_some(family),
        transport,
        subtype: match record[2] {
            1 => Subtype::Referral,
            2 => Subtype::Nvme,
            3 => Subtype::Current,
            other => Subtype::Unknown(other),
        },
        port: u16::from_le_bytes([record[4], record[5]]),
        trsvcid: text(&record[32..64]),
        nqn: text(&record[256..512]),
        traddr: text(&record[512..768]),
    }
}

/// Text up to a zero or trailing blanks; what no terminal should see is escaped.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::{Entry, RECORD_BYTES, Subtype, read_page};
    use crate::error::FabricsError;

    struct Fake {
        page: Vec<u8>,
        /// Reads of the header after which the generation goes up.
        changes: u32,
    }

    impl Fake {
        fn read(&mut self) -> Result<Vec<Entry>, FabricsError> {
            read_page(&mut |offset| {
                let at = usize::try_from(offset).unwrap();
                let record = self.page[at..at + RECORD_BYTES].try_into().unwrap();
                if offset == 0 && self.changes > 0 {
                    self.changes -= 1;
                    self.page[0] += 1;
                }
                Ok(record)
            })
        }
    }

    fn fake(entries: &[(u8, u8, u8, &str, &str, &str)]) -> Fake {
        let mut page = vec![0; RECORD_BYTES];
        page[8] = u8::try_from(entries.len()).unwrap();
        for (transport, family, subtype, service, nqn, address) in entries {
            let mut record = [0; RECORD_BYTES];
            record[..3].copy_from_slice(&[*transport, *family, *subtype]);
            record[4..6].copy_from_slice(&[7, 1]);
            record[32..64].fill(b' ');
            for (at, text) in [(32, service), (256, nqn), (512, address)] {
                record[at..at + text.len()].copy_from_slice(text.as_bytes());
            }
            page.extend(record);
        }
        Fake { page, changes: 0 }
    }

    #[test]
    fn entries_are_read() {
        let mut source = fake(&[
            (1, 1, 2, "4420", "nqn.2026-11.org.example:a", "192.0.2.1"),
            (254, 0, 3, "", "nqn.2014-08.org.nvmexpress.discovery", ""),
            (3, 2, 1, "8009", "x\x1b[2J", "2001:db8::1"),
            (99, 98, 97, "", "", ""),
        ]);
        let entries = source.read().unwrap();
        assert_eq!(entries[0].transport, "rdma");
        assert_eq!(entries[0].family.as_deref(), Some("ipv4"));
        assert_eq!((entries[0].subtype, entries[0].port), (Subtype::Nvme, 263));
        assert_eq!(
            (entries[0].traddr.as_str(), entries[0].trsvcid.as_str()),
            ("192.0.2.1", "4420")
        );
        assert_eq!((entries[1].transport.as_str(), &entries[1].family), ("loop", &None));
        assert_eq!(entries[2].nqn, "x\\u{1b}[2J", "no escape sequence reaches a terminal");
        assert_eq!(entries[3].transport, "99");
        assert_eq!(entries[3].subtype, Subtype::Unknown(97));
    }

    #[test]
    fn a_page_that_changes_is_read_again_and_not_for_ever() {
        let one = [(3, 1, 2, "4420", "nqn.2026-11.org.example:a", "192.0.2.1")];
        let mut source = fake(&one);
        source.changes = 3;
        assert_eq!(source.read().unwrap().len(), 1);
        source.changes = 200;
        assert!(source.read().unwrap_err().message.contains("changed 10 times"));
    }

    #[test]
    fn a_nonsense_count_is_refused() {
        let mut source = fake(&[]);
        source.page[8..16].fill(0xff);
        assert!(source.read().unwrap_err().message.contains("claims"));
    }
}
