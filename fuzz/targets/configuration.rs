//! Configuration files of operators: each loads, or is refused with a message.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use kvrail_cli::config::{Layers, load};
use tempfile::NamedTempFile;

static FILE: LazyLock<NamedTempFile> = LazyLock::new(|| NamedTempFile::new().expect("a file"));

libfuzzer_sys::fuzz_target!(|text: &str| {
    fs::write(FILE.path(), text).expect("the file is ours");
    let layers = Layers { file: Some(FILE.path().to_owned()), ..Layers::default() };
    match load(&layers) {
        // A loaded configuration can be written, and loads as the same.
        Ok(loaded) => {
            let written = toml::to_string(&loaded.config).expect("a configuration is TOML");
            fs::write(FILE.path(), written).expect("the file is ours");
            assert_eq!(load(&layers).expect("checked before").config, loaded.config);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
