//! Slots of completion lanes, which the sidecar writes.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvrail_ring::fuzzing::completion_slot(bytes));
