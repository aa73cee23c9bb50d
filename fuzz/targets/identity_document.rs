//! Identity documents, as both ends read them.
#![no_main]

use kvrail_protocol::read_document;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(document) = read_document(text) {
        let again = serde_json::to_string(&document).expect("a document is JSON");
        assert_eq!(read_document(&again), Ok(document));
    }
});
