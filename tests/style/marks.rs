//! Marks of hasty or foreign text.

use crate::report::{Finding, clean, found_at};
use crate::source::{Source, rust, tree};
use crate::tokens::{each, is_mark, is_word, line};

/// Folders of one person's machine, in two parts each, so that this file has none.
const MACHINES: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// Attributes, within `cfg_attr` too, that switch a lint or a test off.
fn silenced(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in rust(sources) {
        each(source.tokens(), &mut |run, at| {
            let mut begin = at + 1;
            begin += usize::from(is_mark(run.get(begin), '!'));
            let (true, Some(proc_macro2::TokenTree::Group(attribute))) =
                (is_mark(run.get(at), '#'), run.get(begin))
            else {
                return;
            };
            each(attribute.stream(), &mut |inside, at| {
                for word in ["allow", "ignore"] {
                    if is_word(inside.get(at), word) {
                        let what = format!("the attribute {word}");
                        findings.push(Finding::new(&source.path, line(&inside[at]), what));
                    }
                }
            });
        });
    }
    findings
}

/// Absolute paths below a home folder: after a letter, digit or dot they are part of a longer path
/// or an address, which is fine.
fn machine_paths(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        for (number, text) in source.lines() {
            let begins = |(at, _): &(usize, &str)| {
                !text[..*at].ends_with(|it: char| it.is_alphanumeric() || "._-}*".contains(it))
            };
            let mut found = MACHINES.iter().flat_map(|path| text.match_indices(path));
            if let Some((_, path)) = found.find(begins) {
                findings.push(Finding::new(&source.path, number, format!("a path {path}")));
            }
        }
    }
    findings
}

#[test]
fn no_lint_is_allowed_and_no_test_is_ignored() {
    clean(&silenced(tree()), "use #[expect(lint, reason = ...)]; let a test print why it skips");
}

#[test]
fn no_paths_of_one_machine() {
    clean(&machine_paths(tree()), "use a path relative to the repository, or a temporary folder");
}

#[test]
fn silenced_lints_and_tests_are_found() {
    let text = "#![allow(dead_code)]
#[ignore = \"slow\"]
fn a() {}
#[cfg_attr(miri, ignore)]
fn b() {}
#[expect(dead_code, reason = \"allow\")]
fn allow(ignore: u8) { allow(ignore) }";
    found_at(&silenced(&[Source::snippet("a.rs", text)]), &[1, 2, 4]);
}

#[test]
fn machine_paths_are_found_and_longer_paths_are_not() {
    let [home, root, ..] = MACHINES;
    let text = format!("a {home}me\nx{root}y https://a.b{home}c\n\"{root}\n");
    found_at(&machine_paths(&[Source::snippet("a.md", &text)]), &[1, 3]);
}
