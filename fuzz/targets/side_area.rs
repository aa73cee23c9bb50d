//! Side areas of request slots, which clients write.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvrail_ring::fuzzing::side_area(bytes));
