//! Layouts of GPU memory, which clients send.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvrail_layout::fuzzing::layout(bytes));
