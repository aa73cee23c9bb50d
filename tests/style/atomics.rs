//! Atomic orderings stronger than relaxed name the access that they pair with.

use crate::report::{Finding, clean, found_at};
use crate::source::{Source, rust, tree};
use crate::tokens::{each, is_mark, is_word, line};

const ORDERINGS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

fn unpaired(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in rust(sources) {
        each(source.tokens(), &mut |run, at| {
            let path = is_word(run.get(at), "Ordering") && is_mark(run.get(at + 1), ':');
            let strong = ORDERINGS.iter().find(|name| is_word(run.get(at + 3), name));
            let (true, Some(name)) = (path, strong) else { return };
            let number = line(&run[at]);
            if !paired(source, number) {
                let what = format!("Ordering::{name} names no partner");
                findings.push(Finding::new(&source.path, number, what));
            }
        });
    }
    findings
}

/// Whether the line, or the comment right above its statement, names the paired access.
fn paired(source: &Source, number: usize) -> bool {
    let names_pair = |number: usize| {
        let (_, comment) = source.line(number).split_once("//").unwrap_or_default();
        comment.to_lowercase().contains("pair")
    };
    let comments = (1..number).rev().skip_while(|line| {
        let text = source.line(*line).trim();
        !text.starts_with("//") && !text.is_empty() && !text.ends_with([';', '{', '}'])
    });
    let mut above = comments.take_while(|line| source.line(*line).trim().starts_with("//"));
    names_pair(number) || above.any(names_pair)
}

#[test]
fn atomic_orderings_name_their_partner() {
    clean(&unpaired(tree()), "write `// pairs with ...` behind it or above its statement");
}

#[test]
fn unpaired_orderings_are_found() {
    let text = "fn f() {
    a.load(Ordering::Acquire);
    a.load(Ordering::Acquire); // pairs with the store in g
    // Pairs with f.
    a
        .store(1, Ordering::Release);
    a.load(Ordering::Relaxed);
    x.sort_by(|a, b| Ordering::Less);
    // a comment
    fence(Ordering::SeqCst);
}";
    found_at(&unpaired(&[Source::snippet("a.rs", text)]), &[2, 10]);
}
