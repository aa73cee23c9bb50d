//! Dependencies that a manifest declares and its package does not name.

use std::collections::HashSet;

use proc_macro2::TokenTree;

use crate::manifest::{dependencies, line_of, packages};
use crate::report::{Finding, clean, found_at};
use crate::source::{Kind, Source, tree};
use crate::tokens;

/// The folder of a package, from its manifest's path.
fn folder(manifest: &Source) -> &str {
    manifest.path.strip_suffix("Cargo.toml").expect("a manifest")
}

/// Every word of the Rust files below a folder.
fn words(sources: &[Source], folder: &str) -> HashSet<String> {
    let mut words = HashSet::new();
    let own = |source: &&Source| source.kind() == Kind::Rust && source.path.starts_with(folder);
    for source in sources.iter().filter(own) {
        tokens::each(source.tokens(), &mut |run, at| {
            if let TokenTree::Ident(ident) = &run[at] {
                words.insert(ident.to_string());
            }
        });
    }
    words
}

fn unused(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (source, manifest) in packages(sources) {
        let words = words(sources, folder(source));
        let names = dependencies(&manifest).into_iter().flat_map(|(_, table)| table.keys());
        for name in names.filter(|name| !words.contains(&name.replace('-', "_"))) {
            let what = format!("{name} is declared and used by no file of the package");
            findings.push(Finding::new(&source.path, line_of(source, name), what));
        }
    }
    findings
}

#[test]
fn no_dependency_is_unused() {
    clean(&unused(tree()), "remove it from the manifest");
}

#[test]
fn an_unused_dependency_is_found() {
    let manifest = "[package]\nname = \"a\"\n[dependencies]\nb-c.workspace = true\n\
                    [dev-dependencies]\nd.workspace = true\n";
    let sources = |code: &str| {
        [Source::snippet("a/Cargo.toml", manifest), Source::snippet("a/src/lib.rs", code)]
    };
    found_at(&unused(&sources("use b_c::E;\nmod tests { use d; }")), &[]);
    found_at(&unused(&sources("use b_c::E; // d")), &[6]);
    found_at(&unused(&sources("fn b() {}")), &[4, 6]);
}
