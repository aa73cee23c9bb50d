//! Labels of volumes' members.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvrail_volume::fuzzing::label(bytes));
