//! Manifests: one table of lints, one table of versions, and the rooms that each room may import.

use toml::{Table, Value};

use crate::report::{Finding, clean, found_at};
use crate::source::{Kind, Source, tree};

/// Rooms in the order of the data path, each with the rooms it may import. A package that is not
/// here is a finding; `*` stands for every room.
const ROOMS: &[(&str, &[&str])] = &[
    ("memory", &[]),
    ("ring", &["memory", "units"]),
    ("device", &["memory", "ring"]),
    ("cufile", &[]),
    ("layout", &[]),
    ("units", &[]),
    ("counters", &[]),
    ("crc", &[]),
    ("sandbox", &[]),
    ("gpu", &["counters", "cufile", "device", "layout", "memory", "ring"]),
    ("volume", &["crc", "memory", "ring", "store"]),
    ("store", &["counters", "crc", "units"]),
    ("nvme", &["memory"]),
    ("target", &["memory", "nvme", "topology", "volume"]),
    ("topology", &["memory", "nvme"]),
    ("check", &["memory", "nvme", "topology"]),
    ("protocol", &["counters", "ring"]),
    ("poller", &["counters", "crc", "device", "memory", "ring", "store"]),
    ("session", &["counters", "device", "gpu", "memory", "poller", "protocol", "ring", "store"]),
    ("metrics", &["counters", "protocol", "units"]),
    (
        "cli",
        &[
            "client", "device", "gpu", "memory", "metrics", "nvme", "poller", "ring", "sandbox",
            "session", "store", "target", "units", "volume",
        ],
    ),
    ("client", &["crc", "layout", "memory", "protocol", "ring", "store"]),
    ("c", &["client"]),
    ("kvbm", &["client", "memory"]),
    ("python", &["client", "memory"]),
    (
        "bench",
        &[
            "client", "crc", "cufile", "device", "gpu", "memory", "nvme", "poller", "protocol",
            "replay", "ring", "units",
        ],
    ),
    ("replay", &["store"]),
    ("kvrail", &["*"]),
    ("fuzz", &["*"]),
    ("tests", &["*"]),
];

const SECTIONS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// Manifests of packages; the workspace's own is none.
pub(crate) fn packages(sources: &[Source]) -> Vec<(&Source, Table)> {
    let manifests = sources.iter().filter(|source| source.kind() == Kind::Manifest);
    let parsed = manifests.map(|source| {
        let table = source.text.parse::<Table>();
        (source, table.unwrap_or_else(|why| panic!("{}: {why}", source.path)))
    });
    parsed.filter(|(_, table)| table.contains_key("package")).collect()
}

/// Every dependency table of a manifest, those of targets too, with its section's name.
pub(crate) fn dependencies(manifest: &Table) -> Vec<(&str, &Table)> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(Table::values).filter_map(Value::as_table);
    let homes = std::iter::once(manifest).chain(targets);
    let sections = homes.flat_map(|home| SECTIONS.map(|name| (name, home.get(name))));
    sections.filter_map(|(name, table)| Some((name, table?.as_table()?))).collect()
}

fn inherits(value: Option<&Value>) -> bool {
    value.and_then(|entry| entry.get("workspace")).and_then(Value::as_bool) == Some(true)
}

/// The first line that begins with the word.
pub(crate) fn line_of(source: &Source, word: &str) -> usize {
    source.lines().find(|(_, text)| text.starts_with(word)).map_or(1, |(number, _)| number)
}

fn own_lints(sources: &[Source]) -> Vec<Finding> {
    let packages = packages(sources).into_iter();
    let own = packages.filter(|(_, manifest)| !inherits(manifest.get("lints")));
    own.map(|(source, _)| Finding::new(&source.path, 1, "no `[lints] workspace = true`")).collect()
}

fn own_versions(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (source, manifest) in packages(sources) {
        for (section, table) in dependencies(&manifest) {
            for (name, _) in table.iter().filter(|(_, value)| !inherits(Some(value))) {
                let what = format!("{name} in [{section}] is not `workspace = true`");
                findings.push(Finding::new(&source.path, line_of(source, name), what));
            }
        }
    }
    findings
}

fn room(package: &str) -> &str {
    package.strip_prefix("kvrail-").unwrap_or(package)
}

/// Dependencies of the built product between rooms; those of tests alone are free.
fn wrong_way(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (source, manifest) in packages(sources) {
        let name = manifest["package"].get("name").and_then(Value::as_str).unwrap_or_default();
        let Some((_, may)) = ROOMS.iter().find(|(known, _)| *known == room(name)) else {
            let what = format!("package {name} is not in the table of rooms");
            findings.push(Finding::new(&source.path, line_of(source, "name"), what));
            continue;
        };
        let built = dependencies(&manifest).into_iter().filter(|(it, _)| *it != SECTIONS[1]);
        let known = built.flat_map(|(_, table)| table.keys());
        for other in known.filter(|other| other.starts_with("kvrail-")) {
            if !may.contains(&room(other)) && !may.contains(&"*") {
                let what = format!("{} must not import {}", room(name), room(other));
                findings.push(Finding::new(&source.path, line_of(source, other), what));
            }
        }
    }
    findings
}

#[test]
fn packages_inherit_the_lints() {
    clean(&own_lints(tree()), "add `[lints]` with `workspace = true`");
}

#[test]
fn dependencies_are_declared_once() {
    clean(&own_versions(tree()), "put version and features into the root Cargo.toml");
}

#[test]
fn rooms_import_only_the_rooms_of_the_table() {
    clean(&wrong_way(tree()), "pass the data instead, or change the table and ARCHITECTURE.md");
}

#[test]
fn every_room_of_the_table_exists() {
    let packages = packages(tree());
    for (known, _) in ROOMS {
        let ours = |manifest: &Table| {
            let name = manifest["package"].get("name").and_then(Value::as_str);
            name.is_some_and(|name| room(name) == *known)
        };
        assert!(packages.iter().any(|(_, manifest)| ours(manifest)), "no package for {known}");
    }
}

#[test]
fn own_lints_and_versions_are_found() {
    let manifest = |text: &str| [Source::snippet("a/Cargo.toml", text)];
    let bare = manifest("[package]\nname = \"a\"\n");
    found_at(&own_lints(&bare), &[1]);
    let good = manifest("[package]\nname = \"a\"\n[lints]\nworkspace = true\n");
    found_at(&own_lints(&good), &[]);
    found_at(&own_lints(&manifest("[workspace]\n")), &[]);
    let versions = manifest(
        "[package]\nname = \"a\"\n[dependencies]\nb = \"1\"\nc.workspace = true\n\
         [dev-dependencies]\nd = { path = \"d\" }\n[target.'cfg(loom)'.dependencies]\n\
         e = { version = \"2\" }\nf = { workspace = true, features = [\"g\"] }\n",
    );
    found_at(&own_versions(&versions), &[4, 7, 9]);
}

#[test]
fn a_surplus_import_of_a_room_is_found() {
    let manifest = |name: &str, other: &str| {
        let text = format!(
            "[package]\nname = \"{name}\"\n[dependencies]\n{other}.workspace = true\n\
             [dev-dependencies]\nkvrail-bench.workspace = true\n"
        );
        [Source::snippet("a/Cargo.toml", &text)]
    };
    found_at(&wrong_way(&manifest("kvrail-ring", "kvrail-memory")), &[]);
    found_at(&wrong_way(&manifest("kvrail-memory", "kvrail-ring")), &[4]);
    found_at(&wrong_way(&manifest("kvrail-stranger", "libc")), &[2]);
    found_at(&wrong_way(&manifest("kvrail", "kvrail-session")), &[]);
}
