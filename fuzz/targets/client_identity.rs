//! Identity documents, as the client library reads those of programs.
#![no_main]
use kvrail_client::Identity;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(identity) = Identity::parse(text) {
        assert_eq!(Identity::parse(identity.as_str()), Ok(identity));
    }
});
