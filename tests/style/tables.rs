//! A cell of a table holds a value or one short sentence: longer text belongs below the table.

use crate::report::{Finding, clean, found_at};
use crate::source::{Kind, Source, tree};

const WORDS_MAX: usize = 25;

/// Words of a cell; code between backticks is one word.
fn words(cell: &str) -> usize {
    let prose = cell.split('`').step_by(2).collect::<Vec<_>>().join("code");
    prose.split_whitespace().count()
}

/// Cells of a row. A bar between backticks is part of its cell.
fn cells(row: &str) -> Vec<String> {
    let mut code = false;
    let split = |letter: char| {
        code ^= letter == '`';
        letter == '|' && !code
    };
    row.split(split).map(str::to_owned).collect()
}

fn long(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.kind() == Kind::Prose) {
        let mut fenced = false;
        for (line, text) in source.lines() {
            fenced ^= text.trim_start().starts_with("```");
            if fenced || !text.trim_start().starts_with('|') {
                continue;
            }
            let most = cells(text).iter().map(|cell| words(cell)).max().unwrap_or_default();
            if most > WORDS_MAX {
                let what = format!("a cell of {most} words, at most {WORDS_MAX}");
                findings.push(Finding::new(&source.path, line, what));
            }
        }
    }
    findings
}

#[test]
fn cells_of_tables_are_short() {
    clean(&long(tree()), "keep value, verdict and link; move the explanation below the table");
}

#[test]
fn long_cells_are_found() {
    let row = |words: usize| format!("| a |{} |\n", " word".repeat(words));
    let code = "| `a | b` | `one two three` |\n";
    let text = [&row(WORDS_MAX), &row(WORDS_MAX + 1), code, "```\n", &row(40), "```\n"].concat();
    found_at(&long(&[Source::snippet("a.md", &text)]), &[2]);
    found_at(&long(&[Source::snippet("a.rs", &row(40))]), &[]);
}
