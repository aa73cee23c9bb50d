//! Which bytes of this process are the same memory: a file may be mapped more than once.

use std::fs;

/// A mapping of a file, as the kernel tells of it.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    begin: usize,
    end: usize,
    /// First byte in the file.
    offset: usize,
    /// Device and inode of the file.
    file: (&'a str, &'a str),
}

/// Where the byte at `address` lies within the memory of `bytes` bytes that begins at `base`: by
/// that mapping, or by another one of the same file.
pub(crate) fn position(base: usize, bytes: usize, address: usize) -> Option<usize> {
    let inside = |position: usize| (position < bytes).then_some(position);
    if let Some(position) = address.checked_sub(base).and_then(inside) {
        return Some(position);
    }
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let all: Vec<_> = maps.lines().filter_map(mapping).collect();
    let at = |address: usize| all.iter().find(|it| (it.begin..it.end).contains(&address));
    let (own, other) = (at(base)?, at(address)?);
    let of_a_file = own.file.1 != "0" && own.file == other.file;
    let in_file = |it: &Mapping<'_>, address: usize| it.offset + (address - it.begin);
    let position = in_file(other, address).checked_sub(in_file(own, base))?;
    inside(position).filter(|_| of_a_file)
}

/// A line of `/proc/self/maps`: `begin-end rights offset device inode path`.
fn mapping(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.split_ascii_whitespace();
    let (begin, end) = words.next()?.split_once('-')?;
    let (offset, device, inode) = (words.nth(1)?, words.next()?, words.next()?);
    let [begin, end, offset] =
        [begin, end, offset].map(|number| usize::from_str_radix(number, 16).ok());
    Some(Mapping { begin: begin?, end: end?, offset: offset?, file: (device, inode) })
}
