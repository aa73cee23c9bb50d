//! The command line as an operator meets it: words, JSON, exit statuses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

/// The binary without anything that this environment may configure.
fn kvrail() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvrail"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVRAIL_") {
            command.env_remove(name);
        }
    }
    // Whatever /etc holds on this machine is not read.
    command.env("KVRAIL_CONFIG", "/dev/null");
    command
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// Makes a volume of 4 MiB on two files.
fn volume(directory: &Path, name: &str) -> [PathBuf; 2] {
    let members = ["a", "b"].map(|file| directory.join(format!("{name}-{file}")));
    let mut command = kvrail();
    command.args(["volume", "create", name]).args(&members);
    command.args(["--size", "4MiB", "--direct", "optional"]).assert().success();
    members
}

#[test]
fn help_shows_examples_and_exit_statuses() {
    let shown = kvrail().arg("--help").assert().success();
    shown.stdout(contains("Examples:").and(contains("3  refused")).and(contains("--set")));
    for command in [
        "serve",
        "bench",
        "devices",
        "status",
        "completions",
        "volume create",
        "store status",
        "store namespaces",
        "store clear",
        "store remove",
        "config show",
        "check",
        "topology",
    ] {
        let arguments = command.split(' ');
        let shown = kvrail().args(arguments).arg("--help").assert().success();
        shown.stdout(contains("Examples:"));
    }
}

#[test]
fn wrong_usage_is_status_2() {
    let wrong: [&[&str]; 6] = [
        &[],
        &["nothing"],
        &["volume"],
        &["volume", "create"],
        &["volume", "create", "bad name", "/x"],
        &["volume", "create", "kv0", "/x", "--size", "4MB"],
    ];
    for arguments in wrong {
        kvrail().args(arguments).assert().code(2);
    }
    kvrail()
        .args(["volume", "create", "kv0", "/x", "--size", "4MB"])
        .assert()
        .stderr(contains("4MB").and(contains("256KiB")));
}

#[test]
fn wrong_usage_is_json_when_asked() {
    for format in [&["--format", "json"][..], &["--format=json"][..]] {
        let failed = kvrail().args(["volume", "create"]).args(format).assert().code(2);
        let error = &json(&failed.get_output().stderr)["error"];
        assert_eq!((&error["kind"], &error["status"]), (&"usage".into(), &2.into()));
        assert!(error["message"].as_str().unwrap().contains("<NAME>"));
    }
}

#[test]
fn the_default_configuration_is_valid() {
    let directory = directory();
    let file = directory.path().join("kvrail.toml");
    let shown = kvrail().args(["config", "default"]).assert().success();
    fs::write(&file, &shown.get_output().stdout).unwrap();
    let mut check = kvrail();
    check.args(["config", "check", "--config"]).arg(&file);
    check.assert().success().stdout(contains("configuration ok"));
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')), "{text}");
    let all = fs::read_to_string(repository().join("config/default.toml")).unwrap();
    for (shown, shipped) in text.lines().zip(all.lines()) {
        let key = !shipped.is_empty() && !shipped.starts_with('#');
        assert_eq!(shown, if key { format!("#{shipped}") } else { shipped.to_owned() });
    }
    assert_eq!(text.lines().count(), all.lines().count());
}

fn repository() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).to_owned()
}

/// Pages of the documentation and the README.
fn pages() -> Vec<PathBuf> {
    let docs = repository().join("docs");
    let below = [docs.clone(), docs.join("engines")];
    let files = below.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let pages = files.map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.chain([repository().join("README.md")]).collect()
}

/// A page's example configuration may be pasted below the default one.
#[test]
fn configuration_of_every_page_can_be_pasted_below_the_default_one() {
    let directory = directory();
    let file = directory.path().join("kvrail.toml");
    let shown = kvrail().args(["config", "default"]).assert().success();
    let default = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    let mut pasted = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        // Others are of Cargo's manifests.
        for block in blocks.filter(|block| !block.contains("[dependencies]")) {
            fs::write(&file, format!("{default}\n{block}")).unwrap();
            let mut check = kvrail();
            let done = check.args(["config", "check", "--config"]).arg(&file).output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{}: {block}\n{said}", page.display());
            pasted += 1;
        }
    }
    assert!(pasted >= 5, "{pasted} pages say what to write into the configuration");
}

#[test]
fn a_bad_configuration_shows_line_and_caret() {
    let directory = directory();
    let file = directory.path().join("bad.toml");
    fs::write(&file, "[sidecar]\nsokcet = \"/x\"\n").unwrap();
    let mut check = kvrail();
    check.args(["config", "check", "--config"]).arg(&file);
    let refused = check.assert().code(2);
    refused.stderr(
        contains("kvrail: error: ")
            .and(contains("bad.toml"))
            .and(contains("line 2, column 1"))
            .and(contains("^^^^^^"))
            .and(contains("unknown field `sokcet`"))
            .and(contains("remedy: ")),
    );
}

#[test]
fn configuration_errors_are_json_when_asked() {
    let failed = kvrail()
        .args(["config", "check", "--set", "device.queue_depth=0", "--format", "json"])
        .assert()
        .code(2);
    let output = failed.get_output();
    assert!(output.stdout.is_empty());
    let error = &json(&output.stderr)["error"];
    assert!(error["message"].as_str().unwrap().contains("device.queue_depth = 0"));
    assert!(error["remedy"].as_str().unwrap().contains("device.queue_depth"));
}

#[test]
fn layers_and_their_origins_are_shown() {
    let mut show = kvrail();
    show.args(["config", "show", "--origin", "--set", "limits.sessions=9"]);
    show.env("KVRAIL_DEVICE__MODE", "interrupt");
    show.assert().success().stdout(
        contains("environment KVRAIL_DEVICE__MODE")
            .and(contains("--set limits.sessions=9"))
            .and(contains("default")),
    );
    show.args(["--format", "json"]);
    let shown = show.assert().success();
    let entries = json(&shown.get_output().stdout);
    let entry = entries.as_array().unwrap().iter().find(|entry| entry["key"] == "device.mode");
    assert_eq!(entry.unwrap()["origin"]["layer"], "environment");
    let shown = kvrail()
        .args(["config", "show", "--format", "json", "--set", "device.sq_idle=5ms"])
        .assert()
        .success();
    assert_eq!(json(&shown.get_output().stdout)["device"]["sq_idle"], "5ms");
}

#[test]
fn unknown_variables_are_refused_by_name() {
    let mut check = kvrail();
    check.args(["config", "check"]).env("KVRAIL_SPEED", "1");
    check.assert().code(2).stderr(contains("KVRAIL_SPEED"));
}

#[test]
fn what_is_shown_can_be_a_configuration_file() {
    let directory = directory();
    let file = directory.path().join("k.toml");
    let set = "volume=[{name=\"a\", members=[\"/x\"], device={queue_depth=4}}]";
    let shown = kvrail().args(["config", "show", "--set", set]).assert().success();
    fs::write(&file, &shown.get_output().stdout).unwrap();
    let mut again = kvrail();
    let shown_again = again.args(["config", "show", "--config"]).arg(&file).assert().success();
    assert_eq!(shown.get_output().stdout, shown_again.get_output().stdout);
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        kvrail().args(["completions", shell]).assert().success().stdout(contains("kvrail"));
    }
}

#[test]
fn a_volume_is_made_listed_inspected_and_wiped() {
    let directory = directory();
    let members = volume(directory.path(), "kv0");
    let listed =
        kvrail().args(["volume", "list", "--format", "json"]).args(&members).assert().success();
    let listing = json(&listed.get_output().stdout);
    let volumes = listing["volumes"].as_array().unwrap();
    let ours = volumes.iter().find(|volume| volume["members"][0]["path"] == path(&members[0]));
    let ours = ours.unwrap();
    assert_eq!((&ours["name"], &ours["state"]), (&"kv0".into(), &"ready".into()));
    assert_eq!(ours["capacity_bytes"], 4 << 20);
    kvrail()
        .args(["volume", "list"])
        .args(&members)
        .assert()
        .success()
        .stdout(contains("kv0").and(contains("ready")).and(contains("2/2")));

    kvrail()
        .args(["volume", "inspect"])
        .args(&members)
        .assert()
        .success()
        .stdout(contains("member 1 of 2 of volume kv0").and(contains("nobody")));
    let seen =
        kvrail().args(["volume", "inspect", "--format", "json"]).args(&members).assert().success();
    assert_eq!(json(&seen.get_output().stdout)[1]["content"]["member_index"], 1);

    let wrong = kvrail().args(["volume", "wipe", "other"]).args(&members).assert().code(3);
    wrong.stderr(contains("\"kv0\"").and(contains("remedy: ")));
    let wiped = kvrail().args(["volume", "wipe", "kv0"]).args(&members).assert().success();
    wiped.stdout(contains("wiped volume kv0"));
    kvrail()
        .args(["volume", "inspect"])
        .args(&members)
        .assert()
        .success()
        .stdout(contains("blank"));
}

#[test]
fn a_store_is_made_and_says_what_it_takes() {
    let directory = directory();
    let members = ["a", "b"].map(|file| directory.path().join(file));
    let create = |more: &[&str]| {
        let mut command = kvrail();
        command.args(["volume", "create", "cache"]).args(&members).args(["--direct", "optional"]);
        command.args(["--size", "32MiB", "--kind", "store"]).args(more);
        command
    };
    let striped = create(&["--stripe", "1MiB"]).assert().code(2);
    striped.stderr(contains("--stripe 1MiB: a store volume has none").and(contains("remedy: ")));
    let odd = create(&["--segment", "3MiB"]).assert().code(2);
    odd.stderr(contains("3145728 bytes (--segment)").and(contains("power of two")));
    let mean = create(&["--block-mean", "1GiB"]).assert().code(2);
    mean.stderr(contains("1073741824 bytes (--block-mean)").and(contains("512 to 524288")));
    assert!(members.iter().all(|member| !member.exists()), "nothing was made");
    let made = create(&["--block-mean", "64KiB", "--format", "json"]).assert().success();
    let made = json(&made.get_output().stdout);
    assert_eq!(
        (&made["kind"], &made["store"]["segment_bytes"]),
        (&"store".into(), &1_048_576.into())
    );
    assert_eq!(made["store"]["block_bytes_max"], 524_288);
    assert!(made["store"]["blocks"].as_u64().is_some_and(|blocks| blocks > 400), "{made}");
    let seen = kvrail().args(["volume", "inspect"]).args(&members).assert().success();
    seen.stdout(contains("member 1 of 2 of store cache").and(contains("1MiB")));
    let listed = kvrail().args(["volume", "list"]).args(&members).assert().success();
    listed.stdout(contains("cache").and(contains("store")));
    let check = |path: &Path| kvrail().args(["check", "--for", "store"]).arg(path).assert();
    check(&members[0]).stdout(contains("store-memory").and(contains("of cache: ")));
    check(directory.path()).stdout(contains("no store is configured or named"));
    let raw =
        kvrail().args(["volume", "create", "x", "x.img", "--segment", "1MiB"]).assert().code(2);
    raw.stderr(contains("--segment 1MiB: a raw volume has none"));
}

#[test]
fn stores_are_asked_of_a_sidecar_only() {
    let directory = directory();
    let socket = directory.path().join("none.sock");
    for words in [&["status"][..], &["namespaces"], &["clear", "a"], &["remove", "a"]] {
        let asked = kvrail().arg("store").args(words).arg("--socket").arg(&socket).assert().code(4);
        asked.stderr(contains("none.sock").and(contains("remedy: ")));
    }
}

#[test]
fn a_store_is_erased_by_its_name_only() {
    let directory = directory();
    let member = directory.path().join("a");
    let make = |name: &str, file: &Path, kind: &str| {
        let mut command = kvrail();
        command.args(["volume", "create", name, "--size", "8MiB", "--kind", kind]).arg(file);
        command.args(["--direct", "optional"]).assert().success();
    };
    make("cache", &member, "store");
    let erase = |words: &[&str], file: &Path| {
        let mut command = kvrail();
        command.args(["store", "erase"]).args(words).arg(file).assert()
    };
    let unsure = erase(&["cache"], &member).code(2);
    unsure.stderr(contains("not confirmed").and(contains("--yes cache")));
    erase(&["cache", "--yes", "cash"], &member).code(2);
    erase(&["other", "--yes", "other"], &member).code(3);
    let erased = erase(&["cache", "--yes", "cache", "--format", "json"], &member).success();
    assert_eq!(json(&erased.get_output().stdout)["name"], "cache");
    let raw = directory.path().join("raw");
    make("plain", &raw, "raw");
    let refused = erase(&["plain", "--yes", "plain"], &raw).code(3);
    refused.stderr(contains("raw volume").and(contains("remedy: ")));
}

fn path(path: &Path) -> Value {
    path.to_str().unwrap().into()
}

#[test]
fn half_a_volume_is_listed_as_incomplete() {
    let directory = directory();
    let members = volume(directory.path(), "kv1");
    let listed = kvrail().args(["volume", "list"]).arg(&members[1]).assert().success();
    listed.stdout(contains("kv1").and(contains("incomplete")).and(contains("1/2")));
}

#[test]
fn creating_prints_json_when_asked() {
    let directory = directory();
    let member = directory.path().join("m");
    let made = kvrail()
        .args(["volume", "create", "kv2", "--size", "1MiB", "--direct", "optional"])
        .args(["--format", "json"])
        .arg(&member)
        .assert()
        .success();
    let made = json(&made.get_output().stdout);
    assert_eq!((&made["name"], &made["capacity_bytes"]), (&"kv2".into(), &(1 << 20).into()));
}

#[test]
fn existing_data_is_refused_with_status_3() {
    let directory = directory();
    let member = directory.path().join("photo");
    fs::write(&member, "not a volume").unwrap();
    let create = ["volume", "create", "kv0", "--size", "1MiB", "--direct", "optional"];
    let refused = kvrail().args(create).arg(&member).assert().code(3);
    refused.stderr(contains("unknown data").and(contains("--force")));
    assert_eq!(fs::read(&member).unwrap(), b"not a volume");
    kvrail().args(create).arg("--force").arg(&member).assert().success();
    // A volume of ours is not overwritten, not even so.
    let refused = kvrail().args(create).arg("--force").arg(&member).assert().code(3);
    refused.stderr(contains("volume wipe"));
}

/// `volume create --if-blank` of a store `kv` on these members, with more words.
fn prepare(members: &[PathBuf], words: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = kvrail();
    command.args(["volume", "create", "kv", "--if-blank", "--direct", "optional"]);
    command.args(["--size", "16MiB"]).args(words).args(members);
    command.assert()
}

#[test]
fn a_blank_member_is_prepared_once() {
    let directory = directory();
    let members = ["a", "b"].map(|file| directory.path().join(file));
    let store = ["--kind", "store", "--format", "json"];
    let first = prepare(&members, &store).success();
    let first = json(&first.get_output().stdout);
    assert_eq!((&first["made"], &first["kind"]), (&true.into(), &"store".into()));
    let read = || members.each_ref().map(|member| fs::read(member).unwrap());
    let before = read();
    let again = prepare(&members, &store).success();
    let again = json(&again.get_output().stdout);
    assert_eq!((&again["made"], &again["uuid"]), (&false.into(), &first["uuid"]));
    let shape = prepare(&members, &["--kind", "store", "--block-mean", "1KiB"]).success();
    shape.stdout(contains("is there: nothing was made"));
    let kind = prepare(&members, &["--kind", "raw"]).code(3);
    kind.stderr(contains("as a store volume, not as raw").and(contains("remedy: ")));
    assert!(read() == before, "a member was written");
    prepare(&members, &["--force"]).code(2);
}

/// The sidecar decides whether it serves what is left of a volume: a node must come up with it.
#[test]
fn a_volume_with_a_lost_member_is_not_made_again() {
    let directory = directory();
    let members = ["a", "b"].map(|file| directory.path().join(file));
    prepare(&members, &["--kind", "store"]).success();
    fs::remove_file(&members[1]).unwrap();
    prepare(&members, &["--kind", "store"]).success().stdout(contains("nothing was made"));
    assert!(!members[1].exists(), "a file was made");
    fs::write(&members[1], "not a volume").unwrap();
    let foreign = prepare(&members, &["--kind", "store"]).success();
    foreign.stderr(contains("stays as it is: unknown data"));
    assert_eq!(fs::read(&members[1]).unwrap(), b"not a volume");
}

#[test]
fn nothing_foreign_is_prepared() {
    let directory = directory();
    let members = ["a", "b"].map(|file| directory.path().join(file));
    fs::write(&members[1], "not a volume").unwrap();
    let foreign = prepare(&members, &["--kind", "store"]).code(3);
    foreign.stderr(contains("unknown data").and(contains("remedy: ")));
    assert_eq!(fs::read(&members[1]).unwrap(), b"not a volume");
    assert!(!members[0].exists(), "a file of a refused volume stays");
    // A volume of another name is foreign too.
    let others = volume(directory.path(), "kv0");
    let labelled = prepare(&others, &["--kind", "store"]).code(3);
    labelled.stderr(contains("kv0").and(contains("volume wipe")));
    let gone = kvrail()
        .args(["volume", "create", "kv", "--if-blank", "serial:NOBODY", "--kind", "store"])
        .assert()
        .code(2);
    gone.stderr(contains("serial:NOBODY: no NVMe namespace"));
}

#[test]
fn a_full_disk_is_said_before_anything_is_written() {
    let directory = directory();
    let member = directory.path().join("huge");
    let refused = kvrail()
        .args(["volume", "create", "kv0", "--size", "4096TiB", "--direct", "optional"])
        .arg(&member)
        .assert()
        .code(1);
    refused.stderr(contains("are free").and(contains("remedy: free space")));
    assert!(!member.exists());
}

#[test]
fn members_come_from_the_configuration() {
    let directory = directory();
    let member = directory.path().join("m");
    let set = format!("volume=[{{name=\"kv3\", members=[\"{}\"]}}]", member.display());
    let with = |arguments: &[&str]| {
        let mut command = kvrail();
        command.args(arguments).args(["--set", &set]);
        command.assert()
    };
    let create = ["volume", "create", "kv3", "--size", "1MiB", "--direct", "optional"];
    with(&create).success();
    with(&["volume", "inspect", "kv3"]).success().stdout(contains("member 0 of 1 of volume kv3"));
    with(&["volume", "list"]).success().stdout(contains("kv3"));
    with(&["volume", "wipe", "kv3"]).success();
    with(&["volume", "list"]).success().stderr(contains("blank"));
    with(&["volume", "wipe", "kv4"]).code(2).stderr(contains("none are configured"));
    with(&["volume", "inspect", "kv4"]).code(2).stderr(contains("neither a file here nor"));
}

#[test]
fn a_creation_in_progress_is_exclusive_and_interrupted_leaves_nothing() {
    let directory = directory();
    let member = directory.path().join("m");
    let mut child = Process::new("sh")
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_kvrail")])
        .args(["volume", "create", "kv0", "--size", "8GiB", "--direct", "optional"])
        .args(["--config", "/dev/null"])
        .arg(&member)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The file has its size once the writing begins; 8 GiB outlast the way to the signal.
    let patience = Instant::now() + Duration::from_secs(60);
    while !fs::metadata(&member).is_ok_and(|metadata| metadata.len() > 0) {
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(1), "ended before it was interrupted");
            println!("skipped: no 8 GiB free here");
            return;
        }
        assert!(Instant::now() < patience, "no file was made");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Meanwhile no other process gets it, and the error names the holder.
    let second = kvrail()
        .args(["volume", "create", "kv1", "--size", "1MiB", "--direct", "optional"])
        .arg(&member)
        .assert()
        .code(3);
    second.stderr(contains(format!("process {} (kvrail) has it", child.id())));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(child.try_wait().unwrap(), None, "ended by a hangup under `nohup`");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    assert!(!member.exists());
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = Process::new(env!("CARGO_BIN_EXE_kvrail"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

/// Whatever drives this host has, the output is a list, and no drive has the serial `NOBODY`.
#[test]
fn devices_are_listed_and_unknown_ones_refused() {
    let listed = kvrail().args(["devices", "--format", "json"]).assert().success();
    let devices: Value = json(&listed.get_output().stdout);
    assert!(devices.is_array(), "{devices}");
    kvrail().arg("devices").assert().success();
    if devices.as_array().is_some_and(Vec::is_empty) {
        kvrail().args(["devices", "--calibrate"]).assert().stdout(contains("no NVMe namespaces"));
    }
    for command in [&["devices"][..], &["volume", "inspect"], &["volume", "create", "kv"]] {
        let refused = kvrail().args(command).arg("serial:NOBODY/7").assert().code(2);
        let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        let words = "serial:NOBODY/7: no NVMe namespace of this host is that; it has";
        assert!(said.contains(words), "{said}");
    }
    let refused = kvrail().args(["volume", "create", "kv", "pci:zz"]).assert().code(2);
    assert!(String::from_utf8_lossy(&refused.get_output().stderr).contains("0000:3b:00.0"));
}

#[test]
fn a_file_is_calibrated_and_not_changed() {
    let directory = directory();
    let file = directory.path().join("data");
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    let mut calibrate = kvrail();
    calibrate.args(["devices", "--calibrate"]).arg(&file);
    let shown = calibrate.assert().success();
    let text = String::from_utf8_lossy(&shown.get_output().stdout).into_owned();
    assert!(text.contains("auto takes ") && text.contains("interrupt"), "{text}");
    let shown = calibrate.args(["--format", "json"]).assert().success();
    let found: Value = json(&shown.get_output().stdout);
    assert_eq!(found[0]["path"], path(&file));
    assert!(found[0]["chosen"].is_string() && found[0]["reason"].is_string(), "{found}");
    assert!(std::fs::read(&file).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn a_torn_label_is_repaired() {
    use std::os::unix::fs::FileExt;
    let directory = directory();
    let members = volume(directory.path(), "kv7");
    let torn = fs::File::options().write(true).open(&members[0]).unwrap();
    torn.write_all_at(&[0xee; 700], 600).unwrap();
    drop(torn);
    let mut command = kvrail();
    let repair = command.args(["volume", "repair", "kv7"]).args(&members);
    repair.assert().success().stdout(
        contains("kv7-a: label restored: the copy at byte 0 is torn")
            .and(contains("kv7-b: label is whole")),
    );
    let again = repair.args(["--format", "json"]).assert().success();
    assert_eq!(json(&again.get_output().stdout)[0]["restored"], Value::Null);
}

#[test]
fn the_machine_is_drawn_as_text_json_and_picture() {
    let directory = directory();
    let picture = directory.path().join("machine.svg");
    let mut command = kvrail();
    let shown = command.args(["topology", "--svg"]).arg(&picture).assert().success();
    shown.stdout(contains("machine\n").and(contains("CPUs")));
    assert!(fs::read_to_string(&picture).unwrap().starts_with("<svg "));
    let shown = kvrail().args(["topology", "--format", "json"]).assert().success();
    let map = json(&shown.get_output().stdout);
    assert!(map["nodes"].is_array() && map["pairs"].is_array() && map["warnings"].is_array());
    let mut command = kvrail();
    let refused = command.args(["topology", "--svg", "/nonexistent/x.svg"]).assert().code(1);
    refused.stderr(contains("--svg /nonexistent/x.svg"));
}

/// The exit status is the worst finding, whatever this machine is.
#[test]
fn the_doctor_ends_with_the_worst_finding() {
    for purpose in ["serve", "target", "host", "gpu", "bench"] {
        let mut command = kvrail();
        command.args(["check", "--for", purpose, "--format", "json", "."]);
        let ended = command.assert();
        let report = json(&ended.get_output().stdout);
        let findings = report["findings"].as_array().unwrap();
        let any = |verdict: &str| findings.iter().any(|finding| finding["verdict"] == verdict);
        let expected = if any("failure") {
            7
        } else if any("warning") {
            6
        } else {
            0
        };
        assert_eq!(ended.get_output().status.code(), Some(expected), "{purpose}");
        assert_eq!(report["purpose"], purpose);
        for finding in findings {
            let wrong = finding["verdict"] == "failure" || finding["verdict"] == "warning";
            assert_eq!(finding["remedy"].is_string() && finding["cost"].is_string(), wrong);
        }
    }
    let shown = kvrail().args(["check", "."]).assert();
    shown.stdout(contains("kernel-version").and(contains("failures,")));
}

/// A sidecar on memory that ends with a change of `file`, once it serves.
fn sidecar_of(file: &Path, copy: &Path, log: &Path) -> std::process::Child {
    let directory = log.parent().unwrap();
    let socket = directory.join("kvrail.sock");
    let child = Process::new(env!("CARGO_BIN_EXE_kvrail"))
        .args(["serve", "--config", "/dev/null", "--set", "metrics.listen=off"])
        .args(["--set", "volume=[{name=\"kv\", members=[\"null:1GiB\"]}]", "--set"])
        .arg(format!("sidecar.socket={}", socket.display()))
        .arg("--exit-on-change")
        .args([file, copy])
        .stderr(fs::File::create(log).unwrap())
        .spawn()
        .unwrap();
    let patience = Instant::now() + Duration::from_secs(60);
    while !kvrail().arg("status").arg("--socket").arg(&socket).output().unwrap().status.success() {
        let log = fs::read_to_string(log).unwrap();
        assert!(Instant::now() < patience, "it does not serve: {log}");
        std::thread::sleep(Duration::from_millis(50));
    }
    child
}

#[test]
fn a_sidecar_ends_with_a_change_of_its_file() {
    let directory = directory();
    let at = |name: &str| directory.path().join(name);
    let (file, copy, log) = (at("part/node.toml"), at("copy.toml"), at("log"));
    fs::create_dir(at("part")).unwrap();
    // At first the file is not there, and its copy is empty; then it is another one.
    let part = |volume: &str, member: &str| {
        format!("[[volume]]\nname = \"{volume}\"\nmembers = [\"{member}\"]\n")
    };
    let (one, two) = (part("kv", "null:1GiB"), part("kv", "/data/kv.img"));
    let put = |text: &str| {
        fs::write(at("part/new"), text).unwrap();
        fs::rename(at("part/new"), &file).unwrap();
    };
    for (old, new) in [(None, &one), (Some(&one), &two)] {
        let copied = old.cloned().unwrap_or_default();
        fs::write(&copy, copied).unwrap();
        let mut child = sidecar_of(&file, &copy, &log);
        std::thread::sleep(Duration::from_secs(5));
        assert_eq!(child.try_wait().unwrap(), None, "ended before the change");
        // A part with which it would not start again ends nothing.
        let bad_parts = [
            (part("kv", "serial:NOBODY"), "volume kv: serial:NOBODY"),
            (part("kv", "/dev/disk/by-id/none"), "/dev/disk/by-id/none is not there"),
            ("volume = 1".to_owned(), "TOML parse error"),
        ];
        for (bad, why) in bad_parts.into_iter().filter(|_| old.is_none()) {
            put(&bad);
            let said = || fs::read_to_string(&log).unwrap();
            let patience = Instant::now() + Duration::from_secs(60);
            while !(said().contains("goes on without it") && said().contains(why)) {
                assert!(Instant::now() < patience, "no {why}: {}", said());
                std::thread::sleep(Duration::from_millis(50));
            }
            std::thread::sleep(Duration::from_secs(3));
            assert_eq!(child.try_wait().unwrap(), None, "ended by {bad}");
        }
        put(new);
        let status = child.wait().unwrap();
        let log = fs::read_to_string(&log).unwrap();
        assert!(status.success() && log.contains("drained and stopped"), "{status}: {log}");
        assert!(log.contains("node.toml has changed: the sidecar stops in 0 s"), "{log}");
    }
}
