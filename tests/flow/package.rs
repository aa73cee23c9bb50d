//! The Debian package: what is in it, that two builds are the same, and that it installs, upgrades
//! and goes for real, on a copy of this machine's file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::rig::{is_root, kvrail_program};

/// The top of the repository.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository")
}

fn words(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat()
}

/// Standard output of a program that must succeed.
fn stdout_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", words(&output));
    words(&output)
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Builds the package into a folder; nothing where this is no Debian.
fn build(folder: &Path) -> Option<PathBuf> {
    if !is_there("dpkg-deb") || !is_there("objdump") {
        println!("skipped: no dpkg-deb or no objdump");
        return None;
    }
    let mut build = Command::new(repository().join("config/debian/build.sh"));
    build.arg(kvrail_program()).arg(folder).env("SOURCE_DATE_EPOCH", "1750000000");
    // Packing takes most of the time.
    build.env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    Some(PathBuf::from(stdout_of(&mut build).trim()))
}

#[test]
fn the_package_has_its_parts_and_two_builds_are_the_same() {
    let folder = TempDir::new().unwrap();
    let Some(package) = build(folder.path()) else { return };
    let again = build(&folder.path().join("again")).unwrap();
    assert_eq!(fs::read(&package).unwrap(), fs::read(again).unwrap(), "builds differ");
    let control = stdout_of(Command::new("dpkg-deb").arg("--info").arg(&package));
    for word in ["Package: kvrail", "libc6 (>= 2.", "postinst", "conffiles"] {
        assert!(control.contains(word), "no {word:?} in {control}");
    }
    let tree = folder.path().join("tree");
    stdout_of(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&tree));
    for file in [
        "usr/bin/kvrail",
        "usr/lib/systemd/system/kvrail.service",
        "usr/lib/sysusers.d/kvrail.conf",
        "usr/lib/udev/rules.d/90-kvrail.rules",
        "usr/share/man/man1/kvrail.1.gz",
        "usr/share/man/man1/kvrail-volume-create.1.gz",
        "usr/share/bash-completion/completions/kvrail",
        "usr/share/zsh/vendor-completions/_kvrail",
        "usr/share/fish/vendor_completions.d/kvrail.fish",
        "usr/share/doc/kvrail/copyright",
    ] {
        let bytes = fs::metadata(tree.join(file)).map_or(0, |about| about.len());
        assert!(bytes > 0, "no {file}");
    }
    let page = tree.join("usr/share/man/man1/kvrail-serve.1.gz");
    let page = stdout_of(Command::new("gzip").arg("-dc").arg(page));
    assert!(page.starts_with(".ie") && page.contains("Examples:"), "{page}");
    // A host's own keys go into a folder, so that an upgrade asks about no edited file.
    assert!(tree.join("etc/kvrail/kvrail.toml.d").is_dir());
    // The packaged binary accepts the default configuration.
    let program = tree.join("usr/bin/kvrail");
    let file = tree.join("etc/kvrail/kvrail.toml");
    stdout_of(Command::new(program).args(["config", "check", "--config"]).arg(file));
}

#[test]
fn the_package_keeps_to_debians_policy() {
    let folder = TempDir::new().unwrap();
    let Some(package) = build(folder.path()) else { return };
    if !is_there("lintian") {
        return println!("skipped: no lintian");
    }
    // The maintainer is the builder, a user of this machine; and tests pack without compression.
    let of_the_test = "bogus-mail-host,bogus-mail-host-in-debian-changelog,\
                       uses-no-compression-for-control-tarball,\
                       uses-no-compression-for-data-tarball";
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error", "--suppress-tags", of_the_test]);
    let output = lintian.arg(&package).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
}

#[test]
fn units_are_ones_that_systemd_takes() {
    let folder = TempDir::new().unwrap();
    let Some(package) = build(folder.path()) else { return };
    if !is_there("systemd-analyze") {
        return println!("skipped: no systemd-analyze");
    }
    let tree = folder.path().join("tree");
    stdout_of(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&tree));
    let unit = tree.join("usr/lib/systemd/system/kvrail.service");
    // The path that is checked is this machine's.
    let text = fs::read_to_string(&unit).unwrap();
    let program = tree.join("usr/bin/kvrail").display().to_string();
    fs::write(&unit, text.replace("/usr/bin/kvrail", &program)).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let output = verify.args(["verify", "--man=no"]).arg(&unit).output().unwrap();
    let words = words(&output);
    // Before systemd 254 pauses do not grow.
    let newer = ["'RestartSteps'", "'RestartMaxDelaySec'"];
    let older = |line: &&str| !newer.iter().any(|key| line.contains(key));
    let ours = words.lines().filter(|line| line.contains("kvrail.service")).filter(older);
    assert!(output.status.success() && ours.count() == 0, "{words}");
}

/// A start limit would leave the unit failed for good, and a reload without a way to fail reports
/// nothing.
#[test]
fn the_unit_tries_again_without_end_and_reloads_with_a_verdict() {
    let unit = repository().join("config/systemd/kvrail.service");
    let unit = fs::read_to_string(unit).unwrap();
    let value = |key: &str| {
        let mut values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.next().unwrap_or_else(|| panic!("no {key}")).to_owned()
    };
    let (head, service) = unit.split_once("[Service]").unwrap();
    assert!(head.contains("\nStartLimitIntervalSec=0\n"), "it is a key of [Unit]");
    assert!(!service.contains("RestartPreventExitStatus"));
    assert_eq!(value("Restart"), "on-failure");
    let seconds = |key: &str| value(key).trim_end_matches('s').parse::<u32>().unwrap();
    let (first, last) = (seconds("RestartSec"), seconds("RestartMaxDelaySec"));
    assert!((1..=5).contains(&first) && first < last, "{first} {last}");
    assert!(value("RestartSteps").parse::<u32>().unwrap() > 1);
    // This program has the command of the unit.
    let reload = value("ExecReload");
    let words: Vec<_> = reload.split(' ').skip(1).collect();
    assert_eq!(words, ["reload", "--config", "/etc/kvrail/kvrail.toml"]);
    let help = stdout_of(Command::new(kvrail_program()).args([words[0], "--help"]));
    assert!(help.contains("the exit status is 1"), "{help}");
}

/// A copy of this machine's file system that ends with the shell that runs in it.
const COPY: &str = r#"
set -eu
mount -t tmpfs copy "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay copy -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cp "$2" "$1/root/kvrail.deb"
"#;

/// Commands for that shell.
const LIFE: &str = r#"
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
dpkg --force-depends -i /kvrail.deb
getent passwd kvrail
kvrail --version
echo '# mine' >>/etc/kvrail/kvrail.toml
dpkg --force-depends -i /kvrail.deb
grep -q '# mine' /etc/kvrail/kvrail.toml
dpkg -V kvrail || true
dpkg -r kvrail
[ ! -e /usr/bin/kvrail ]
grep -q '# mine' /etc/kvrail/kvrail.toml
dpkg -P kvrail
[ ! -e /etc/kvrail/kvrail.toml ]
echo it lived
"#;

#[test]
fn it_installs_upgrades_and_goes() {
    let folder = TempDir::new().unwrap();
    let Some(package) = build(folder.path()) else { return };
    let root = folder.path().join("copy");
    fs::create_dir(&root).unwrap();
    let copy = |then: &str| {
        let mut shell = Command::new("unshare");
        let script = format!("{COPY}\n{then}");
        shell.args(["--mount", "sh", "-c", &script, "copy"]).arg(&root).arg(&package);
        shell.output()
    };
    if !is_root() || !copy("true").is_ok_and(|output| output.status.success()) {
        return println!("skipped: only root can lay a copy over the file system, with overlayfs");
    }
    let output = copy(&format!("exec chroot \"$1/root\" bash -c '{}'", LIFE.replace('\'', "\"")));
    let output = output.unwrap();
    let words = words(&output);
    assert!(output.status.success() && words.contains("it lived"), "{words}");
}
