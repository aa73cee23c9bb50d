//! A metric is named in one file of Rust: where it is defined.

use std::collections::BTreeMap;

use crate::cycles::is_product;
use crate::report::{Finding, clean, found_at};
use crate::source::{Source, rust, tree};

/// Names of metrics in a line: whole strings of lower case that begin as they all do.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let is_name = |word: &&str| {
        let rest = word.strip_prefix("kvrail_").unwrap_or_default();
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    line.split('"').skip(1).step_by(2).filter(is_name)
}

fn named_twice(sources: &[Source]) -> Vec<Finding> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let mut findings = Vec::new();
    for source in rust(sources)
        .filter(|source| source.path.starts_with("engine/") && is_product(&source.path))
    {
        for (number, line) in source.lines() {
            for name in names(line) {
                let home = *first.entry(name).or_insert(&source.path);
                if home != source.path {
                    let what = format!("{name} is in {home}, too");
                    findings.push(Finding::new(&source.path, number, what));
                }
            }
        }
    }
    findings
}

#[test]
fn a_metric_is_named_in_one_file() {
    let remedy = "take the definition (engine/counters), or name it in engine/metrics/src/families";
    clean(&named_twice(tree()), remedy);
}

#[test]
fn a_metric_of_two_files_is_found() {
    let sources = [
        Source::snippet("engine/a/src/lib.rs", "const A: &str = \"kvrail_hits\";\n"),
        Source::snippet("engine/b/src/lib.rs", "\n(\"hits\", \"kvrail_hits\", \"kvrail\")\n"),
        Source::snippet("engine/b/tests/it.rs", "\"kvrail_hits\"\n"),
    ];
    found_at(&named_twice(&sources), &[2]);
}
