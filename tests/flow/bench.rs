//! `kvrail bench` as a user runs it, on a small volume and for a moment.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kvrail_client::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::rig::{Place, Sidecar, eventually, kvrail, run};

fn bench() -> Command {
    bench_for("0.1")
}

fn bench_for(seconds: &str) -> Command {
    bench_of("kvrail,raw", seconds)
}

fn bench_of(arms: &str, seconds: &str) -> Command {
    let mut command = kvrail();
    command.args(["bench", "--volume-size", "32MiB", "--seconds", seconds, "--warm-up", "0"]);
    command.args(["--rounds", "1", "--arms", arms]);
    command
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn has(value: &Value, wanted: &[&str]) {
    let keys = keys(value);
    for key in wanted {
        assert!(keys.contains(key), "no {key} in {keys:?}");
    }
}

/// Processes whose command line names this folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| {
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&words).replace('\0', " ");
        line.contains(folder).then_some(line)
    });
    lines.collect()
}

fn nothing_left(folder: &Path) {
    let left: Vec<_> = fs::read_dir(folder).unwrap().flatten().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    assert_eq!(processes_of(folder), Vec::<String>::new());
}

fn report(stdout: &str) -> Value {
    serde_json::from_str(stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

fn clean(report: &Value) {
    let runs = report["runs"].as_array().unwrap();
    for run in runs {
        assert_eq!((&run["errors"], &run["verify_failures"]), (&0.into(), &0.into()), "{run}");
    }
    // A short run on a busy disk may end before its first operation does; not all of them.
    assert!(runs.iter().any(|run| run["operations"].as_u64().unwrap() > 0), "{report}");
}

#[test]
fn the_report_has_the_promised_keys_and_no_failures() {
    let (_place, folder) = place_with_folder();
    let mut command = bench();
    command.args(["--op", "read,write,mixed", "--block", "4KiB,1MiB", "--depth", "4"]);
    command.args(["--format", "json", "--dir"]).arg(&folder);
    let outcome = run(&mut command);
    outcome.expect(0, &[]);
    let report = report(&outcome.stdout);
    assert_eq!(report["schema"], 2);
    has(&report, &["schema", "environment", "runs", "ratios"]);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2 * 3 * 2, "two arms in six cases");
    for run in runs {
        let wanted = [
            "arm",
            "op",
            "block_bytes",
            "depth",
            "clients",
            "loop",
            "operations",
            "seconds",
            "iops",
            "bytes_per_second",
            "latency_ns",
            "cpu_seconds_per_gib",
            "errors",
            "verify_failures",
        ];
        assert_eq!(keys(run), wanted.into_iter().collect());
        let latency = &run["latency_ns"];
        let wanted = ["min", "p50", "p90", "p99", "p999", "max"];
        assert_eq!(keys(latency), wanted.into_iter().collect());
        assert!(latency["min"].as_f64() <= latency["max"].as_f64());
    }
    for ratio in report["ratios"].as_array().unwrap() {
        let case = ["op", "block_bytes", "depth", "arm", "against"];
        let wanted = case.into_iter().chain(["p50", "p99", "throughput", "cpu"]);
        assert_eq!(keys(ratio), wanted.collect());
        assert_eq!((&ratio["arm"], &ratio["against"]), (&"kvrail".into(), &"raw".into()));
    }
    clean(&report);
    nothing_left(&folder);
}

/// Blocks of the store compared with those of the volume, with lengths that no volume takes.
#[test]
fn the_store_puts_gets_and_looks_up_next_to_the_volume() {
    let (_place, folder) = place_with_folder();
    let mut command = bench_of("kvrail,raw,store", "0.1");
    command.args(["--op", "read,write,lookup", "--block", "64KiB,640256B", "--depth", "2"]);
    command.args(["--format", "json", "--dir"]).arg(&folder);
    let outcome = run(&mut command);
    outcome.expect(0, &[]);
    let report = report(&outcome.stdout);
    clean(&report);
    let runs = report["runs"].as_array().unwrap();
    let of = |arm: &str, op: &str| {
        let same = |run: &&Value| run["arm"] == arm && run["op"] == op;
        runs.iter().filter(same).map(|run| run["block_bytes"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    for (store, volume) in [("get", "read"), ("put", "write")] {
        assert_eq!(of("store", store), [64 << 10, 640_256]);
        assert_eq!((of("kvrail", volume), of("raw", volume)), (vec![64 << 10], vec![64 << 10]));
        for against in ["volume", "raw"] {
            let same = |ratio: &&Value| {
                let found = [&ratio["arm"], &ratio["op"], &ratio["against"]];
                found.map(|value| value.as_str().unwrap()) == ["store", store, against]
            };
            let ratios = report["ratios"].as_array().unwrap();
            assert_eq!(ratios.iter().filter(same).count(), 1, "{store} / {against}");
        }
    }
    assert_eq!(of("store", "lookup"), [4096]);
    assert!(runs.iter().any(|run| run["keys"] == 1000));
    nothing_left(&folder);
}

/// One file for each block, compared with the store: the same cases, no wrong byte, and no file
/// left.
#[test]
fn files_put_and_get_next_to_the_store() {
    let (_place, folder) = place_with_folder();
    let mut command = bench_of("store,files", "0.1");
    command.args(["--op", "mixed", "--block", "64KiB,5000B", "--depth", "1,2", "--clients", "2"]);
    let outcome = run(command.args(["--format", "json", "--dir"]).arg(&folder));
    outcome.expect(0, &[]);
    let report = report(&outcome.stdout);
    clean(&report);
    let runs = report["runs"].as_array().unwrap();
    let of = |arm: &str| {
        let own = runs.iter().filter(|run| run["arm"] == arm);
        own.map(|run| [&run["block_bytes"], &run["depth"]].map(|value| value.as_u64().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(of("files"), [[65_536, 1], [5000, 1]], "more than one at once takes more clients");
    assert_eq!(of("store").len(), 4);
    let beside = |ratio: &&Value| ratio["arm"] == "store" && ratio["against"] == "files";
    assert_eq!(report["ratios"].as_array().unwrap().iter().filter(beside).count(), 2);
    nothing_left(&folder);
}

/// Hot blocks come from a memory tier, of a sidecar of the benchmark's own or of another one.
#[test]
fn hot_blocks_come_from_memory_next_to_copies_and_the_drive() {
    let (_place, folder) = place_with_folder();
    let mut command = bench_of("memory", "0.1");
    command.args(["--block", "64KiB,1MiB", "--dir"]).arg(&folder);
    let outcome = run(command.args(["--format", "json"]));
    outcome.expect(0, &[]);
    hot(&report(&outcome.stdout), &[64 << 10, 1 << 20]);
    nothing_left(&folder);

    for (tier, members) in [("0", 1), ("16MiB", 2)] {
        let mut place = Place::with_store(members, 64 << 20);
        place.configure(&format!("[memory_tier]\nbytes = \"{tier}\""));
        if tier != "0" {
            place.configure("write_late = [\"late-bench-*\"]");
        }
        let sidecar = Sidecar::start(&place);
        let mut command = bench_of("memory", "0.1");
        command.args(["--block", "64KiB", "--format", "json", "--attach"]);
        command.arg(place.socket()).args(["--volume", "kv", "--store-volume", "kv", "--overwrite"]);
        command.arg("--dir").arg(&folder);
        let outcome = run(&mut command);
        if tier == "0" {
            outcome.expect(1, &["memory", "memory_tier.bytes"]);
        } else {
            outcome.expect(0, &[]);
            hot(&report(&outcome.stdout), &[64 << 10]);
        }
        sidecar.stop();
    }
}

/// Every way has a speed, gets were hot, and every byte was compared.
fn hot(report: &Value, sizes: &[u64]) {
    let memory = report["memory"]["sizes"].as_array().unwrap();
    let found: Vec<_> = memory.iter().map(|one| one["block_bytes"].as_u64().unwrap()).collect();
    assert_eq!(found, sizes);
    let mut bytes = 0;
    for one in memory {
        let blocks = one["blocks"].as_u64().unwrap();
        assert!(blocks > 0, "{one}");
        assert_eq!(one["not_served"], 0, "{one}");
        bytes += blocks * one["block_bytes"].as_u64().unwrap();
        let ways = one["ways"].as_array().unwrap();
        let names: Vec<_> = ways.iter().map(|way| way["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "memcpy",
                "verified_copy",
                "page_cache",
                "drive",
                "hot_get",
                "view",
                "memcpy_in",
                "put",
                "late_put",
                "put_of_8",
                "late_put_of_8"
            ]
        );
        assert!(ways.iter().all(|way| way["bytes_per_second"].as_f64().unwrap() > 0.0), "{one}");
        let per_drive = one["ratios"]["throughput_per_drive"].as_f64().unwrap();
        assert!(per_drive > 0.0, "{one}");
        let late = one["late_puts"]["throughput_of_8_per_memcpy_in"].as_f64().unwrap();
        assert!(late > 0.0, "{one}");
    }
    assert_eq!(report["verification"]["verified_bytes"].as_u64(), Some(bytes));
    assert_eq!(report["verification"]["failures"], 0);
}

/// A place, and an empty folder in it for the benchmark's volume.
fn place_with_folder() -> (Place, PathBuf) {
    let place = Place::empty(0);
    let folder = place.data_path("bench");
    fs::create_dir(&folder).unwrap();
    (place, folder)
}

#[test]
fn its_sidecar_has_the_given_configuration() {
    let (place, folder) = place_with_folder();
    let file = place.path("kvrail.toml");
    // Neither its volumes nor its socket: the benchmark uses its own.
    let text = "[sidecar]\nsocket = \"/nowhere/kvrail.sock\"\n[device]\nmode = \"sqpoll\"\n\
                [[volume]]\nname = \"kv\"\nmembers = [\"/nowhere/kv.img\"]\n";
    fs::write(&file, text).unwrap();
    let small = ["--op", "read", "--block", "4KiB", "--depth", "1", "--format", "json"];
    for (more, mode) in [(&[][..], "sqpoll"), (&["--set", "device.mode=interrupt"], "interrupt")] {
        let mut command = bench();
        command.args(small).arg("--dir").arg(&folder).arg("--config").arg(&file).args(more);
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let report = report(&outcome.stdout);
        clean(&report);
        assert_eq!(report["environment"]["modes"][0]["mode"], mode, "{more:?}");
    }
    nothing_left(&folder);
}

/// The number of threads in the help, under the default limits of a session.
#[test]
fn sixty_four_clients_have_room() {
    let (_place, folder) = place_with_folder();
    let mut command = bench();
    command.args(["--op", "mixed", "--block", "4KiB", "--depth", "1", "--clients", "64"]);
    let outcome = run(command.args(["--format", "json", "--dir"]).arg(&folder));
    outcome.expect(0, &[]);
    clean(&report(&outcome.stdout));
    nothing_left(&folder);
}

#[test]
fn no_key_is_taken_in_silence() {
    let unknown = run(kvrail().args(["bench", "--set", "poller.spin=1ms"]));
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("poller.spin"), "{}", unknown.stderr);
    let set = "pollers.busy_poll_max=1ms";
    let attached = ["bench", "--attach", "/no", "--volume", "kv", "--set", set];
    let refused = run(kvrail().args(attached));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains(set) && refused.stderr.contains("--attach"));
}

/// Without a terminal: the files to be written are named first, then a line for each stage, and no
/// bar. The report ends with the result.
#[test]
fn it_prints_its_stages_and_the_result() {
    let (_place, folder) = place_with_folder();
    let small = ["--op", "read", "--block", "4KiB,64KiB", "--depth", "1"];
    let outcome = run(bench().args(small).arg("--dir").arg(&folder));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let named = ["writes", "for a volume", folder.to_str().unwrap(), "removes them at the end"];
    let intention = lines.iter().position(|line| named.iter().all(|words| line.contains(words)));
    let begun = lines.iter().position(|line| line.contains("writing the pattern"));
    assert!(intention.is_some() && intention < begun, "{}", outcome.stderr);
    for words in ["writing the pattern", "case 1 of 2: read 4KiB d1", "case 2 of 2", "comparing"] {
        assert!(lines.iter().any(|line| line.contains(words)), "no {words} in {}", outcome.stderr);
    }
    assert!(!outcome.stderr.contains('\u{1b}'), "{}", outcome.stderr);
    let result = outcome.stdout.lines().any(|line| line.starts_with("Result: every byte"));
    assert!(result && !outcome.stdout.contains("os error"), "{}", outcome.stdout);
    let quiet = run(bench().args(small).arg("--quiet").arg("--dir").arg(&folder));
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""), "{}", quiet.stdout);
    nothing_left(&folder);
}

/// Without a GPU, and with an absent GPU: one sentence names what is missing, status 1.
#[test]
fn a_gpu_that_is_not_there_is_one_sentence() {
    let mut command = kvrail();
    let done = run(command.args(["bench", "--gpu", "4711"]));
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{}", done.stderr);
    let named = ["no CUDA driver", "there is no GPU 4711"];
    assert!(named.iter().any(|words| done.stderr.contains(words)), "{}", done.stderr);
    assert_eq!(done.stderr.trim().lines().count(), 1, "{}", done.stderr);
}

/// An impossible case is refused, with its status, before a volume is made and minutes are spent.
#[test]
fn wrong_options_are_refused_at_once() {
    let place = Place::empty(0);
    let (folder, missing) = (place.data_path("results"), place.data_path("missing"));
    fs::create_dir(&folder).unwrap();
    let [folder, missing] = [&folder, &missing].map(|path| path.to_str().unwrap());
    let inside = format!("{missing}/report");
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--block", "1000B"], 2, "--block 1000B"),
        (&["--seconds", "1e300"], 2, "86400"),
        (&["--open", "1e12"], 2, "100000000"),
        (&["--mode", "uring"], 2, "sqpoll+iopoll"),
        (&["--json", &inside], 2, &inside),
        (&["--json", folder], 2, "it is a directory"),
        (&["--member", missing], 2, "no such device"),
        (&["--trace", missing], 2, missing),
        (&["--attach", missing, "--volume", "kv", "--overwrite"], 4, "no sidecar"),
    ];
    for (options, status, words) in cases {
        run(kvrail().arg("bench").args(options)).expect(status, &[words]);
    }
    assert!(!Path::new(missing).exists(), "a member that is not there was made");
}

/// `kvrail bench --json report.json | head -1`.
#[test]
fn who_closes_the_pipe_gets_the_files_all_the_same() {
    let (place, folder) = place_with_folder();
    let file = place.path("report.json");
    let mut command = bench();
    command.args(["--op", "read", "--block", "4KiB", "--depth", "1", "--arms", "raw"]);
    command.arg("--dir").arg(&folder).arg("--json").arg(&file).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    clean(&report(&fs::read_to_string(&file).unwrap()));
    nothing_left(&folder);
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let (_place, folder) = place_with_folder();
    // Bit 0 of the ignored signals is the hangup: under `nohup` it ends nothing.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find(|line| line.starts_with("SigIgn:")).unwrap();
    let hangup = ignored.ends_with(['0', '2', '4', '6', '8', 'a', 'c', 'e']);
    let signals = [Signal::INT, Signal::TERM].into_iter();
    // A killed benchmark removes nothing; its sidecar does.
    for signal in signals.chain(hangup.then_some(Signal::HUP)).chain([Signal::KILL]) {
        let mut command = bench_for("60");
        command.args(["--op", "read", "--block", "4KiB", "--depth", "4"]);
        command.arg("--dir").arg(&folder).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // Its own command line names the folder, and so does that of the sidecar it started.
        eventually("the sidecar runs", || processes_of(&folder).len() > 1);
        eventually("it is measured", || {
            let made = fs::read_dir(&folder).unwrap().flatten().next();
            let socket = made.map(|made| made.path().join("kvrail.sock")).unwrap_or_default();
            let status = Client::attach(socket).and_then(|client| client.status());
            status.is_ok_and(|status| status.devices[0].reads.operations > 1000)
        });
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), (signal != Signal::KILL).then_some(130));
        eventually("its sidecar ends too", || processes_of(&folder).is_empty());
        nothing_left(&folder);
    }
}

#[test]
fn a_folder_may_have_a_path_too_long_for_a_socket() {
    let (_place, folder) = place_with_folder();
    let long = folder.join("n".repeat(120));
    fs::create_dir(&long).unwrap();
    let report = report(&run(bench().arg("--dir").arg(&long).args(["--format", "json"])).stdout);
    clean(&report);
    nothing_left(&long);
}

#[test]
fn an_attached_benchmark_leaves_the_sidecar_running() {
    let place = Place::with_volume(2, 48 << 20);
    let sidecar = Sidecar::start(&place);
    let before = sidecar.belongings();
    let mut command = bench();
    command.args(["--op", "mixed", "--block", "64KiB", "--depth", "4", "--format", "json"]);
    command.arg("--attach").arg(place.socket()).args(["--volume", "kv"]);
    run(&mut command).expect(2, &["--overwrite"]);
    let outcome = run(command.arg("--overwrite"));
    outcome.expect(0, &[]);
    let report = report(&outcome.stdout);
    clean(&report);
    assert!(report["runs"].as_array().unwrap().iter().any(|run| run["arm"] == "kvrail"));
    sidecar.wait_for_belongings(&before);
    sidecar.stop();
}

/// A file stands in for the device: existing content is refused or overwritten as requested, and no
/// label is left.
#[test]
fn members_of_ones_own_carry_no_label_afterwards() {
    let place = Place::empty(0);
    let member = place.data_path("member");
    let mut content = vec![0; 4096];
    content[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(&member, content).unwrap();
    let mut command = bench();
    command.args(["--op", "read", "--block", "4KiB", "--depth", "1", "--format", "json"]);
    command.arg("--member").arg(&member);
    run(&mut command).expect(3, &["boot sector", "--overwrite"]);
    let outcome = run(command.arg("--overwrite"));
    outcome.expect(0, &[]);
    clean(&report(&outcome.stdout));
    let seen = run(kvrail().args(["volume", "inspect", "--format", "json"]).arg(&member));
    let seen: Value = serde_json::from_str(&seen.stdout).unwrap();
    assert_eq!(seen[0]["content"]["state"], "blank", "{seen}");
}

/// Requests of an engine, with real bytes: absent blocks are put, present ones are got.
#[test]
fn requests_of_an_engine_are_played_against_the_store() {
    let (place, folder) = place_with_folder();
    let trace = place.path("requests.jsonl");
    // Ten conversations of four turns, each with the blocks of the turn before and two more.
    let lines = (0..40_u64).map(|at| {
        let (turn, chat) = (at / 10, at % 10);
        let ids: Vec<_> = (0..2 * (turn + 1)).map(|block| chat * 100 + block).collect();
        format!("{{\"timestamp\": {}, \"hash_ids\": {ids:?}}}\n", at * 1000)
    });
    fs::write(&trace, lines.collect::<String>()).unwrap();
    let play = |more: &[&str]| {
        let mut command = kvrail();
        command.args(["bench", "--store", "--trace"]).arg(&trace).arg("--dir").arg(&folder);
        run(command.args(["--speed", "100", "--block", "40000", "--clients", "2"]).args(more))
    };
    let outcome = play(&["--format", "json"]);
    outcome.expect(0, &[]);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let count = |name: &str| report[name].as_u64().unwrap();
    assert_eq!((count("requests"), count("asked"), count("wrong")), (40, 200, 0), "{report}");
    // A turn may begin before the one before it has ended.
    assert!((90..=120).contains(&count("hits")), "{report}");
    assert_eq!(count("hits") + count("stored") + count("present"), 200, "{report}");
    assert_eq!(report["errors"], serde_json::json!({}), "{report}");
    let seconds = report["seconds"].as_f64().unwrap();
    assert!(seconds >= 0.39, "39 s, a hundred times as fast: {seconds}");
    for (name, times) in [("get", count("hits")), ("put", count("stored"))] {
        assert!(times > 0 && report["latency_ns"][name]["p99"].as_f64().unwrap() > 0.0);
    }
    let outcome = play(&["--requests", "3"]);
    outcome.expect(0, &[]);
    for words in ["3 requests in", "0 errors, 0 wrong sectors", "hits inside prefixes"] {
        assert!(outcome.stdout.contains(words), "no {words:?} in {}", outcome.stdout);
    }
    // Before anything is played.
    let at =
        |words: &str| outcome.stderr.find(words).unwrap_or_else(|| panic!("{}", outcome.stderr));
    let expected = at("3 requests for 6 blocks, ");
    assert!(outcome.stderr[expected..].contains("about "), "{}", outcome.stderr);
    assert!(expected < at("playing the requests"), "{}", outcome.stderr);
    play(&["--depth", "1,2"]).expect(2, &["--depth", "one value"]);
    play(&["--depth", "200"]).expect(2, &["--depth 200", "128"]);
    play(&["--arms", "kvrail,files"]).expect(2, &["--arms", "leave --arms out"]);
    play(&["--volume-size", "64KiB"]).expect(2, &["--volume-size 64KiB", "--block 40000B"]);
    fs::write(&trace, "").unwrap();
    play(&["--arms", "kvrail"]).expect(2, &["requests.jsonl: 0 requests, and none asks"]);
    fs::write(&trace, "{\"timestamp\": 1}\n").unwrap();
    play(&[]).expect(2, &["requests.jsonl:1: hash_ids is missing"]);
    nothing_left(&folder);
}

/// A store with room for a third of the blocks. The difference between its hits and those of the
/// replay depends on the machine's pace: docs/hits.md has the figures.
#[test]
fn hits_with_bytes_are_compared_with_those_of_the_replay() {
    let (place, folder) = place_with_folder();
    let trace = place.path("sessions.jsonl");
    // Twenty-four sessions of eight turns; some return sooner than others.
    let mut random = fastrand::Rng::with_seed(36);
    let mut turns = [0_u64; 24];
    let lines = (0..192_u64).map(|at| {
        let session = random.usize(..24).min(random.usize(..24));
        turns[session] += 1;
        let ids: Vec<_> =
            (0..2 * turns[session]).map(|block| session as u64 * 1000 + block).collect();
        format!("{{\"timestamp\": {}, \"hash_ids\": {ids:?}}}\n", at * 1000)
    });
    fs::write(&trace, lines.collect::<String>()).unwrap();
    let mut command = kvrail();
    command.args(["bench", "--store", "--trace"]).arg(&trace).arg("--dir").arg(&folder);
    command.args(["--speed", "1e6", "--block", "16KiB", "--clients", "1"]);
    let outcome = run(command.args(["--volume-size", "4MiB", "--format", "json"]));
    outcome.expect(0, &[]);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let number = |name: &str| report[name].as_f64().unwrap();
    for name in ["hit_ratio", "replay_hit_ratio"] {
        assert!((0.1..0.9).contains(&number(name)), "{name} in {report}");
    }
    assert!(number("wrong") == 0.0 && number("expected_seconds") > 0.0, "{report}");
    nothing_left(&folder);
}

#[test]
fn the_table_is_for_people() {
    let (_place, folder) = place_with_folder();
    let mut command = bench();
    command.args(["--op", "read", "--block", "4KiB", "--depth", "1", "--quiet", "--dir"]);
    let outcome = run(command.arg(&folder));
    outcome.expect(0, &[]);
    for word in ["kvrail", "raw", "p50", "p99.9", "IOPS"] {
        assert!(outcome.stdout.contains(word), "no {word} in {}", outcome.stdout);
    }
    nothing_left(&folder);
}
