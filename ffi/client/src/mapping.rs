//! What lies behind an address of this process: which file, and where in it.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// A mapping of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMapping {
    begin: usize,
    end: usize,
    /// First byte in the file.
    offset: u64,
    shared: bool,
    /// Device, as the kernel writes it, and inode of the file; inode 0 is no file.
    file: (String, u64),
    path: PathBuf,
}

impl ProcessMapping {
    /// The mapping that this address lies in.
    pub(crate) fn of(address: usize) -> Option<Self> {
        all().into_iter().find(|mapping| mapping.contains(address))
    }

    fn contains(&self, address: usize) -> bool {
        (self.begin..self.end).contains(&address)
    }

    /// Where a byte of it lies in the file.
    pub(crate) fn in_file(&self, address: usize) -> u64 {
        debug_assert!(self.contains(address), "the address is of this mapping");
        self.offset + (address - self.begin) as u64
    }

    /// Whether others can map what it shows.
    pub(crate) fn is_shared_file(&self) -> bool {
        self.shared && self.file.1 != 0
    }

    /// Its file: by its name, or by a descriptor that this process has open.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let mut names = [self.path.clone()].into_iter().chain(open.map(|entry| entry.path()));
        names.find_map(|name| self.open_as(&name))
    }

    fn open_as(&self, name: &Path) -> Option<OwnedFd> {
        // Opening what is no file, a pipe say, could wait for ever.
        let is_ours = |about: &fs::Metadata| about.is_file() && self.is_of(about);
        fs::metadata(name).ok().filter(is_ours)?;
        let file: File = OpenOptions::new().read(true).write(true).open(name).ok()?;
        file.metadata().ok().filter(is_ours).map(|_| file.into())
    }

    fn is_of(&self, about: &fs::Metadata) -> bool {
        let device = about.dev();
        let device = format!("{:02x}:{:02x}", major(device), minor(device));
        self.file == (device, about.ino())
    }
}

/// Where the byte at `address` lies within the memory of `bytes` bytes that begins at `base`: by
/// that mapping, or by another one of the same file.
pub(crate) fn position(base: usize, bytes: usize, address: usize) -> Option<usize> {
    let inside = |position: usize| (position < bytes).then_some(position);
    if let Some(position) = address.checked_sub(base).and_then(inside) {
        return Some(position);
    }
    let all = all();
    let at = |address: usize| all.iter().find(|mapping| mapping.contains(address));
    let (own, other) = (at(base)?, at(address)?);
    let same = other.is_shared_file() && own.file == other.file;
    let position = other.in_file(address).checked_sub(own.in_file(base))?;
    inside(usize::try_from(position).ok()?).filter(|_| same)
}

fn all() -> Vec<ProcessMapping> {
    let text = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// A line of `/proc/self/maps`: `begin-end mode offset device inode path`, see proc(5).
fn parse(line: &str) -> Option<ProcessMapping> {
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    let mut words = line.split_ascii_whitespace();
    let (begin, end) = words.next()?.split_once('-')?;
    let shared = words.next()?.ends_with('s');
    let (offset, device, inode) = (hexadecimal(words.next()?)?, words.next()?, words.next()?);
    let path = line.find('/').map_or_else(PathBuf::new, |at| PathBuf::from(&line[at..]));
    let file = (device.to_owned(), inode.parse().ok()?);
    Some(ProcessMapping { begin: address(begin)?, end: address(end)?, offset, shared, file, path })
}

#[cfg(test)]
mod tests {
    use super::{ProcessMapping, parse};

    #[test]
    fn a_line_of_the_kernel() {
        let line = "7f00-7f90 rw-s 00000a00 00:1a 77                       /dev/shm/a b (deleted)";
        let mapping = parse(line).unwrap();
        assert!(mapping.is_shared_file() && mapping.contains(0x7f8f) && !mapping.contains(0x7f90));
        assert_eq!(mapping.in_file(0x7f01), 0xa01);
        assert_eq!(mapping.path.to_str(), Some("/dev/shm/a b (deleted)"));
        let private = parse("7f00-7f90 rw-p 00000000 00:00 0 ").unwrap();
        assert!(!private.is_shared_file());
        assert!(parse("").is_none() && parse("7f00 rw-p").is_none());
    }

    #[test]
    fn this_process() {
        let value = 7_u8;
        assert!(!ProcessMapping::of((&raw const value).addr()).unwrap().is_shared_file());
        assert_eq!(ProcessMapping::of(8), None);
    }
}
