//! Slots of request lanes, which clients write.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvrail_ring::fuzzing::request_slot(bytes));
