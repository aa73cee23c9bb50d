//! Pages of the summary, with their records.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvrail_store::fuzzing::page(bytes));
