//! Each JSON output has a schema in docs/schemas, and each schema is what outputs have.

mod drives;
mod hardware;
mod shape;
// Reports of drives, GPUs, a target and troubles, which no flow has.
#[path = "../../../engine/metrics/tests/support/mod.rs"]
mod support;
// A host with drives, a NIC and a GPU.
#[path = "../../../engine/host/topology/tests/support/mod.rs"]
mod machine;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use kvrail_client::{BlockKey, BlockRequest, Identity, Status};
use serde_json::{Value, json};

use crate::page::fetched;
use crate::rig::{Place, Sidecar, StoreShape, kvrail, run};
use crate::store_user::StoreUser;
use shape::Shape;

/// Objects whose keys are no names of fields.
const MAPS: [&str; 2] = ["bench-trace/declined", "bench-trace/errors"];

/// Outputs by command.
#[derive(Debug, Default)]
struct Outputs(BTreeMap<&'static str, Vec<Value>>);

impl Outputs {
    /// Runs a command and keeps its document.
    fn take(&mut self, name: &'static str, command: &mut Command) {
        let outcome = run(command.args(["--format", "json"]));
        let document = serde_json::from_str(&outcome.stdout);
        let document = document.unwrap_or_else(|error| panic!("{name}: {error}: {outcome:#?}"));
        self.0.entry(name).or_default().push(document);
    }

    /// Runs a command that is refused, and keeps its error.
    fn take_error(&mut self, command: &mut Command) {
        let outcome = run(command.args(["--format", "json"]));
        let document = serde_json::from_str(&outcome.stderr).expect("one document");
        self.0.entry("error").or_default().push(document);
    }
}

fn command(words: &[&str], place: &Place) -> Command {
    let mut command = kvrail();
    command.args(words).arg("--config").arg(place.configuration());
    command
}

fn key(number: u64) -> BlockKey {
    BlockKey::of(&number.to_le_bytes())
}

/// Puts blocks, so that there is something to show, until nobody looks any more; drops one.
fn use_store(user: &mut StoreUser, is_over: impl Fn() -> bool) {
    for number in (0..).take_while(|number| *number < 20 || !is_over()) {
        user.put(key(number % 1000), 5000, b"one");
    }
    let dropped = user.run(BlockRequest::drop_block(&user.space, key(19)));
    assert_eq!(dropped, Status::Ok);
}

/// Puts a block that only memory has.
fn put_late(user: &mut StoreUser) {
    let identity = Identity::new([("model", "test")]).unwrap();
    let late = user.client.store("kv").unwrap().namespace("late one", &identity).unwrap();
    let main = std::mem::replace(&mut user.space, late);
    user.put(key(1), 5000, b"one");
    user.space = main;
}

fn of_a_host(outputs: &mut Outputs, place: &Place) {
    for (name, words) in [
        ("config-check", &["config", "check"][..]),
        ("config-show", &["config", "show"]),
        ("config-origin", &["config", "show", "--origin"]),
        ("config-show", &["config", "default"]),
        ("check", &["check"]),
        ("volume-list", &["volume", "list"]),
    ] {
        outputs.take(name, &mut command(words, place));
    }
    let sizes = ["--token-bytes", "1024", "--sessions", "9", "--context", "1000"];
    outputs.take("store-size", command(&["store", "size"], place).args(sizes));
    outputs.take("volume-inspect", command(&["volume", "inspect"], place).args(&place.members));
    let trace = place.path("trace.jsonl");
    let lines = (0..50).map(|at| json!({"timestamp": at, "hash_ids": [at % 7, at]}).to_string());
    fs::write(&trace, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let policies = ["--policy", "all,lru,memory-late"];
    outputs.take("store-replay", command(&["store", "replay"], place).arg(&trace).args(policies));
    outputs.take_error(&mut command(&["status"], place));
    outputs.take_error(command(&["volume", "wipe", "none"], place).arg("/nonexistent"));
}

fn of_a_sidecar(outputs: &mut Outputs, place: &Place) {
    let some = key(3).to_string();
    let gone = key(19).to_string();
    let other = key(77).to_string();
    let late = key(1).to_string();
    for (name, words) in [
        ("status", &["status"][..]),
        ("trace", &["trace", "--past"]),
        ("reload", &["reload"]),
        ("config-running", &["config", "show", "--running"]),
        ("store-status", &["store", "status"]),
        ("store-pools", &["store", "pools"]),
        ("store-namespaces", &["store", "namespaces"]),
        ("store-list", &["store", "list", "main", "--limit", "0", "--metadata"]),
        ("store-list", &["store", "list", "late one", "--metadata"]),
        ("store-explain", &["store", "explain", "main", &some]),
        ("store-explain", &["store", "explain", "main", &gone]),
        ("store-explain", &["store", "explain", "main", &other]),
        ("store-explain", &["store", "explain", "late one", &late]),
        ("store-verify", &["store", "verify", "--share", "100%"]),
        ("store-clear", &["store", "clear", "main", "--yes", "main"]),
        ("store-remove", &["store", "remove", "main", "--yes", "main"]),
    ] {
        outputs.take(name, &mut command(words, place));
    }
    let top = run(command(&["top", "--once"], place).args(["--format", "json"]));
    let two: [Value; 2] = serde_json::from_str(&top.stdout).expect("two reports");
    outputs.0.entry("status").or_default().extend(two);
    let bundle = place.path("bundle.tar.gz");
    outputs.take("support-bundle", command(&["support-bundle"], place).arg(bundle));
}

/// The answers of the endpoint beside the report.
fn of_the_endpoint(outputs: &mut Outputs, address: &str) {
    for (name, path) in [("history", "/history"), ("segments", "/segments")] {
        let document = serde_json::from_str(&fetched(address, path)).expect("JSON");
        outputs.0.entry(name).or_default().push(document);
    }
}

/// Everything that is shown without special hardware.
fn outputs() -> Outputs {
    let mut outputs = Outputs::default();
    let shape = StoreShape { member_bytes: 16 << 20, segment_bytes: 1 << 20, block_mean: 8 << 10 };
    let mut place = Place::with_shaped_store(2, &shape);
    place.configure_volume(
        "[[volume.pool]]\nname = \"own\"\nminimum = \"4MiB\"\nnamespaces = \"own*\"",
    );
    place.configure("[memory_tier]\nbytes = \"16MiB\"\nwrite_late = [\"late *\"]");
    of_a_host(&mut outputs, &place);
    hardware::of_hardware(&mut outputs, &place);
    drives::of_drives(&mut outputs, &place);
    let (sidecar, address) = Sidecar::start_with_metrics(&place);
    let mut user = StoreUser::open(&sidecar);
    put_late(&mut user);
    let mut trace = command(&["trace", "--slow", "1us", "--seconds", "1"], &place);
    let trace = std::thread::spawn(move || run(trace.args(["--format", "json"])));
    use_store(&mut user, || trace.is_finished());
    let traced = trace.join().unwrap().stdout;
    outputs.0.entry("trace").or_default().push(serde_json::from_str(&traced).expect("JSON"));
    of_a_sidecar(&mut outputs, &place);
    of_the_endpoint(&mut outputs, &address);
    drop(user);
    let new = place.data_path("new");
    let mut add = command(&["volume", "add", "kv", "--direct", "optional"], &place);
    outputs.take("volume-add", add.arg(&new));
    let retire = ["volume", "retire", "kv", "--member", "2"];
    outputs.take("volume-retire", &mut command(&retire, &place));
    sidecar.stop();
    let busy = serde_json::to_value(support::busy()).expect("JSON");
    outputs.0.entry("status").or_default().push(busy);
    outputs.take("store-erase", &mut command(&["store", "erase", "kv", "--yes", "kv"], &place));
    outputs
        .take("volume-repair", command(&["volume", "repair", "kv"], &place).args(&place.members));
    let mut wipe = command(&["volume", "wipe", "kv"], &place);
    outputs.take("volume-wipe", wipe.args(&place.members));
    for kind in ["raw", "store"] {
        let other = Place::empty(1);
        let mut create = command(&["volume", "create", "kv", "--size", "32MiB"], &other);
        create.args(["--kind", kind, "--direct", "optional"]);
        outputs.take("volume-create", create.args(&other.members));
        let mut inspect = command(&["volume", "inspect"], &other);
        outputs.take("volume-inspect", inspect.args(&other.members));
        outputs.take("volume-list", &mut command(&["volume", "list"], &other));
    }
    outputs
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas")
}

/// Writes the schemas again where `KVRAIL_UPDATE` is set.
#[test]
fn each_json_output_is_what_its_schema_says() {
    let mut wrong = Vec::new();
    let outputs = outputs();
    for (name, documents) in outputs.0.iter().filter(|(_, documents)| !documents.is_empty()) {
        let mut seen =
            Shape::of(documents, &|path| MAPS.contains(&format!("{name}{path}").as_str()));
        let file = folder().join(format!("{name}.json"));
        let text = fs::read_to_string(&file).unwrap_or_else(|_| "{}".into());
        let known: Value = serde_json::from_str(&text).expect("a schema is JSON");
        let schema = Shape::read(&known);
        if std::env::var_os("KVRAIL_UPDATE").is_some() {
            seen.keep(&schema);
            let mut written = seen.write();
            written.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
            written.insert("title".into(), known["title"].as_str().unwrap_or(name).into());
            fs::create_dir_all(folder()).expect("the book's folder");
            let text = serde_json::to_string_pretty(&written).expect("JSON");
            fs::write(&file, text + "\n").expect("our own folder");
            continue;
        }
        let differences = seen.differences(&schema, name);
        wrong.extend(differences.into_iter().chain(schema.open_ends(name)));
    }
    let remedy = "KVRAIL_UPDATE=1 cargo test -p kvrail-tests --test flow schemas writes them again";
    assert!(wrong.is_empty(), "{}\n{remedy}", wrong.join("\n"));
    // Each schema is one of an output, and is in the book.
    let book = fs::read_to_string(folder().join("../json.md")).expect("its page");
    let names = fs::read_dir(folder()).expect("the folder").map(|entry| entry.unwrap().file_name());
    for name in names.map(|name| name.to_string_lossy().into_owned()) {
        assert!(outputs.0.contains_key(name.trim_end_matches(".json")), "{name}: of no output");
        assert!(book.contains(&format!("(schemas/{name})")), "{name}: docs/json.md lacks it");
    }
}
