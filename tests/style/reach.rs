//! No dead files: every Rust file is a crate's root or declared by one that is reached.

use std::collections::BTreeSet;

use syn::{Expr, ExprLit, Item, ItemMod, Lit, Meta};
use toml::{Table, Value};

use crate::report::{Finding, clean, found_at};
use crate::source::{Kind, Source, rust, tree};

fn unreached(sources: &[Source]) -> Vec<Finding> {
    let mut open: Vec<(String, Role)> =
        roots(sources).into_iter().map(|path| (path, Role::Root)).collect();
    let mut reached = BTreeSet::new();
    while let Some((path, role)) = open.pop() {
        let Some(source) = sources.iter().find(|source| source.path == path) else { continue };
        if reached.insert(path.clone()) {
            declared(&source.syntax().items, &home(&path, role), folder(&path), &mut open);
        }
    }
    let dead = rust(sources).filter(|source| !reached.contains(&source.path));
    dead.map(|source| Finding::new(&source.path, 1, "no `mod` declares this file")).collect()
}

/// Where the submodules of a file lie.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// In its folder.
    Root,
    /// In a folder of its name, unless it is a `mod.rs`.
    Module,
}

pub(crate) fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

pub(crate) fn home(path: &str, role: Role) -> String {
    match role {
        Role::Root => folder(path).to_owned(),
        Role::Module if path.ends_with("/mod.rs") => folder(path).to_owned(),
        Role::Module => path.trim_end_matches(".rs").to_owned(),
    }
}

/// Files that the `mod` items may mean; those that do not exist are ignored.
fn declared(items: &[Item], home: &str, beside: &str, open: &mut Vec<(String, Role)>) {
    for item in items {
        let Item::Mod(module) = item else { continue };
        let name = module.ident.to_string();
        match (&module.content, named_path(module)) {
            (Some((_, inner)), _) => declared(inner, &format!("{home}/{name}"), beside, open),
            (None, Some(path)) => open.push((format!("{beside}/{path}"), Role::Root)),
            (None, None) => {
                open.extend(candidates(home, &name).map(|path| (path, Role::Module)));
            }
        }
    }
}

/// Where the file of a module may lie.
pub(crate) fn candidates(home: &str, name: &str) -> [String; 2] {
    [format!("{home}/{name}.rs"), format!("{home}/{name}/mod.rs")]
}

/// The text of `#[path = "..."]`.
fn named_path(module: &ItemMod) -> Option<String> {
    module.attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

/// Crate roots that Cargo finds by itself, and those that manifests name.
pub(crate) fn roots(sources: &[Source]) -> Vec<String> {
    let mut roots = Vec::new();
    for manifest in sources.iter().filter(|source| source.kind() == Kind::Manifest) {
        let folder = folder(&manifest.path);
        let table: Table = manifest.text.parse().expect("manifests are checked elsewhere");
        let within = |path: &str| format!("{folder}/{path}").trim_start_matches('/').to_owned();
        roots.extend(["build.rs", "src/lib.rs", "src/main.rs"].map(within));
        let found = ["src/bin", "tests", "benches", "examples"].map(within);
        let at_home = |source: &&Source| {
            found.iter().filter_map(|home| source.path.strip_prefix(&format!("{home}/"))).any(
                |rest| {
                    !rest.contains('/')
                        || (rest.ends_with("/main.rs") && rest.matches('/').count() == 1)
                },
            )
        };
        roots.extend(rust(sources).filter(at_home).map(|source| source.path.clone()));
        let targets = ["lib", "bin", "test", "bench", "example"].map(|kind| table.get(kind));
        for target in targets.into_iter().flatten() {
            let all = target.as_array().map_or(std::slice::from_ref(target), Vec::as_slice);
            let paths = all.iter().filter_map(|target| target.get("path").and_then(Value::as_str));
            roots.extend(paths.map(within));
        }
    }
    roots
}

#[test]
fn every_rust_file_is_reached() {
    clean(&unreached(tree()), "declare the file with `mod`, or delete it");
}

#[test]
fn dead_files_are_found() {
    let files = [
        ("a/Cargo.toml", "[package]\nname = \"a\"\n[[test]]\nname = \"s\"\npath = \"s/main.rs\"\n"),
        ("a/src/lib.rs", "mod b;\nmod inner { mod c; }\n#[path = \"odd.rs\"]\nmod d;\n"),
        ("a/src/b.rs", "mod deep;"),
        ("a/src/b/deep.rs", ""),
        ("a/src/inner/c.rs", ""),
        ("a/src/odd.rs", ""),
        ("a/s/main.rs", "mod t;"),
        ("a/s/t/mod.rs", "mod u;"),
        ("a/s/t/u.rs", ""),
        ("a/tests/one.rs", ""),
        ("a/src/bin/two/main.rs", ""),
        ("a/src/dead.rs", ""),
        ("a/src/deep.rs", ""),
        ("b/src/lib.rs", "// no manifest"),
    ];
    let sources = files.map(|(path, text)| Source::snippet(path, text));
    let dead: Vec<String> = unreached(&sources).into_iter().map(|source| source.path).collect();
    assert_eq!(dead, ["a/src/dead.rs", "a/src/deep.rs", "b/src/lib.rs"]);
    found_at(&unreached(&sources), &[1, 1, 1]);
}
