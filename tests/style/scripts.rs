//! Scripts are executable, open with their purpose, and pass the shell's parser.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::report::{Finding, clean, found_at};
use crate::source::{Kind, Source, root, tree};

/// Every shell script of the repository is checked, wherever it lies.
fn broken(sources: &[Source], root: &Path) -> Vec<Finding> {
    let scripts = sources.iter().filter(|source| source.kind() == Kind::Shell);
    scripts.flat_map(|script| faults(script, root)).collect()
}

fn faults(script: &Source, root: &Path) -> Vec<Finding> {
    let path = root.join(&script.path);
    let mut findings = Vec::new();
    let mut find = |line, what: String| findings.push(Finding::new(&script.path, line, what));
    if script.line(1) != "#!/usr/bin/env bash" {
        find(1, "does not begin with `#!/usr/bin/env bash`".into());
    }
    if !script.line(2).starts_with("# ") {
        find(2, "the second line is no comment with its purpose".into());
    }
    let mode = fs::metadata(&path).map_or(0, |about| about.permissions().mode());
    if mode & 0o111 != 0o111 {
        find(1, format!("not executable (mode {:o})", mode & 0o777));
    }
    let parsed = Command::new("bash").arg("-n").arg(&path).output().expect("bash is installed");
    if !parsed.status.success() {
        find(1, String::from_utf8_lossy(&parsed.stderr).trim().to_owned());
    }
    findings
}

#[test]
fn scripts_run_and_open_with_their_purpose() {
    clean(&broken(tree(), &root()), "chmod +x; shebang, then one line of purpose");
}

#[test]
fn the_repository_has_scripts_to_check() {
    let count = tree().iter().filter(|source| source.kind() == Kind::Shell).count();
    assert!(count >= 2, "scripts/dev and .ci/run are not seen as scripts");
}

#[test]
fn broken_scripts_are_found() {
    let root = tempfile::tempdir().unwrap();
    let found = |text: &str, mode: u32| {
        let path = root.path().join("a.sh");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        broken(&[Source::snippet("a.sh", text)], root.path())
    };
    let good = "#!/usr/bin/env bash\n# Prints hello.\necho hello\n";
    found_at(&found(good, 0o755), &[]);
    found_at(&found(good, 0o644), &[1]);
    found_at(&found("#!/bin/sh\necho hello\n", 0o755), &[1, 2]);
    found_at(&found(&format!("{good}if true; then\n"), 0o755), &[1]);
}
