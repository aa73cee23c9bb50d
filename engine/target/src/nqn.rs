//! NVMe qualified names: what the specification and the kernel take.

use std::fmt;

/// Bytes of a name without its final zero (NVMe base specification, NVMF_NQN_SIZE in the kernel).
pub const NQN_BYTES_MAX: usize = 223;

/// The name every discovery controller has.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Why a text is no qualified name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadNqn {
    /// Longer than `NQN_BYTES_MAX`.
    Long(usize),
    /// Not `nqn.YYYY-MM.domain...`.
    Form,
    /// A character that cannot stand in a name that is a directory too.
    Character(char),
    /// The discovery controllers' own.
    Discovery,
}

impl fmt::Display for BadNqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Long(bytes) => {
                write!(f, "it has {bytes} bytes, a qualified name has {NQN_BYTES_MAX} at most")
            }
            Self::Form => f.write_str("it must be a qualified name, nqn.YYYY-MM.domain:name"),
            Self::Character(sign) => write!(f, "{sign:?} cannot stand in a qualified name"),
            Self::Discovery => f.write_str("it is the name of the discovery service"),
        }
    }
}

/// Checks a host's or subsystem's name.
///
/// # Errors
/// `BadNqn` says what is wrong with it.
pub fn check_nqn(text: &str) -> Result<(), BadNqn> {
    if text.len() > NQN_BYTES_MAX {
        return Err(BadNqn::Long(text.len()));
    }
    let odd = |sign: &char| !sign.is_ascii_graphic() || *sign == '/';
    if let Some(sign) = text.chars().find(odd) {
        return Err(BadNqn::Character(sign));
    }
    if text == DISCOVERY_NQN {
        return Err(BadNqn::Discovery);
    }
    let date = text.strip_prefix("nqn.").and_then(|rest| rest.split_once('.'));
    let (date, rest) = date.ok_or(BadNqn::Form)?;
    let digits =
        |part: &str, count| part.len() == count && part.bytes().all(|b| b.is_ascii_digit());
    let dated = date.split_once('-').is_some_and(|(year, month)| {
        digits(year, 4) && digits(month, 2) && ("01"..="12").contains(&month)
    });
    let named = rest.starts_with(|sign: char| sign.is_ascii_alphanumeric());
    if dated && named { Ok(()) } else { Err(BadNqn::Form) }
}
