//! Supers of a store's members.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvrail_store::fuzzing::superblock(bytes));
