//! `kvrail target` as an operator meets it, on a machine without a target.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

const WISH: &str = include_str!("target-wish.toml");

struct Ground {
    folder: tempfile::TempDir,
}

impl Ground {
    fn new(wish: &str) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for directory in ["tree/hosts", "tree/subsystems", "tree/ports"] {
            fs::create_dir_all(folder.path().join(directory)).unwrap();
        }
        let text = format!(
            "[target]\nconfigfs = {:?}\nstate_dir = {:?}\n{wish}",
            folder.path().join("tree"),
            folder.path().join("state")
        );
        fs::write(folder.path().join("kvrail.toml"), text).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, words: &[&str]) -> Assert {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvrail"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KVRAIL_") {
                command.env_remove(name);
            }
        }
        command.arg("target").args(words).arg("--config").arg(self.path("kvrail.toml")).assert()
    }
}

/// A tree somebody has, as plain files.
fn somebodys(tree: &Path) {
    let put = |path: &str, text: &str| {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let subsystem = "subsystems/nqn.2020-01.org.other:s";
    put(&format!("{subsystem}/attr_allow_any_host"), "1\n");
    put(&format!("{subsystem}/namespaces/1/device_path"), "/dev/nowhere\n");
    put(&format!("{subsystem}/namespaces/1/enable"), "1\n");
    put("ports/1/addr_trtype", "tcp\n");
    put("ports/1/addr_traddr", "192.0.2.1\n");
    fs::create_dir_all(tree.join("ports/1/subsystems")).unwrap();
    let link = tree.join("ports/1/subsystems/nqn.2020-01.org.other:s");
    std::os::unix::fs::symlink(tree.join(subsystem), link).unwrap();
}

#[test]
fn without_a_wish_there_is_nothing_to_apply_or_undo() {
    let ground = Ground::new("");
    ground
        .run(&["apply"])
        .code(2)
        .stderr(contains("exports nothing").and(contains("config default")));
    ground.run(&["export"]).code(2).stderr(contains("exports nothing"));
    ground
        .run(&["plan"])
        .code(2)
        .stderr(contains("exports nothing").and(contains("target teardown")));
    ground.run(&["teardown"]).success().stdout(contains("nothing to do"));
    let planned = contains("made by kvrail: 0").and(contains("as planned"));
    ground.run(&["status"]).success().stdout(planned);
    fs::remove_dir_all(ground.path("tree")).unwrap();
    ground.run(&["status"]).success().stdout(contains("as planned"));
}

#[test]
fn a_device_that_is_not_there_is_refused_with_key_and_remedy() {
    let ground = Ground::new(WISH);
    for verb in ["plan", "apply", "export"] {
        let refused = ground.run(&[verb]).code(3);
        refused.stderr(
            contains("target.subsystem.0.namespace.0.device = serial:nobody/1")
                .and(contains("no NVMe namespace"))
                .and(contains("remedy:")),
        );
    }
    let status = ground.run(&["status", "--format", "json"]).code(3);
    let status = status.stderr(contains("serial:nobody/1").and(contains("kvrail devices")));
    let status: Value = serde_json::from_slice(&status.get_output().stdout).unwrap();
    assert_eq!(status["as_planned"], false);
    assert!(status["problem"].as_str().unwrap().contains("serial:nobody/1"));
    assert_eq!(fs::read_dir(ground.path("tree/subsystems")).unwrap().count(), 0);
}

#[test]
fn a_bad_wish_is_refused_like_every_bad_configuration() {
    let ground = Ground::new(&WISH.replace("[\"nqn.2026-01.org.example:a\"]", "[]"));
    let refused = ground.run(&["plan", "--format", "json"]).code(2);
    let error: Value = serde_json::from_slice(&refused.get_output().stderr).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("target.subsystem.0.hosts = []"), "{message}");
    assert!(message.contains("kvrail.toml:"), "{message}");
}

/// The key, not what is in it, and the mode that is wrong.
#[test]
fn a_key_that_others_may_read_is_refused() {
    let key = "[[target.host]]\nnqn = \"nqn.2026-01.org.example:a\"\ndhchap_key_file = \"KEY\"\n";
    let ground = Ground::new("");
    let file = ground.path("key");
    fs::write(&file, "DHHC-1:01:Pb0Ce3OtFQmcMeGl9wwF2pSAkHNdOyvN8Vjp9Gqevpdu9aLT:").unwrap();
    let mut text = fs::read_to_string(ground.path("kvrail.toml")).unwrap();
    text.push_str(&key.replace("KEY", file.to_str().unwrap()));
    fs::write(ground.path("kvrail.toml"), text + WISH).unwrap();
    for mode in [0o640, 0o604] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        for verb in ["plan", "apply"] {
            let refused = ground.run(&[verb]).code(3);
            let named = contains("target.host.0.dhchap_key_file = ");
            let why = contains(format!("mode {mode:04o}")).and(contains("chmod 0600"));
            refused.stderr(named.and(why).and(contains("Pb0Ce").not()));
        }
    }
    fs::remove_file(&file).unwrap();
    ground.run(&["apply"]).code(3).stderr(contains("cannot be read").and(contains("mode 0600")));
}

/// As far as a host without these drives and cards can: what is refused is the host's, not theirs.
#[test]
fn the_examples_are_valid_configurations() {
    for text in [
        include_str!("../../../config/examples/target.toml"),
        include_str!("../../../config/examples/target-offload.toml"),
    ] {
        let ground = Ground::new(text);
        let refused = ground.run(&["plan"]).code(3);
        refused.stderr(contains("target.subsystem.0.namespace.0.device = pci:0000:01:00.0/1"));
    }
}

#[test]
fn a_tree_that_is_not_there_is_explained() {
    let ground = Ground::new(WISH);
    fs::remove_dir_all(ground.path("tree")).unwrap();
    for verb in ["plan", "export"] {
        let refused = ground.run(&[verb, "--tree", ground.path("tree").to_str().unwrap()]).code(3);
        refused.stderr(contains("configfs is not mounted").and(contains("modprobe nvmet")));
    }
}

#[test]
fn any_tree_can_be_exported_and_what_cannot_be_imported_is_named() {
    let ground = Ground::new("");
    somebodys(&ground.path("tree"));
    let tree = ground.path("tree").display().to_string();
    let saved = ground.run(&["export", "--tree", &tree]).success();
    let saved = saved.get_output().stdout.clone();
    let json: Value = serde_json::from_slice(&saved).unwrap();
    assert_eq!(json["ports"][0]["addr"]["traddr"], "192.0.2.1");
    assert_eq!(json["ports"][0]["subsystems"][0], "nqn.2020-01.org.other:s");
    assert_eq!(json["subsystems"][0]["namespaces"][0]["device"]["path"], "/dev/nowhere");
    let file = ground.path("saved.json");
    fs::write(&file, saved).unwrap();
    let file = file.display().to_string();
    let refused = ground.run(&["import", &file]).code(2);
    refused.stderr(contains("subsystems.0.namespaces.0.device.path = /dev/nowhere"));
    fs::write(ground.path("saved.json"), "{").unwrap();
    ground.run(&["import", &file]).code(2).stderr(contains("no JSON"));
    ground.run(&["import", "/nowhere/x.json"]).code(1).stderr(contains("/nowhere/x.json"));
}

#[test]
fn two_programs_never_change_one_target() {
    let ground = Ground::new(WISH);
    fs::create_dir(ground.path("state")).unwrap();
    let lock = fs::File::create(ground.path("state/lock")).unwrap();
    lock.lock().unwrap();
    ground.run(&["teardown"]).code(1).stderr(contains("another kvrail").and(contains("remedy:")));
    // Looking needs no lock; it gets as far as the device that is not there.
    ground.run(&["status"]).code(3).stderr(contains("serial:nobody/1").and(contains("lock").not()));
}
