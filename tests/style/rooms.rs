//! The table of rooms in ARCHITECTURE.md has the imports of each package's manifest.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use crate::report::{Finding, clean, found_at};
use crate::source::{Kind, Source, tree};

/// Rooms that a room imports; by its folder.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Rows of four cells whose first is a folder: the rest of the row's line, with its number.
fn rows(document: &Source) -> BTreeMap<String, (usize, BTreeSet<String>)> {
    let row = |(line, text): (usize, &str)| {
        let cells: Vec<&str> = text.trim_matches('|').split('|').map(str::trim).collect();
        let [folder, _, _, imports] = cells[..] else { return None };
        let folder = folder.strip_prefix('`')?.strip_suffix('`')?;
        let imports = imports.split(',').map(str::trim).filter(|room| !room.is_empty());
        Some((folder.to_owned(), (line, imports.map(str::to_owned).collect())))
    };
    document.lines().filter_map(row).collect()
}

/// Imports in the manifests.
fn built(sources: &[Source]) -> Imports {
    let manifests = sources.iter().filter(|source| source.kind() == Kind::Manifest);
    let parsed = manifests.filter_map(|source| {
        let table = source.text.parse::<Table>().ok()?;
        let folder = source.path.strip_suffix("/Cargo.toml")?;
        table.get("package")?;
        let known = table.get("dependencies").and_then(Value::as_table);
        let names = known.into_iter().flat_map(Table::keys);
        let rooms = names.filter_map(|name| name.strip_prefix("kvrail-")).map(str::to_owned);
        Some((folder.to_owned(), rooms.collect()))
    });
    parsed.collect()
}

fn outdated(sources: &[Source]) -> Vec<Finding> {
    let document = sources.iter().find(|source| source.path == "ARCHITECTURE.md");
    let Some(document) = document else { return Vec::new() };
    let rows = rows(document);
    let mut findings = Vec::new();
    for (folder, imports) in built(sources) {
        let (line, row) = rows.get(&folder).cloned().unwrap_or_default();
        if line == 0 {
            findings.push(Finding::new(&document.path, 1, format!("no row for {folder}")));
        } else if !row.contains("all") && row != imports {
            let what = format!("{folder} imports {imports:?}, the row has {row:?}");
            findings.push(Finding::new(&document.path, line, what));
        }
    }
    findings
}

#[test]
fn the_table_of_rooms_is_true() {
    clean(&outdated(tree()), "make the row in ARCHITECTURE.md match the manifest");
}

#[test]
fn rows_that_are_not_true_are_found() {
    let manifest = |name: &str, imports: &str| {
        let text = format!("[package]\nname = \"kvrail-{name}\"\n[dependencies]\n{imports}");
        Source::snippet(&format!("engine/{name}/Cargo.toml"), &text)
    };
    let rows = "| room | owns | not | imports |\n| `engine/a` | x | y | |\n\
                | `engine/b` | x | y | a |\n| `engine/d` | x | y | all |\n\
                | `engine/e` | x | y | a |\n";
    let sources = [
        Source::snippet("ARCHITECTURE.md", rows),
        manifest("a", "serde.workspace = true\n"),
        manifest("b", "kvrail-a.workspace = true\n"),
        manifest("c", ""),
        manifest("d", "kvrail-a.workspace = true\n"),
        manifest("e", "kvrail-b.workspace = true\n"),
    ];
    found_at(&outdated(&sources), &[1, 5]);
}
