//! Every Rust file opens with its purpose.

use crate::report::{Finding, clean, found_at};
use crate::source::{Source, rust, tree};

fn silent(sources: &[Source]) -> Vec<Finding> {
    let silent = rust(sources).filter(|source| {
        let first = source.text.lines().find(|text| !text.trim().is_empty());
        !first.is_some_and(|text| text.starts_with("//! "))
    });
    silent.map(|source| Finding::new(&source.path, 1, "does not open with `//! `")).collect()
}

#[test]
fn rust_files_open_with_their_purpose() {
    clean(&silent(tree()), "name in the first line what the file owns");
}

#[test]
fn files_without_docs_are_found() {
    let found = |text: &str| silent(&[Source::snippet("a.rs", text)]);
    found_at(&found("use a;\n//! late"), &[1]);
    found_at(&found(""), &[1]);
    found_at(&found("\n//! Owns a.\n"), &[]);
}
