//! The width of lines. Clippy limits the length of functions (`clippy.toml`); the length of files
//! has no limit: `cycles` and `fields` count what ties files together.

use crate::report::{Finding, clean, found_at};
use crate::source::{Kind, Source, tree};

const COLUMNS_MAX: usize = 100;

fn long_lines(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| !matches!(source.kind(), Kind::Prose | Kind::Data))
    {
        for (number, text) in source.lines() {
            let columns = text.chars().count();
            if columns > COLUMNS_MAX {
                let what = format!("{columns} columns, at most {COLUMNS_MAX}");
                findings.push(Finding::new(&source.path, number, what));
            }
        }
    }
    findings
}

#[test]
fn lines_have_at_most_100_columns() {
    clean(&long_lines(tree()), "break the line; a long string goes on with a backslash");
}

#[test]
fn long_lines_are_found() {
    let wide = format!("// {}\n// {}ä\n", "x".repeat(97), "x".repeat(97));
    for path in ["a.rs", "scripts/a.sh", "b.cu"] {
        found_at(&long_lines(&[Source::snippet(path, &wide)]), &[2]);
    }
    found_at(&long_lines(&[Source::snippet("a.md", &wide)]), &[]);
}
