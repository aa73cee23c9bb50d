//! A metric is named in one file of Rust, and a counter is a field of one struct: where it is
//! defined.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::Item;

use crate::cycles::is_product;
use crate::report::{Finding, clean, found_at};
use crate::source::{Source, rust, tree};
use crate::tokens::is_mark;

/// Fields that a struct may have in common with a table of counters: short names repeat.
const COMMON_MAX: usize = 2;

/// Names of metrics in a line: whole strings of lower case that begin as they all do.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let is_name = |word: &&str| {
        let rest = word.strip_prefix("kvrail_").unwrap_or_default();
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    line.split('"').skip(1).step_by(2).filter(is_name)
}

/// Files of the sidecar.
fn engine(sources: &[Source]) -> impl Iterator<Item = &Source> {
    rust(sources).filter(|source| source.path.starts_with("engine/") && is_product(&source.path))
}

fn named_twice(sources: &[Source]) -> Vec<Finding> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let mut findings = Vec::new();
    for source in engine(sources) {
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

/// The names of a `counters!` table: the first word of each row.
fn rows(table: TokenStream) -> BTreeSet<String> {
    let groups = table.into_iter().filter_map(|token| match token {
        TokenTree::Group(group) => Some(group.stream().into_iter().collect::<Vec<_>>()),
        _ => None,
    });
    let body = groups.last().unwrap_or_default();
    let begins = |at: usize| at == 0 || is_mark(body.get(at - 1), ';');
    let words = body.iter().enumerate().filter(|(at, _)| begins(*at));
    words.map(|(_, word)| word.to_string()).collect()
}

/// The tables of a file.
fn tables(source: &Source) -> Vec<BTreeSet<String>> {
    let tables = source.syntax().items.into_iter().filter_map(|item| match item {
        Item::Macro(it) if it.mac.path.is_ident("counters") => Some(rows(it.mac.tokens)),
        _ => None,
    });
    tables.collect()
}

fn counted_twice(sources: &[Source]) -> Vec<Finding> {
    let homes = engine(sources).filter(|source| source.text.contains("counters! {"));
    let tables: Vec<_> = homes.flat_map(tables).collect();
    // To parse every file takes seconds.
    let may_repeat = |source: &&Source| {
        let has = |name: &&String| source.text.contains(&format!("{name}: "));
        tables.iter().any(|table| table.iter().filter(has).count() > COMMON_MAX)
    };
    let mut findings = Vec::new();
    for source in engine(sources).filter(may_repeat) {
        for item in source.syntax().items {
            let Item::Struct(item) = item else { continue };
            let fields = item.fields.iter().filter_map(|field| field.ident.as_ref());
            let fields: BTreeSet<_> = fields.map(ToString::to_string).collect();
            for table in &tables {
                let common: Vec<_> = table.intersection(&fields).map(String::as_str).collect();
                if common.len() > COMMON_MAX {
                    let what = format!("{} repeats counters: {}", item.ident, common.join(", "));
                    let line = item.ident.span().start().line;
                    findings.push(Finding::new(&source.path, line, what));
                }
            }
        }
    }
    findings
}

#[test]
fn a_counter_is_a_field_of_one_struct() {
    clean(&counted_twice(tree()), "use the struct of its table (engine/counters)");
}

#[test]
fn a_struct_that_repeats_a_table_is_found() {
    let rows = ["hits: Counter", "puts: Part(\"b\")", "drops: Gauge"];
    let rows = rows.map(|row| format!("{row}, \"kvrail_it\", \"It.\";\n")).concat();
    let table = format!("counters! {{\n/// Doc.\nACounters {{\n{rows}}}\n}}\n");
    let found = |text: &str| {
        let table = Source::snippet("engine/counters/src/a.rs", &table);
        counted_twice(&[table, Source::snippet("engine/b/src/lib.rs", text)])
    };
    found_at(&found("\nstruct A { hits: u64, puts: u64, drops: u64, other: u8 }"), &[2]);
    found_at(&found("struct A { hits: u64, puts: u64 }"), &[]);
    found_at(&found("struct A { counters: ACounters<u64> }"), &[]);
}
