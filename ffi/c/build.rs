//! Gives the shared library its soname: programs load this generation of the ABI at start.

/// `KVRAIL_ABI_VERSION` in `src/version.rs`; a test compares them.
const ABI: &str = "1";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkvrail.so.{ABI}");
}
