//! A real Prometheus (Debian package `prometheus`) with the scrape configuration of the
//! documentation and the shipped alert rules.

mod faults;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::rig::{Place, Sidecar, eventually};

/// Intervals between two scrapes and between two evaluations of the rules.
const GLOBAL: &str = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n";

/// The address in the documentation's configuration.
const DOCUMENTED: &str = "127.0.0.1:9464";

const RULES: &str = "kvrail-alerts.yaml";

/// The log line that names its address.
const LISTENS: &str = "\"Listening on\" address=";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The rules as they are shipped.
fn rules() -> String {
    fs::read_to_string(repository().join("config/prometheus").join(RULES)).unwrap()
}

/// A running Prometheus; killed when it is dropped.
struct Prometheus {
    child: Child,
    address: String,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts one that scrapes this address, with these rules; `None`, with a line printed, where
    /// it is missing.
    fn start(target: &str, rules: &str) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let page = fs::read_to_string(repository().join("docs/metrics.md")).unwrap();
        let (_, example) = page.split_once("```yaml\n").expect("a configuration");
        let (example, _) = example.split_once("```").expect("its end");
        assert!(example.contains(DOCUMENTED) && example.contains("rule_files"), "{example}");
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, format!("{GLOBAL}{}", example.replace(DOCUMENTED, target))).unwrap();
        fs::write(folder.path().join(RULES), rules).unwrap();
        let mut command = Command::new("prometheus");
        command.arg("--config.file").arg(file);
        command.arg("--storage.tsdb.path").arg(folder.path().join("data"));
        command.args(["--web.listen-address", "127.0.0.1:0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            println!("skipped: no prometheus in PATH (Debian package prometheus)");
            return None;
        };
        let mut log = BufReader::new(child.stderr.take().expect("piped"));
        let (mut text, mut address) = (String::new(), None);
        while address.is_none() && log.read_line(&mut text).unwrap() > 0 {
            let found = text.split_once(LISTENS).and_then(|(_, rest)| rest.lines().next());
            address = found.map(str::to_owned);
        }
        // Prometheus keeps writing its log, and must not block on a full pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let address = address.unwrap_or_else(|| panic!("it does not listen: {text}"));
        let it = Self { child, address, _folder: folder };
        // It refuses queries until it has read its data.
        eventually("it is ready", || it.get("-/ready").starts_with("HTTP/1.0 200"));
        Some(it)
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(format!("GET /{path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// An answer of its API.
    fn ask(&self, path: &str) -> Value {
        let text = self.get(&format!("api/v1/{path}"));
        let (_, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {text}"));
        let answer: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{path}: {text}"));
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The samples of a query.
    fn query(&self, query: &str) -> Vec<f64> {
        let data = self.ask(&format!("query?query={query}"));
        let samples = data["result"].as_array().expect("a vector");
        samples.iter().map(|sample| sample["value"][1].as_str().unwrap().parse().unwrap()).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Names of the samples in a sidecar's exposition.
fn names(exposed: &str) -> Vec<String> {
    let lines = exposed.lines().filter(|line| !line.starts_with('#'));
    let mut names: Vec<_> =
        lines.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

fn exposed(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// promtool finds no fault in the exposition of a live sidecar.
fn check_metrics(exposed: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut promtool = promtool.stderr(Stdio::piped()).spawn().expect("it comes with prometheus");
    promtool.stdin.take().expect("piped").write_all(exposed.as_bytes()).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    assert!(checked.status.success() && checked.stdout.is_empty(), "{checked:?}");
    assert!(checked.stderr.is_empty(), "{checked:?}");
}

#[test]
fn prometheus_scrapes_a_sidecar_and_its_alerts_stand_watch() {
    let place = Place::with_store(2, 64 << 20);
    let (sidecar, target) = Sidecar::start_with_metrics(&place);
    let Some(prometheus) = Prometheus::start(&target, &rules()) else {
        return drop(sidecar.stop());
    };
    check_metrics(&exposed(&target));

    eventually("it is up", || prometheus.query("up") == [1.0]);
    let targets = prometheus.ask("targets");
    let target_of = &targets["activeTargets"][0];
    assert_eq!((&target_of["health"], &target_of["lastError"]), (&"up".into(), &"".into()));
    assert_eq!(target_of["labels"]["job"], "kvrail", "the job that alerts are for");

    // All exposed samples have arrived, with the sidecar's values.
    let known = prometheus.ask("label/__name__/values");
    let known: Vec<&str> = known.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for name in names(&exposed(&target)) {
        assert!(known.contains(&name.as_str()), "{name} has not arrived");
    }
    let report = sidecar.status();
    let written = || -> f64 { prometheus.query("kvrail_store_memory_bytes").iter().sum() };
    let memory: u64 = report.shards.iter().map(|shard| shard.memory_bytes).sum();
    assert_eq!(written(), memory as f64);

    // Every rule can be evaluated, and none fires for a healthy sidecar.
    let known = || prometheus.ask("rules")["groups"][0]["rules"].as_array().cloned().unwrap();
    assert_eq!(known().len(), rules().matches("- alert:").count());
    eventually("rules are looked at", || known().iter().all(|rule| rule["health"] == "ok"));
    let firing = |name: &str| {
        let alerts = prometheus.ask("alerts")["alerts"].as_array().cloned().unwrap();
        alerts.iter().any(|alert| alert["labels"]["alertname"] == name)
    };
    assert_eq!(prometheus.ask("alerts")["alerts"], Value::Array(Vec::new()));

    // An alert fires for a sidecar that ends.
    sidecar.stop();
    eventually("it is missed", || prometheus.query("up") == [0.0] && firing("KvrailDown"));
    kill_process(Pid::from_child(&prometheus.child), Signal::TERM).unwrap();
}
