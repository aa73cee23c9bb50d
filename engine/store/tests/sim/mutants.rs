//! The table of planted bugs stands in the code as it is now: each old text once, each test there.

use std::fs;
use std::path::{Path, PathBuf};

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/store/mutants.txt")
}

/// Names of tests as `cargo test` filters them, of the library and of this crate.
fn tests_in(dir: &Path, prefix: &str, names: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("a folder of sources") {
        let path = entry.expect("a readable folder").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
        if path.is_dir() {
            tests_in(&path, &format!("{prefix}{stem}::"), names);
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source");
        let inner = if text.contains("mod tests {") { "tests::" } else { "" };
        for part in text.split("#[test]").skip(1) {
            let name = part.split("fn ").nth(1).and_then(|rest| rest.split('(').next());
            names.push(format!("{prefix}{stem}::{inner}{}", name.expect("a test has a name")));
        }
    }
}

#[test]
fn each_planted_bug_has_its_place_and_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = Vec::new();
    tests_in(&root.join("src"), "", &mut names);
    tests_in(&root.join("tests/sim"), "", &mut names);
    assert!(names.iter().any(|name| name == "crash::crash"), "{names:?}");
    let text = fs::read_to_string(table()).expect("the table");
    let blocks: Vec<Vec<&str>> =
        text.trim().split("\n\n").map(|block| block.lines().collect()).collect();
    assert!(blocks.len() >= 20, "{} planted bugs", blocks.len());
    for (number, block) in (1..).zip(&blocks) {
        let &[name, file, old, new, test] = block.as_slice() else {
            panic!("five lines: {block:?}")
        };
        assert!(name.starts_with(&format!("{number} ")), "{name}: bug {number} is next");
        let source = fs::read_to_string(root.join("src").join(file)).expect(file);
        let places = source.matches(&old.replace("\\n", "\n")).count();
        assert_eq!(places, 1, "{name}: places of the old text in {file}: {old}");
        assert!(old != new, "{name}: nothing is changed");
        let filter = test.split(' ').next().expect("a first word");
        assert!(names.iter().any(|name| name.contains(filter)), "{name}: no test {filter}");
    }
}
