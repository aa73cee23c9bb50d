//! The exposition is readable for OpenMetrics and Prometheus, and equals the documentation.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use kvrail_metrics::{Dialect, expose, table};

use support::busy;

/// Units that are not base units, and words that a unit must not come with.
const WRONG_UNITS: [&str; 9] =
    ["_ms", "_us", "_ns", "_milliseconds", "_kib", "_mib", "_kilobytes", "_percent", "_bits"];

/// A family as a reader finds it.
#[derive(Debug, Default)]
struct Read {
    kind: String,
    unit: String,
    help: String,
    /// Name, labels without `le`, bound, value.
    samples: Vec<(String, String, Option<f64>, f64)>,
}

/// Reads what was exposed; panics where a reader would.
fn read(text: &str, dialect: Dialect) -> BTreeMap<String, Read> {
    let mut families: BTreeMap<String, Read> = BTreeMap::new();
    let (mut current, mut seen, mut ended) = (String::new(), BTreeSet::new(), false);
    for line in text.lines() {
        assert!(!ended, "something follows the end: {line}");
        if line == "# EOF" {
            ended = true;
        } else if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (what, name, value) = (words.next(), words.next().unwrap(), words.next().unwrap());
            if what == Some("TYPE") {
                assert!(!families.contains_key(name), "{name} comes twice");
                current = name.to_owned();
            }
            assert_eq!(current, name, "{line}");
            let family = families.entry(name.to_owned()).or_default();
            match what {
                Some("TYPE") => family.kind = value.to_owned(),
                Some("UNIT") => family.unit = value.to_owned(),
                Some("HELP") => family.help = value.to_owned(),
                other => panic!("{other:?} in {line}"),
            }
        } else {
            let sample = sample(line);
            assert!(seen.insert((sample.0.clone(), sample.1.clone(), sample.2.map(f64::to_bits))));
            families.get_mut(&current).expect("a head before").samples.push(sample);
        }
    }
    assert_eq!(ended, dialect == Dialect::OpenMetrics);
    families
}

fn sample(line: &str) -> (String, String, Option<f64>, f64) {
    let (head, value) = line.rsplit_once(' ').expect("a value");
    let (name, labels) = head.split_once('{').unwrap_or((head, "}"));
    assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
    let labels = labels.strip_suffix('}').expect("labels end");
    let (labels, bound) = match labels.rsplit_once("le=\"") {
        Some((labels, bound)) => (labels.trim_end_matches(','), Some(bound.trim_end_matches('"'))),
        None => (labels, None),
    };
    assert_eq!(labels.matches('"').count() % 2, 0, "{line}");
    let number = |text: &str| match text {
        "+Inf" => f64::INFINITY,
        other => other.parse().unwrap_or_else(|_| panic!("{line}")),
    };
    (name.to_owned(), labels.to_owned(), bound.map(number), number(value))
}

fn check(name: &str, family: &Read, dialect: Dialect) {
    let base = name.strip_suffix("_total").unwrap_or(name);
    assert!(name.starts_with("kvrail_"), "{name}");
    assert!(family.help.ends_with('.') && family.help.len() > 3, "{name}: {:?}", family.help);
    assert!(!WRONG_UNITS.iter().any(|unit| base.ends_with(unit)), "{name}");
    assert!(family.unit.is_empty() || base.ends_with(&format!("_{}", family.unit)), "{name}");
    let counts =
        ["_seconds", "_bytes", "_celsius", "_ratio"].iter().any(|unit| base.ends_with(unit));
    assert!(dialect == Dialect::Text || counts != family.unit.is_empty(), "{name} has a unit");
    assert!(!family.samples.is_empty(), "{name}");
    match family.kind.as_str() {
        "counter" => {
            let total = format!("{base}_total");
            assert!(family.samples.iter().all(|sample| sample.0 == total), "{name}");
            assert_eq!(name.ends_with("_total"), dialect == Dialect::Text, "{name}");
        }
        "gauge" => {
            let odd = ["_total", "_count", "_sum", "_bucket"];
            assert!(!odd.iter().any(|suffix| name.ends_with(suffix)), "{name}");
            assert!(family.samples.iter().all(|sample| sample.0 == name), "{name}");
        }
        "histogram" => check_histogram(name, family),
        other => panic!("{name} is a {other}"),
    }
}

/// Buckets rise, the last one is all, and all are counted.
fn check_histogram(name: &str, family: &Read) {
    let labels: BTreeSet<_> = family.samples.iter().map(|sample| sample.1.clone()).collect();
    for labels in labels {
        let of = |suffix: &str| {
            let name = format!("{name}{suffix}");
            let own = family.samples.iter().filter(|sample| sample.1 == labels && sample.0 == name);
            own.map(|sample| (sample.2, sample.3)).collect::<Vec<_>>()
        };
        let (buckets, count, sum) = (of("_bucket"), of("_count"), of("_sum"));
        let rises = |pair: &[(Option<f64>, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        assert!(buckets.windows(2).all(rises), "{name} {labels}: {buckets:?}");
        assert_eq!(buckets[0].0, Some(0.000_001_024));
        assert_eq!(buckets.last(), Some(&(Some(f64::INFINITY), count[0].1)));
        assert_eq!((count.len(), sum.len()), (1, 1));
        assert!(sum[0].1 > 0.0);
    }
}

#[test]
fn both_formats_are_well_formed() {
    let report = busy();
    for dialect in [Dialect::OpenMetrics, Dialect::Text] {
        let families = read(&expose(&report, dialect), dialect);
        assert!(families.len() > 80, "{}", families.len());
        for (name, family) in &families {
            check(name, family, dialect);
        }
    }
}

#[test]
fn numbers_are_those_of_the_report() {
    let text = expose(&busy(), Dialect::Text);
    for line in [
        "kvrail_poller_stalled{poller=\"3\"} 0",
        "kvrail_device_up{device=\"pci:0000:07:00.0\"} 0",
        "kvrail_device_transferred_bytes_total{device=\"pci:0000:00:00.0\",\
         operation=\"read\"} 1234567",
        "kvrail_device_up{device=\"serial:S5XYZ\"} 0",
        "kvrail_device_info{device=\"pci:0000:00:00.0\",index=\"0\",poller=\"0\",kind=\"block\",\
         mode=\"iopoll\",io=\"direct\",volume=\"kv0\",path=\"/dev/nvme0n1\",\
         kernel_name=\"nvme0n1\",serial=\"S0\",model=\"SSD\",address=\"0000:00:00.0\"} 1",
        "kvrail_volume_members{volume=\"kv0\"} 15",
        "kvrail_volume_members_wanted{volume=\"kv0\"} 17",
        "kvrail_store_state{store=\"kv0\",device=\"serial:S5XYZ\",state=\"missing\"} 1",
        "kvrail_trouble{code=\"member_missing\",severity=\"degraded\",subject=\"serial:S5XYZ\"} 1",
        "kvrail_trouble{code=\"device_gone\",severity=\"degraded\",\
         subject=\"pci:0000:07:00.0\"} 1",
        "kvrail_ready 1",
        "kvrail_store_bytes{store=\"kv0\",device=\"pci:0000:00:00.0\"} 4000000000000",
        "kvrail_store_hits_total{store=\"kv0\",device=\"pci:0000:00:00.0\"} 1000",
        "kvrail_store_declines_total{store=\"kv0\",device=\"pci:0000:00:00.0\",\
         reason=\"budget\"} 30",
        "kvrail_store_declines_total{store=\"kv0\",device=\"pci:0000:00:00.0\",\
         reason=\"busy\"} 1000",
        "kvrail_poller_doorbells_total{poller=\"0\"} 34",
        "kvrail_store_state{store=\"kv0\",device=\"pci:0000:00:00.0\",state=\"serving\"} 1",
        "kvrail_path_usable{device=\"pci:0000:00:00.0\",controller=\"nvme-live\"} 1",
        "kvrail_path_usable{device=\"pci:0000:00:00.0\",controller=\"nvme-connecting\"} 0",
        "kvrail_target_as_planned 1",
        "kvrail_config_info{path=\"/etc/kvrail/kvrail.toml\",running=\"abc\",on_disk=\"\"} 1",
        "kvrail_config_last_reload_successful 1",
        "kvrail_config_on_disk_valid 0",
        "kvrail_config_reload_pending 0",
        "kvrail_config_restart_pending 1",
        "kvrail_config_in_force_since_seconds 1770000001",
        "kvrail_trouble{code=\"config_refused\",severity=\"degraded\",\
         subject=\"configuration\"} 1",
        "kvrail_gpu_staging_slots_taken{gpu=\"0\"} 3",
        "kvrail_session_requests_completed_total{session=\"64\"} 123456789",
        "kvrail_device_latency_seconds_count{device=\"pci:0000:00:00.0\",operation=\"read\",\
         class=\"demand\"} 3000",
    ] {
        assert!(text.lines().any(|other| other == line), "no {line}");
    }
}

/// A drive that says nothing of its wear has no such series: 0 would be a promise.
#[test]
fn health_that_is_unknown_is_missing() {
    let text = expose(&busy(), Dialect::Text);
    let drive = |index: u64| format!("{{device=\"pci:0000:{index:02x}:00.0\"}}");
    for (metric, value) in [
        ("kvrail_drive_temperature_celsius", "41"),
        ("kvrail_drive_temperature_limit_celsius", "70"),
        ("kvrail_drive_life_used_ratio", "0.07"),
        ("kvrail_drive_spare_ratio", "1"),
        ("kvrail_drive_spare_threshold_ratio", "0.1"),
        ("kvrail_drive_critical_warnings", "1"),
        ("kvrail_drive_media_errors_total", "2"),
    ] {
        let line = format!("{metric}{} {value}", drive(0));
        assert!(text.lines().any(|other| other == line), "no {line}");
        let second = format!("{metric}{}", drive(1));
        let known = text.lines().any(|line| line.starts_with(&second));
        assert_eq!(known, metric == "kvrail_drive_temperature_celsius", "{second}");
    }
}

#[test]
fn a_counter_that_the_sidecar_did_not_send_is_missing() {
    let mut report = busy();
    report.shards[0].counters.store.puts = None;
    report.shards[0].counters.store.misses_absent = None;
    report.pollers[0].counters.doorbells = None;
    report.devices[0].counters.errors = None;
    report.sessions[0].counters.accepted = None;
    report.gpus[0].counters.moves = None;
    report.sidecar.counters.log_lines_lost = None;
    let text = expose(&report, Dialect::Text);
    let samples = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(samples("kvrail_store_puts_total{"), report.shards.len() - 1);
    assert_eq!(samples("kvrail_poller_doorbells_total{"), report.pollers.len() - 1);
    assert_eq!(samples("kvrail_device_errors_total{"), report.devices.len() - 1);
    assert_eq!(samples("kvrail_session_requests_accepted_total{"), report.sessions.len() - 1);
    assert_eq!(samples("kvrail_gpu_moves_total{"), report.gpus.len() - 1);
    assert_eq!(samples("kvrail_log_lines_lost_total "), 0);
    let first = "kvrail_store_misses_total{store=\"kv0\",device=\"pci:0000:00:00.0\",";
    let reasons = text.lines().filter_map(|line| line.strip_prefix(first)?.split('"').nth(1));
    let reasons: Vec<_> = reasons.collect();
    assert_eq!(reasons, ["recovering", "pending", "distrusted", "other_length", "drive_gone"]);
}

/// Prometheus' own judgement, where it is installed (Debian package prometheus).
#[test]
fn prometheus_has_nothing_to_say() {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let Ok(mut promtool) = promtool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
        println!("skipped: no promtool in PATH (Debian package prometheus)");
        return;
    };
    let text = expose(&busy(), Dialect::Text);
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.is_empty() && err.is_empty(), "{out}{err}");
}

/// The folder of rules and dashboards.
fn config() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config")
}

/// Names of metrics in a text: words that begin with the prefix.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    words.filter(|word| word.starts_with("kvrail_")).map(str::to_owned).collect()
}

#[test]
fn rules_and_dashboards_ask_for_metrics_that_are_there() {
    let known = named(&expose(&busy(), Dialect::Text));
    for file in ["prometheus/kvrail-alerts.yaml", "grafana/kvrail.json"] {
        let text = std::fs::read_to_string(config().join(file)).unwrap();
        let asked = named(&text);
        assert!(asked.len() > 15, "{file}: {asked:?}");
        let unknown: Vec<_> = asked.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} asks for {unknown:?}");
    }
    let board = std::fs::read_to_string(config().join("grafana/kvrail.json")).unwrap();
    let board: serde_json::Value = serde_json::from_str(&board).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let has = |key: &str| !panel[key].is_null();
        assert!(has("title") && has("gridPos") && (has("targets") || panel["type"] == "row"));
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels {}", panel["id"]);
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        let cells = (0..place("h")).flat_map(|y| (0..place("w")).map(move |x| (y, x)));
        for (y, x) in cells {
            let free = taken.insert((place("y") + y, place("x") + x));
            assert!(free, "{} lies over another panel", panel["title"]);
        }
    }
}

/// The alerts by name, each with the text of its rule.
fn alerts() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(config().join("prometheus/kvrail-alerts.yaml")).unwrap();
    let rules = text.split("- alert: ").skip(1);
    let named = rules.map(|rule| (rule.lines().next().unwrap().to_owned(), rule.to_owned()));
    named.collect()
}

/// Which alert needs no time: each is about something that has happened, or is over many samples.
const AT_ONCE: [&str; 5] =
    ["KvrailCorrupt", "KvrailCrashLoop", "KvrailDeviceErrors", "KvrailGpuFailed", "KvrailSuspects"];

#[test]
fn each_alert_has_a_runbook_a_test_and_panels() {
    let read = |path: &str| std::fs::read_to_string(config().join(path)).unwrap();
    let (pages, board) = (read("../docs/runbooks.md"), named(&read("grafana/kvrail.json")));
    let tests = read("prometheus/kvrail-alerts-test.yaml");
    let alerts = alerts();
    let sections: BTreeMap<_, _> = pages
        .split("\n## ")
        .skip(1)
        .map(|page| page.split_once('\n').unwrap_or_else(|| panic!("{page}")))
        .collect();
    let documented: Vec<_> = sections.keys().copied().collect();
    assert_eq!(documented, alerts.keys().map(String::as_str).collect::<Vec<_>>());
    for (name, rule) in &alerts {
        let page = sections[name.as_str()];
        let parts = ["Means", "Look at", "Do", "Over when"];
        let places = parts.map(|part| page.find(&format!("\n- **{part}.** ")));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{name}: {page}");
        let url = format!("/runbooks.md#{}\"\n", name.to_lowercase());
        for part in [&url, "severity: ", "summary: ", "remedy: ", "{{ $labels.instance }}: "] {
            assert!(format!("{rule}\n").contains(part), "{name} has no {part:?}");
        }
        assert_ne!(rule.contains("\n        for: "), AT_ONCE.contains(&name.as_str()), "{name}");
        let fires = format!("alertname=\"{name}\",alertstate=\"firing\"}}', value: 1");
        assert!(tests.contains(&fires), "{name}: no test has it fire");
        let (expression, _) = rule.split_once("labels: {severity").unwrap();
        let unseen: Vec<_> = named(expression).difference(&board).cloned().collect();
        assert!(unseen.is_empty(), "{name}: no panel shows {unseen:?}");
    }
}

#[test]
fn alerts_fire_for_what_they_are_for() {
    let mut promtool = Command::new("promtool");
    promtool.args(["test", "rules", "kvrail-alerts-test.yaml"]);
    match promtool.current_dir(config().join("prometheus")).output() {
        Err(_) => println!("skipped: no promtool in PATH (Debian package prometheus)"),
        Ok(said) => {
            let text =
                String::from_utf8_lossy(&said.stdout) + String::from_utf8_lossy(&said.stderr);
            assert!(said.status.success(), "{text}");
        }
    }
}

/// Writes the table again where `KVRAIL_UPDATE` is set.
#[test]
fn the_documentation_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once("<!-- table -->\n").expect("where the table begins");
    let (_, tail) = rest.split_once("<!-- end of table -->").expect("where it ends");
    let right = format!("{head}<!-- table -->\n{}<!-- end of table -->{tail}", table());
    if std::env::var_os("KVRAIL_UPDATE").is_some() {
        std::fs::write(&path, right).unwrap();
    } else {
        let remedy = "KVRAIL_UPDATE=1 cargo test -p kvrail-metrics writes docs/metrics.md again";
        assert!(page == right, "docs/metrics.md differs from the code: {remedy}");
    }
}

/// Prints what a scrape costs; the aim is 5 ms with optimisation.
#[test]
fn a_full_sidecar_is_written_out() {
    let report = busy();
    let start = Instant::now();
    let text = expose(&report, Dialect::OpenMetrics);
    let (lines, bytes) = (text.lines().count(), text.len());
    println!("{lines} lines, {bytes} bytes in {:?}", start.elapsed());
    assert!(lines > 2000, "{lines}");
}
