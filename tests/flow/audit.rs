//! `scripts/dev audit` reports the advisories of a database that hit the lock file.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

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

/// Exit status and output, with those arguments and these folders for cargo.
fn run(arguments: &[&OsStr], folders: &[(&str, &Path)]) -> (Option<i32>, String) {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new("scripts/dev");
    command.arg("audit").args(arguments).current_dir(repository);
    let output = command.envs(folders.iter().copied()).output().unwrap();
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    (output.status.code(), texts.concat())
}

fn audit(database: &Path) -> (Option<i32>, String) {
    run(&["--database".as_ref(), database.as_os_str()], &[])
}

fn git(folder: &Path, arguments: &[&str]) {
    let author = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
    let mut command = Command::new("git");
    let output = command.current_dir(folder).args(author).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The clone of an earlier time, without history, is brought up to date.
#[test]
fn an_existing_database_is_updated() {
    if Command::new("git").arg("--version").output().is_err() {
        return println!("skipped: a database that is fetched: no git in PATH");
    }
    let (source, home) = (database("libc", "0.0.1"), TempDir::new().unwrap());
    let commit = || {
        git(source.path(), &["add", "--all"]);
        git(source.path(), &["commit", "-q", "-m", "advisories"]);
    };
    git(source.path(), &["init", "-q"]);
    commit();
    let from = format!("file://{}", source.path().display());
    git(home.path(), &["clone", "-q", "--depth", "1", &from, "advisory-db"]);
    for patched in ["0.0.2", "99.0.0"] {
        let later = database("libc", patched);
        let file = Path::new("crates/libc/RUSTSEC-2099-0001.md");
        fs::copy(later.path().join(file), source.path().join(file)).unwrap();
        commit();
    }
    let (code, output) = run(&[], &[("CARGO_HOME", home.path())]);
    if let Some(why) = output.lines().find(|line| line.starts_with("skipped:")) {
        return println!("{why}");
    }
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("RUSTSEC-2099-0001"), "{output}");
}

#[test]
fn an_advisory_against_what_is_locked_is_an_error() {
    let (code, output) = audit(database("libc", "0.0.1").path());
    if let Some(why) = output.lines().find(|line| line.starts_with("skipped:")) {
        return println!("{why}");
    }
    assert_eq!(code, Some(0), "{output}");
    let (code, output) = audit(database("libc", "99.0.0").path());
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("RUSTSEC-2099-0001") && output.contains("libc"), "{output}");
    let (code, output) = audit(database("async-nats", "99.0.0").path());
    assert_eq!(code, Some(0), "only KVBM has it: {output}");
    assert!(output.contains("RUSTSEC-2099-0001") && output.contains("async-nats"), "{output}");
}

/// An audit builds into a shared folder: others find the whole result or none.
#[test]
fn several_at_once_on_a_machine_without_it() {
    let (database, target) = (database("libc", "0.0.1"), TempDir::new().unwrap());
    let arguments: [&OsStr; 2] = ["--database".as_ref(), database.path().as_os_str()];
    // One after another, so that the later ones come while the first builds.
    let one = |position: u64| {
        thread::sleep(Duration::from_millis(1500 * position));
        run(&arguments, &[("CARGO_TARGET_DIR", target.path())])
    };
    let all: Vec<_> = thread::scope(|scope| {
        let started = [0, 1, 2].map(|position| scope.spawn(move || one(position)));
        started.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let skipped = |output: &str| output.lines().any(|line| line.starts_with("skipped:"));
    if all.iter().all(|(_, output)| skipped(output)) {
        return println!("skipped: several audits at once: {}", all[0].1);
    }
    assert!(all.iter().all(|(code, output)| *code == Some(0) && !skipped(output)), "{all:?}");
}

/// A folder on the command line that is no database is refused, not skipped.
#[test]
fn a_folder_that_is_no_database_is_refused() {
    let (code, output) = audit(Path::new("/nonexistent"));
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("/nonexistent is no checkout of"), "{output}");
}
