//! `scripts/dev audit`: what a database of advisories has against the lock file is said.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A database with one advisory: against all releases of a package before a version.
fn database(package: &str, patched: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("crates").join(package);
    fs::create_dir_all(&home).unwrap();
    let text = format!(
        "```toml\n[advisory]\nid = \"RUSTSEC-2099-0001\"\npackage = \"{package}\"\n\
         date = \"2099-01-01\"\n\n[versions]\npatched = [\">= {patched}\"]\n```\n\n\
         # Made up\n\nFor a test.\n"
    );
    fs::write(home.join("RUSTSEC-2099-0001.md"), text).unwrap();
    folder
}

/// How it ends, and what it says.
fn audit(database: &Path) -> (Option<i32>, String) {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new("scripts/dev");
    command.args(["audit", "--database"]).arg(database).current_dir(repository);
    let output = command.output().unwrap();
    let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    (output.status.code(), said.concat())
}

#[test]
fn an_advisory_against_what_is_locked_is_an_error() {
    let (code, said) = audit(database("libc", "0.0.1").path());
    if let Some(why) = said.lines().find(|line| line.starts_with("skipped:")) {
        return println!("{why}");
    }
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = audit(database("libc", "99.0.0").path());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("RUSTSEC-2099-0001") && said.contains("libc"), "{said}");
}

/// Who names a folder means it: one that is no database is refused, not skipped.
#[test]
fn a_folder_that_is_no_database_is_refused() {
    let (code, said) = audit(Path::new("/nonexistent"));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("/nonexistent is no checkout of"), "{said}");
}
