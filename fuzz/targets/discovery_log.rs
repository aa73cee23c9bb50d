//! Discovery log pages of NVMe-oF services.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvrail_fabrics::fuzzing::discovery_log(bytes));
