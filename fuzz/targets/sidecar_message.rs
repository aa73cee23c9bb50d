//! Control messages of the sidecar.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvrail_protocol::fuzzing::sidecar_message(bytes));
