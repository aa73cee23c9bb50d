//! How long things may be: functions, files, lines.

use proc_macro2::{Delimiter, TokenTree};

use crate::report::{Finding, clean, found_at};
use crate::source::{Kind, Source, rust, tree};
use crate::tokens::{each, is_group, is_mark, line};

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 500;
/// `lib.rs` and `mod.rs` without a trait: docs, mod, pub use by name.
const INDEX_LINES_MAX: usize = 80;
const COLUMNS_MAX: usize = 100;

/// Functions from `fn` to the closing brace, inside of macros too.
fn long_functions(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in rust(sources) {
        each(source.tokens(), &mut |run, at| {
            let Some((name, first, last)) = function(run, at) else { return };
            let lines = last - first + 1;
            if lines > FUNCTION_LINES_MAX {
                let what = format!("fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}");
                findings.push(Finding::new(&source.path, first, what));
            }
        });
    }
    findings
}

/// Name, first and last line when `run[at]` is the `fn` of a function with a body.
fn function(run: &[TokenTree], at: usize) -> Option<(String, usize, usize)> {
    let (TokenTree::Ident(word), TokenTree::Ident(name)) = (&run[at], run.get(at + 1)?) else {
        return None;
    };
    let rest = || run[at..].iter();
    let body = rest().position(|token| is_group(Some(token), Delimiter::Brace))?;
    let end = rest().position(|token| is_mark(Some(token), ';')).unwrap_or(usize::MAX);
    let TokenTree::Group(group) = &run[at + body] else { return None };
    let last = group.span_close().end().line;
    (word == "fn" && body < end).then(|| (name.to_string(), line(&run[at]), last))
}

fn long_files(sources: &[Source]) -> Vec<Finding> {
    let counted = sources.iter().filter(|it| !matches!(it.kind(), Kind::Prose | Kind::Data));
    counted.filter_map(|source| over(source, FILE_LINES_MAX)).collect()
}

/// `lib.rs` and `mod.rs` of a `src` are tables of contents, or contracts: a file that declares a
/// trait is the contract's home and only the limit of files holds. (A `mod.rs` below `tests` is
/// Cargo's way to say that a file is no test by itself.)
fn long_indexes(sources: &[Source]) -> Vec<Finding> {
    let indexes = rust(sources)
        .filter(|it| it.path.contains("src/") && matches!(it.name(), "lib.rs" | "mod.rs"));
    let plain = indexes.filter(|source| {
        let items = source.syntax().items;
        !items.iter().any(|item| matches!(item, syn::Item::Trait(_)))
    });
    plain.filter_map(|source| over(source, INDEX_LINES_MAX)).collect()
}

fn over(source: &Source, max: usize) -> Option<Finding> {
    let lines = source.text.lines().count();
    let what = || format!("{lines} lines, at most {max}");
    (lines > max).then(|| Finding::new(&source.path, lines, what()))
}

fn long_lines(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|it| !matches!(it.kind(), Kind::Prose | Kind::Data)) {
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
fn functions_have_at_most_70_lines() {
    clean(&long_functions(tree()), "cut the function where a name for the part is obvious");
}

#[test]
fn files_have_at_most_500_lines() {
    clean(&long_files(tree()), "move what has a name of its own into a file of its own");
}

#[test]
fn indexes_have_at_most_80_lines() {
    clean(&long_indexes(tree()), "leave docs, mod and pub use; move the rest into files");
}

#[test]
fn lines_have_at_most_100_columns() {
    clean(&long_lines(tree()), "break the line; a long string goes on with a backslash");
}

#[test]
fn long_functions_are_found_in_items_impls_traits_and_macros() {
    let long = |lines: usize| format!("fn f() {{\n{}}}\n", "    call();\n".repeat(lines - 2));
    let count = |text: String| long_functions(&[Source::snippet("a.rs", &text)]).len();
    assert_eq!((count(long(70)), count(long(71))), (0, 1));
    assert_eq!(count(format!("struct A;\nimpl A {{\n{}}}", long(71))), 1);
    assert_eq!(count(format!("trait A {{\nfn declared();\n{}}}", long(71))), 1);
    assert_eq!(count(format!("proptest! {{\n{}}}", long(71))), 1);
    assert_eq!(count(format!("fn g(callback: fn()) {{ mod_a(); }}\n{}", long(70))), 0);
}

#[test]
fn long_files_indexes_and_lines_are_found() {
    let lines = |count: usize| "//! a\n".repeat(count);
    let file = |text: &str| long_files(&[Source::snippet("a.rs", text)]);
    found_at(&file(&lines(500)), &[]);
    found_at(&file(&lines(501)), &[501]);
    let index = |text: &str| long_indexes(&[Source::snippet("a/src/x/mod.rs", text)]);
    found_at(&index(&lines(80)), &[]);
    found_at(&index(&lines(81)), &[81]);
    found_at(&index(&format!("{}pub trait Device {{}}", lines(81))), &[]);
    let wide = format!("// {}\n// {}ä\n", "x".repeat(97), "x".repeat(97));
    for path in ["a.rs", "scripts/a.sh", "b.cu"] {
        found_at(&long_lines(&[Source::snippet(path, &wide)]), &[2]);
    }
    found_at(&long_lines(&[Source::snippet("a.md", &wide)]), &[]);
}
