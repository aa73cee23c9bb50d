//! Heads of segments.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvrail_store::fuzzing::head(bytes));
