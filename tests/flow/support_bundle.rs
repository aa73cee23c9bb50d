//! `kvrail support-bundle`: all of it or nothing, and no secret in it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::rig::{Place, Sidecar, kvrail, kvrail_program, run, without_configuration};

fn unpacked(file: &Path, part: &str) -> String {
    let mut tar = Command::new("tar");
    let outcome = tar.arg("xzOf").arg(file).arg(format!("kvrail-support/{part}")).output().unwrap();
    assert!(outcome.status.success(), "{part}: {outcome:?}");
    String::from_utf8(outcome.stdout).unwrap()
}

#[test]
fn it_has_what_helps_and_no_secret() {
    let mut place = Place::with_volume(1, 4 << 20);
    let (secret, key) = ("/elsewhere/secret-place", "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj:");
    let nqn = "nqn.2026-01.org.example:host-a";
    let sidecar = Sidecar::start(&place);
    let log = place.path("other-log");
    fs::write(&log, format!("first line\nread {secret}: {key} was refused\n")).unwrap();
    place.configure(&format!("[[target.host]]\nnqn = \"{nqn}\"\ndhchap_key_file = \"{secret}\""));
    let file = place.path("bundle.tar.gz");
    let mut command = kvrail();
    command.args(["support-bundle", "--format", "json", "--config"]).arg(place.configuration());
    let made = run(command.arg("--log").arg(&log).arg(&file));
    made.expect(0, &[]);
    let outcome: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!(outcome["file"], file.to_str().unwrap());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let parts: Vec<_> = outcome["parts"].as_array().unwrap().iter().collect();
    for part in &parts {
        let text = unpacked(&file, part["file"].as_str().unwrap());
        assert!(!text.contains(secret) && !text.contains(key), "{part}: {text}");
    }
    assert!(unpacked(&file, "config.txt").contains("dhchap_key_file"));
    assert!(unpacked(&file, "log.txt").contains("first line"));
    assert!(unpacked(&file, "status.txt").contains("Serving"));
    assert!(unpacked(&file, "slow.txt").contains("requests took 100ms or longer"));
    assert!(unpacked(&file, "metrics.txt").contains("kvrail_build_info"));
    assert!(unpacked(&file, "versions.txt").contains("kvrail "));
    assert!(unpacked(&file, "check.txt").contains("warnings"));
    let again =
        run(kvrail().args(["support-bundle", "--config"]).arg(place.configuration()).arg(&file));
    again.expect(3, &["is there already", "remove it"]);
    sidecar.stop();
}

/// A limit of file sizes stands for a full disk: both fail the write.
#[test]
fn a_full_disk_leaves_no_half_file() {
    let place = Place::empty(0);
    let folder = place.path("small");
    fs::create_dir(&folder).unwrap();
    let mut command = Command::new("sh");
    without_configuration(&mut command);
    command.args(["-c", "ulimit -f 1; exec \"$0\" support-bundle --log /etc/passwd \"$1\""]);
    let full = run(command.arg(kvrail_program()).arg(folder.join("bundle")));
    full.expect(1, &["writing ", "bundle", "too large", "nothing of it is left"]);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    let nowhere = run(kvrail().args(["support-bundle", "/nonexistent/bundle"]));
    nowhere.expect(1, &["/nonexistent/bundle", "No such file"]);
}

/// Without a sidecar the bundle has an error in the parts that need one.
#[test]
fn a_bundle_without_a_sidecar_has_the_error_as_a_part() {
    let place = Place::empty(0);
    let file = place.path("bundle.tar.gz");
    let mut command = kvrail();
    command.args(["support-bundle", "--socket"]).arg(place.socket()).arg(&file);
    run(&mut command).expect(0, &["metrics.txt: no sidecar at"]);
    assert!(unpacked(&file, "status.txt").contains("no sidecar at"));
}
