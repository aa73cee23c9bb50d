//! Sources of the product: only packages of the registry with a checksum in the lock file, under
//! licences that allow redistribution with ours, none of them in two versions.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::report::{Finding, clean, found_at};
use crate::source::root;

/// Licences that require attribution only.
const LICENCES: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// A licence that binds authors of changes to its files: fine for a tool, not for the product.
const OF_TOOLS: &str = "MPL-2.0";

/// Packages that are shipped.
const SHIPPED: [&str; 3] = ["kvrail", "kvrail-c", "kvrail-python"];

/// Packages that are refused, and their replacements (docs/decisions/project.md).
const REFUSED: [(&str, &str); 5] = [
    ("core_affinity", "engine/memory/src/affinity.rs"),
    ("hugepage-rs", "engine/memory/src/region.rs"),
    ("ctrlc", "signal-hook"),
    ("openssl-sys", "nothing: no TLS here"),
    ("liburing-sys", "io-uring"),
];

const LOCK: &str = "Cargo.lock";

/// Whether these terms allow a package: `OR` leaves a choice, `AND` does not, and `/` is an old
/// word for `OR`.
fn allows(terms: &str, allowed: &[&str]) -> bool {
    let terms = terms.replace('/', " OR ");
    let mut rest: Vec<&str> = Vec::new();
    for word in terms.split_whitespace() {
        let inner = word.trim_start_matches('(');
        rest.extend(std::iter::repeat_n("(", word.len() - inner.len()));
        let name = inner.trim_end_matches(')');
        rest.push(name);
        rest.extend(std::iter::repeat_n(")", inner.len() - name.len()));
    }
    let mut words = rest.into_iter().peekable();
    either(&mut words, allowed) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::vec::IntoIter<&'a str>>;

fn either(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut all = both(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        all |= both(words, allowed);
    }
    all
}

fn both(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut all = single(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        all &= single(words, allowed);
    }
    all
}

fn single(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let Some(word) = words.next() else { return false };
    if word == "(" {
        let inner = either(words, allowed);
        return words.next() == Some(")") && inner;
    }
    let exception = words.next_if_eq(&"WITH").and_then(|_| words.next());
    let name =
        exception.map_or_else(|| word.to_owned(), |exception| format!("{word} WITH {exception}"));
    allowed.contains(&name.as_str())
}

/// Cargo's metadata of the packages that this machine builds. It fetches nothing.
fn graph() -> Value {
    let mut cargo = Command::new(env!("CARGO"));
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    cargo.args(["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform"]);
    let output = cargo.arg(triple).current_dir(root()).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Identifiers of the packages whose code is in the shipped ones: without tests, build scripts, and
/// macros.
fn shipped(graph: &Value) -> BTreeSet<&str> {
    let is_macro = |package: &Value| {
        list(package, "targets")
            .iter()
            .any(|target| list(target, "kind").contains(&"proc-macro".into()))
    };
    let packages: BTreeMap<&str, &Value> =
        list(graph, "packages").iter().map(|package| (text(package, "id"), package)).collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&graph["resolve"], "nodes").iter().map(|node| (text(node, "id"), node)).collect();
    let begin = packages.iter().filter(|(_, it)| SHIPPED.contains(&text(it, "name")));
    let mut waiting: Vec<&str> = begin.map(|(id, _)| *id).collect();
    let mut seen = BTreeSet::new();
    while let Some(one) = waiting.pop() {
        if is_macro(packages[one]) || !seen.insert(one) {
            continue;
        }
        let built = list(nodes[one], "deps").iter().filter(|dependency| {
            list(dependency, "dep_kinds").iter().any(|kind| kind["kind"].is_null())
        });
        waiting.extend(built.map(|dependency| text(dependency, "pkg")));
    }
    seen
}

/// Packages from elsewhere under other terms, refused, or without a checksum.
fn unfit(graph: &Value, lock: &str) -> Vec<Finding> {
    let shipped = shipped(graph);
    let mut findings = Vec::new();
    for package in list(graph, "packages").iter().filter(|package| !package["source"].is_null()) {
        let (name, terms) = (text(package, "name"), text(package, "license"));
        let what = format!("{name} {}", text(package, "version"));
        let mut find = |why: String| findings.push(Finding::new(LOCK, 1, format!("{what}: {why}")));
        if !text(package, "source").starts_with("registry+") {
            find(format!("comes from {}", package["source"]));
        }
        let is_shipped = shipped.contains(text(package, "id"));
        let as_tool = !is_shipped && allows(terms, &[OF_TOOLS]);
        if !allows(terms, &LICENCES) && !as_tool {
            find(format!("its licence is {terms:?}"));
        }
        if let Some((_, instead)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
            find(format!("is refused; there is {instead}"));
        }
        let entry = format!("name = \"{name}\"\nversion = \"{}\"\n", text(package, "version"));
        let entry = lock.split_once(&entry).map_or("", |(_, rest)| rest);
        if !entry.split("[[package]]").next().is_some_and(|rest| rest.contains("checksum = ")) {
            find("has no checksum".to_owned());
        }
    }
    findings
}

/// Packages that are shipped in two versions.
fn twice(graph: &Value) -> Vec<Finding> {
    let shipped = shipped(graph);
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in
        list(graph, "packages").iter().filter(|package| shipped.contains(text(package, "id")))
    {
        versions.entry(text(package, "name")).or_default().insert(text(package, "version"));
    }
    let twice = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
    twice.map(|(name, all)| Finding::new(LOCK, 1, format!("{name} is there as {all:?}"))).collect()
}

#[test]
fn what_it_is_built_from_may_be_passed_on() {
    let lock = std::fs::read_to_string(root().join(LOCK)).expect("the lock file");
    let graph = graph();
    assert!(shipped(&graph).len() > 100, "{}", shipped(&graph).len());
    let remedy =
        "take another package, or add a licence that requires attribution only to LICENCES";
    clean(&unfit(&graph, &lock), remedy);
}

#[test]
fn terms_are_read() {
    let fit =
        ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR (MIT AND ISC)", "Apache-2.0 WITH LLVM-exception"];
    for terms in fit {
        assert!(allows(terms, &LICENCES), "{terms}");
    }
    for terms in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT MIT", "MIT WITH Foo", OF_TOOLS] {
        assert!(!allows(terms, &LICENCES), "{terms}");
    }
}

/// A graph of the shipped package and one other.
fn made_up(name: &str, terms: &str, source: &str) -> Value {
    let package = |name: &str, terms: &str, source: Value| {
        serde_json::json!({
            "id": name, "name": name, "version": "1.0.0", "license": terms, "source": source,
            "targets": [],
        })
    };
    serde_json::json!({
        "packages": [
            package("kvrail", "Apache-2.0", Value::Null),
            package(name, terms, source.into()),
        ],
        "resolve": {"nodes": [
            {"id": "kvrail", "deps": [{"pkg": name, "dep_kinds": [{"kind": null}]}]},
            {"id": name, "deps": []},
        ]},
    })
}

#[test]
fn packages_that_do_not_do_are_found() {
    let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"0\"\n";
    let find = |name: &str, terms: &str, source: &str| unfit(&made_up(name, terms, source), lock);
    found_at(&find("a", "MIT", "registry+x"), &[]);
    found_at(&find("a", "GPL-3.0", "registry+x"), &[1]);
    found_at(&find("a", OF_TOOLS, "registry+x"), &[1]);
    found_at(&find("a", "MIT", "git+x"), &[1]);
    // Refused, and without a checksum.
    found_at(&find("ctrlc", "MIT", "registry+x"), &[1, 1]);
    let mut graph = made_up("a", "MIT", "registry+x");
    found_at(&twice(&graph), &[]);
    let mut other = graph["packages"][1].clone();
    (other["id"], other["version"]) = ("a2".into(), "2.0.0".into());
    graph["packages"].as_array_mut().expect("a list").push(other);
    let node = serde_json::json!({"id": "a2", "deps": []});
    graph["resolve"]["nodes"].as_array_mut().expect("a list").push(node);
    let dependency = serde_json::json!({"pkg": "a2", "dep_kinds": [{"kind": null}]});
    graph["resolve"]["nodes"][0]["deps"].as_array_mut().expect("a list").push(dependency);
    found_at(&twice(&graph), &[1]);
}

#[test]
fn packages_are_shipped_once() {
    let remedy = "bring those that need the older version up to date, or do without";
    clean(&twice(&graph()), remedy);
}
