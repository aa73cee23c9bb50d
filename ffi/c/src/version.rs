//! Which generation of the ABI this is, and which release.
#![expect(unsafe_code, reason = "exports symbols")]
// UNSAFETY: `no_mangle` only; the names begin with `kvrail_`, which no other library uses.

use std::ffi::c_char;

/// Generation of the ABI. It grows when a program built for the one before cannot run any more;
/// the soname grows with it.
pub const KVRAIL_ABI_VERSION: u32 = 1;

/// The generation of the library that runs; compare it with `KVRAIL_ABI_VERSION` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_abi_version() -> u32 {
    KVRAIL_ABI_VERSION
}

/// The release of the library that runs, as "1.2.3".
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_version() -> *const c_char {
    const RELEASE: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    RELEASE.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::KVRAIL_ABI_VERSION;

    #[test]
    fn the_soname_has_the_generation() {
        let script = include_str!("../build.rs");
        assert!(script.contains(&format!("const ABI: &str = \"{KVRAIL_ABI_VERSION}\";")));
    }
}
