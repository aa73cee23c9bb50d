//! A limit stands in one crate: no two crates state the same number under the same name.
//!
//! A limit is a constant whose name ends in `_MAX`, `_MIN` or `_BYTES`, and that is a number.

use std::collections::BTreeMap;

use syn::{BinOp, Expr, Item, ItemMod, Lit};

use crate::cycles::is_product;
use crate::report::{Finding, clean, found_at};
use crate::source::{Source, rust, tree};

/// A limit: its name and its number.
type Limit = (String, u128);

/// The value of an expression of literals.
fn number(value: &Expr) -> Option<u128> {
    match value {
        Expr::Lit(lit) => match &lit.lit {
            Lit::Int(int) => int.base10_parse().ok(),
            _ => None,
        },
        Expr::Paren(inner) => number(&inner.expr),
        Expr::Binary(both) => {
            let (left, right) = (number(&both.left)?, number(&both.right)?);
            match both.op {
                BinOp::Add(_) => left.checked_add(right),
                BinOp::Sub(_) => left.checked_sub(right),
                BinOp::Mul(_) => left.checked_mul(right),
                BinOp::Shl(_) => left.checked_shl(u32::try_from(right).ok()?),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Limits of a file with their lines; those of tests are not the product's.
fn limits(items: &[Item]) -> Vec<(Limit, usize)> {
    let mut found = Vec::new();
    for item in items {
        match item {
            Item::Const(it) => {
                let name = it.ident.to_string();
                let is_limit = ["_MAX", "_MIN", "_BYTES"].iter().any(|end| name.ends_with(end));
                if let Some(number) = number(&it.expr).filter(|_| is_limit) {
                    found.push(((name, number), it.ident.span().start().line));
                }
            }
            Item::Mod(ItemMod { ident, content: Some((_, inner)), .. }) if ident != "tests" => {
                found.extend(limits(inner));
            }
            _ => {}
        }
    }
    found
}

fn stated_twice(sources: &[Source]) -> Vec<Finding> {
    let mut stated: BTreeMap<Limit, Vec<(&Source, usize)>> = BTreeMap::new();
    for source in rust(sources).filter(|source| is_product(&source.path)) {
        for (limit, line) in limits(&source.syntax().items) {
            stated.entry(limit).or_default().push((source, line));
        }
    }
    let package = |source: &Source| source.path.split("/src/").next().map(str::to_owned);
    let mut findings = Vec::new();
    for ((name, number), places) in &stated {
        let (first, line) = places[0];
        for (source, at) in &places[1..] {
            if package(source) != package(first) {
                let what = format!("{name} = {number} is in {}:{line}, too", first.path);
                findings.push(Finding::new(&source.path, *at, what));
            }
        }
    }
    findings
}

#[test]
fn a_limit_is_a_number_in_one_crate() {
    let remedy = "state it in the lowest crate that both use (or engine/units) and import it; give \
                  limits that have nothing to do with each other names that differ";
    clean(&stated_twice(tree()), remedy);
}

#[test]
fn limits_of_two_crates_are_found_and_others_are_not() {
    let a = "pub const TAIL_BYTES: u32 = 4096;\nconst SHARE: u8 = 4;\nconst DEPTH_MAX: u32 = 7;\n";
    let b = "const TAIL_BYTES: u64 = 4 << 10;\nconst SHARE: u8 = 4;\nconst DEPTH_MAX: u32 = 8;\n";
    let c = "const TAIL_BYTES: usize = a::TAIL_BYTES as usize;\n#[cfg(test)]\nmod tests {\n\
             const TAIL_BYTES: u64 = 4096;\n}\n";
    let sources = [
        Source::snippet("engine/a/src/lib.rs", a),
        Source::snippet("engine/a/src/own.rs", "const TAIL_BYTES: u8 = 2 * 2048;\n"),
        Source::snippet("engine/b/src/lib.rs", b),
        Source::snippet("engine/c/src/lib.rs", c),
        Source::snippet("tests/flow/rig.rs", "const TAIL_BYTES: u64 = 4096;\n"),
    ];
    found_at(&stated_twice(&sources), &[1]);
}
