//! Control messages of clients.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvrail_protocol::fuzzing::client_message(bytes));
