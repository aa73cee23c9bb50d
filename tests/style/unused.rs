//! Dependencies that a manifest declares and its package does not name.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use proc_macro2::TokenTree;

use crate::manifest::{dependencies, line_of, packages};
use crate::report::{Finding, clean, found_at};
use crate::source::{Kind, Source, tree};
use crate::tokens;

/// The folder of a package, from its manifest's path.
fn folder(manifest: &Source) -> &str {
    manifest.path.strip_suffix("Cargo.toml").expect("a manifest")
}

/// The folders of modules that a file takes from elsewhere: `#[path = "../x/mod.rs"] mod x;`.
fn taken(source: &Source) -> impl Iterator<Item = PathBuf> {
    let paths = source.text.lines().filter_map(|line| line.trim().strip_prefix("#[path = \""));
    let folders = paths.filter_map(|rest| rest.strip_suffix("/mod.rs\"]"));
    folders.map(|folder| {
        let mut whole = Path::new(&source.path).parent().expect("a file").to_owned();
        for part in Path::new(folder) {
            if part == ".." {
                assert!(whole.pop(), "{}: a path out of the tree", source.path);
            } else {
                whole.push(part);
            }
        }
        whole
    })
}

/// Every word of the Rust files below a folder, and of the modules that these take from elsewhere.
fn words(sources: &[Source], folder: &str) -> HashSet<String> {
    let mut words = HashSet::new();
    let rust = || sources.iter().filter(|source| source.kind() == Kind::Rust);
    let of_package = |source: &&Source| source.path.starts_with(folder);
    let taken: Vec<PathBuf> = rust().filter(of_package).flat_map(taken).collect();
    let is_taken = |source: &Source| taken.iter().any(|at| Path::new(&source.path).starts_with(at));
    for source in rust().filter(|source| of_package(source) || is_taken(source)) {
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
    let [manifest, taker] = sources("#[path = \"../../e/room/mod.rs\"]\nmod room;");
    let room = Source::snippet("e/room/part.rs", "use b_c::E;\nuse d;");
    found_at(&unused(&[manifest, taker, room]), &[]);
}
