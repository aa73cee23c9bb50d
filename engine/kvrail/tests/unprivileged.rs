//! `kvrail` run by a user without rights: commands that need root fail with that reason, the others
//! work.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

/// `nobody`.
const NOBODY: u32 = 65_534;

const KEY: &str = "DHHC-1:01:Pb0Ce3OtFQmcMeGl9wwF2pSAkHNdOyvN8Vjp9Gqevpdu9aLT:";

/// A folder that everybody can enter, with a copy of the program.
struct Nobody(tempfile::TempDir);

impl Nobody {
    /// None where these tests do not run as root: then their user has no rights already.
    fn new() -> Option<Self> {
        if !rustix::process::getuid().is_root() {
            println!("skipped: only root becomes somebody else");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // By another process: a descriptor open for writing here would be inherited by whatever a
        // test beside this one starts, and the kernel runs no program that is open for writing.
        let copied = std::process::Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_kvrail"))
            .arg(folder.path().join("kvrail"))
            .status();
        assert!(copied.unwrap().success(), "cp failed");
        Some(Self(folder))
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Where a target's record would be.
    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    /// A configuration with a target whose host has this key.
    fn target_file(&self, key: &Path) -> String {
        let text = format!(
            "[target]\nstate_dir = {:?}\n\
             [[target.host]]\nnqn = \"nqn.2026-01.org.example:a\"\ndhchap_key_file = {key:?}\n\
             [[target.subsystem]]\nnqn = \"nqn.2026-01.org.example:kv0\"\n\
             hosts = [\"nqn.2026-01.org.example:a\"]\n\
             [[target.subsystem.namespace]]\nnsid = 1\ndevice = \"serial:nobody/1\"\n\
             [[target.port]]\nid = 1\ntransport = \"loop\"\n\
             subsystems = [\"nqn.2026-01.org.example:kv0\"]\n",
            self.state()
        );
        self.file("kvrail.toml", &text, 0o644).display().to_string()
    }

    /// Words that plan the target of a configuration, in a tree of its own.
    fn plan(&self, file: &str) -> String {
        let tree = self.0.path().join("tree");
        for folder in ["hosts", "subsystems", "ports"] {
            fs::create_dir_all(tree.join(folder)).unwrap();
        }
        format!("target plan --config {file} --tree {}", tree.display())
    }

    fn run(&self, words: &str) -> Assert {
        let mut command = std::process::Command::new(self.0.path().join("kvrail"));
        command.uid(NOBODY).gid(NOBODY).env_clear().env("KVRAIL_CONFIG", "/dev/null");
        command.args(words.split(' ')).current_dir("/");
        Command::from_std(command).assert()
    }
}

#[test]
fn a_target_needs_root_and_says_so() {
    let Some(nobody) = Nobody::new() else { return };
    let state = nobody.state();
    let file = nobody.target_file(&nobody.file("key", KEY, 0o600));
    for verb in ["apply", "teardown"] {
        let refused = nobody.run(&format!("target {verb} --config {file}")).code(1);
        let remedy = contains("remedy: run as root");
        refused.stderr(contains(state.to_str().unwrap()).and(contains("denied")).and(remedy));
    }
    let status = nobody.run(&format!("target status --config {file}")).code(3);
    status.stderr(contains("configfs is not mounted"));
    // A tree he can read, a key he cannot.
    let unreadable =
        contains("target.host.0.dhchap_key_file = ").and(contains("Permission denied"));
    nobody.run(&nobody.plan(&file)).code(3).stderr(unreadable.and(contains("mode 0600")));
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let Some(nobody) = Nobody::new() else { return };
    for mode in [0o640, 0o604] {
        let key = nobody.file("key", KEY, mode);
        let words = nobody.plan(&nobody.target_file(&key));
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvrail"));
        let refused = command.env("KVRAIL_CONFIG", "/dev/null").args(words.split(' ')).assert();
        let stderr = String::from_utf8(refused.code(3).get_output().stderr.clone()).unwrap();
        assert!(stderr.contains(&format!("mode {mode:04o}")), "{stderr}");
        let remedy = format!("chmod 0600 {}", key.display());
        assert!(stderr.contains(&remedy) && !stderr.contains(KEY), "{stderr}");
    }
}

#[test]
fn looking_needs_no_root() {
    let Some(nobody) = Nobody::new() else { return };
    nobody.run("topology").success().stdout(contains("machine\n"));
    for purpose in ["serve", "target", "host", "gpu", "bench"] {
        let ended = nobody.run(&format!("check --for {purpose} --format json"));
        let code = ended.get_output().status.code().unwrap();
        assert!([0, 6, 7].contains(&code), "{purpose}: {code}");
        let report: Value = serde_json::from_slice(&ended.get_output().stdout).unwrap();
        assert_eq!(report["purpose"], purpose);
    }
}
