//! The decoder of discovery log pages, for the target in `fuzz`.

use kvrail_nvme::RECORD_BYTES;

use crate::error::FabricsError;
use crate::log_page::read_page;

/// A page as a service gives it, which ends with the bytes: its entries end, and no text of them
/// has what a terminal must not see.
///
/// # Panics
/// If they do not.
pub fn discovery_log(bytes: &[u8]) {
    let read = read_page(&mut |offset| {
        let at = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        if at > 0 && at == bytes.len() {
            return Err(FabricsError::failed("the page ends".to_owned(), ""));
        }
        let mut record = [0; RECORD_BYTES];
        let length = (bytes.len() - at).min(RECORD_BYTES);
        record[..length].copy_from_slice(&bytes[at..at + length]);
        Ok(record)
    });
    for entry in read.unwrap_or_default() {
        let texts = [&entry.transport, &entry.traddr, &entry.trsvcid, &entry.nqn];
        assert!(texts.iter().all(|text| !text.chars().any(char::is_control)), "{entry:?}");
    }
}

/// A page of two entries: a seed.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut page = vec![0; 3 * RECORD_BYTES];
    (page[0], page[8]) = (7, 2);
    for entry in page[RECORD_BYTES..].chunks_mut(RECORD_BYTES) {
        entry[..3].copy_from_slice(&[3, 1, 2]);
        for (at, text) in [(32, "4420"), (256, "nqn.2024-01.org:kv"), (512, "192.0.2.1")] {
            entry[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
    }
    vec![("discovery_log", page)]
}
