//! Configurations that must be refused, and the words of each refusal.

use std::ffi::OsString;

use crate::config::{ConfigError, Layers, load};

const VOLUME: &str = "[[volume]]\nname = \"a\"\nmembers = [\"/dev/x\"]\n";

/// Text of a file, and parts of the message.
#[rustfmt::skip]
const FILES: &[(&str, &[&str])] = &[
    // Refusals of the parser: with line, caret and the right form.
    ("[sidecar", &["line 1", "^"]),
    ("a b", &["line 1", "^"]),
    ("[limits]\nsessions = 1\nsessions = 2", &["line 3", "^", "duplicate"]),
    ("[limits]\n[limits]", &["line 2", "duplicate"]),
    ("[limits]\nsessions =", &["line 2"]),
    ("[sidecar]\nsocket = \"/x", &["line 2"]),
    ("[engine]\n", &["line 1", "^", "unknown field `engine`", "sidecar"]),
    ("speed = 1", &["line 1", "^", "unknown field `speed`"]),
    ("[sidecar]\nsokcet = \"/x\"", &["line 2", "^^^^^^", "unknown field `sokcet`", "socket"]),
    ("[pollers]\nspins = 1", &["line 2", "unknown field `spins`", "busy_poll_max"]),
    ("[memory]\npage = \"auto\"", &["unknown field `page`", "pages"]),
    ("[limits]\nsession = 1", &["unknown field `session`", "sessions"]),
    ("[device]\nmodes = 1", &["unknown field `modes`", "mode"]),
    ("[[volume]]\nname = \"a\"\nmembers = []\nsize = 1", &["line 4", "unknown field `size`"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/x\"]\n[volume.device]\nqueue = 1",
        &["line 5", "unknown field `queue`", "queue_depth"]),
    ("[[volume]]\nname = \"a\"", &["missing field `members`"]),
    ("[[volume]]\nmembers = [\"/x\"]", &["missing field `name`"]),
    ("[volume]\nname = \"a\"", &["invalid type: map", "sequence"]),
    ("limits = 3", &["line 1", "^", "invalid type: integer `3`", "Limits"]),
    // Types and words.
    ("[limits]\nsessions = \"many\"", &["line 2", "^", "invalid type: string \"many\""]),
    ("[limits]\nsessions = -1", &["line 2", "invalid value: integer `-1`"]),
    ("[limits]\nsessions = 1.5", &["invalid type: floating point `1.5`"]),
    ("[limits]\nsessions = 4294967296", &["invalid value: integer `4294967296`"]),
    ("[limits]\narena_bytes_total = 4096", &["line 2", "a size such as \"256KiB\""]),
    ("[limits]\narena_bytes_total = \"4096K\"", &["\"4096K\" is not a size", "KiB"]),
    ("[limits]\narena_bytes_total = \"4KB\"", &["\"4KB\" is not a size"]),
    ("[limits]\narena_bytes_total = \"-4KiB\"", &["\"-4KiB\" is not a size"]),
    ("[limits]\narena_bytes_total = \"1.5GiB\"", &["\"1.5GiB\" is not a size"]),
    ("[limits]\narena_bytes_total = \"99999999999TiB\"", &["64 bits"]),
    ("[sidecar]\ndrain_timeout = 30", &["line 2", "a length of time such as \"20us\""]),
    ("[sidecar]\ndrain_timeout = \"30\"", &["\"30\" is not a length of time"]),
    ("[sidecar]\ndrain_timeout = \"soon\"", &["\"soon\" is not a length of time"]),
    ("[sidecar]\ndrain_timeout = \"9999999h\"", &["584 years"]),
    ("[sidecar]\nsocket_mode = 432", &["a file mode such as \"0660\""]),
    ("[sidecar]\nsocket_mode = \"rw-rw----\"", &["is not a file mode"]),
    ("[sidecar]\nsocket_mode = \"0888\"", &["is not a file mode"]),
    ("[sidecar]\nallow_uids = 1000", &["invalid type: integer", "sequence"]),
    ("[sidecar]\nallow_uids = [\"root\"]", &["invalid type: string \"root\""]),
    ("[sidecar]\nlog_format = \"xml\"", &["unknown variant `xml`", "`text` or `json`"]),
    ("[pollers]\ncount = \"all\"", &["line 2", "\"auto\" or a whole number"]),
    ("[pollers]\ncount = 1.5", &["\"auto\" or a whole number"]),
    ("[pollers]\ncount = -1", &["\"auto\" or a whole number"]),
    ("[pollers]\ncount = 70000", &["\"auto\" or a whole number"]),
    ("[pollers]\ncpus = 3", &["\"auto\" or a list of CPU numbers"]),
    ("[pollers]\ncpus = [\"a\"]", &["\"auto\" or a list of CPU numbers"]),
    ("[pollers]\nbusy_poll_max = 20", &["\"auto\" or a length of time"]),
    ("[pollers]\nbusy_poll_max = \"20\"", &["\"auto\" or a length of time"]),
    ("[memory]\npages = \"3MiB\"", &["unknown variant `3MiB`", "`2MiB`"]),
    ("[device]\nmode = \"fast\"", &["line 2", "mode \"fast\" is unknown", "sqpoll+iopoll"]),
    ("[device]\ndirect = true", &["line 2"]),
    ("[device]\ndirect = \"maybe\"", &["unknown variant `maybe`", "`required`"]),
    ("[device]\nsq_cpu = \"first\"", &["\"auto\" or a whole number"]),
    ("[[volume]]\nname = \"a b\"\nmembers = [\"/x\"]", &["line 2", "not a volume name", "1 to 63"]),
    ("[[volume]]\nname = \"\"\nmembers = [\"/x\"]", &["not a volume name"]),
    ("[[volume]]\nname = 7\nmembers = [\"/x\"]", &["invalid type: integer `7`"]),
    ("[[volume]]\nname = \"a\"\nmembers = \"/x\"", &["invalid type: string \"/x\"", "sequence"]),
    ("[gpu]\ndevices = \"all\"", &["line 2", "invalid type: string \"all\"", "sequence"]),
    ("[gpu]\ndevices = [0]", &["line 2", "a GPU such as"]),
    ("[gpu]\ndevices = [\"h200\"]", &["line 2", "\"h200\" names no GPU", "nvidia-smi -L"]),
    ("[gpu]\ndevices = [\"GPU-12\"]", &["line 2", "`GPU-12` is no GPU UUID", "nvidia-smi -L"]),
    ("[gpu]\nmechanism = \"direct\"", &["unknown variant `direct`", "`require-direct`"]),
    ("[gpu]\nstaging_bytes = 5", &["line 2", "a size such as \"256KiB\""]),
    ("[gpu]\ncpus = 3", &["\"auto\" or a list of CPU numbers"]),
    ("[gpu]\ndevice = []", &["unknown field `device`", "devices"]),
    // Ranges: key, value, origin, rule.
    ("[gpu]\ndevices = [\"1\", \"0\", \"1\"]", &["gpu.devices = [1, 0, 1]", "toml:2", "1 twice"]),
    ("[gpu]\ndevices = [\"all\", \"0\"]", &["gpu.devices = [all, 0]", "names the others already"]),
    ("[gpu]\nstaging_slot_bytes = \"32KiB\"",
        &["gpu.staging_slot_bytes = 32KiB", "64KiB to 64MiB"]),
    ("[gpu]\nstaging_slot_bytes = \"66000B\"", &["gpu.staging_slot_bytes = 66000B", "whole pages"]),
    ("[gpu]\nstaging_bytes = \"3MiB\"", &["gpu.staging_bytes = 3MiB", "4 slots of 2MiB to 1GiB"]),
    ("[gpu]\nstaging_bytes = \"2GiB\"", &["gpu.staging_bytes = 2GiB", "to 1GiB"]),
    ("[gpu]\nstaging_bytes = \"5500KiB\"", &["gpu.staging_bytes", "in whole slots"]),
    ("[pollers]\ncpus = [2, 3]\n[gpu]\ncpus = [3]", &["gpu.cpus = 3", "toml:4", "pollers.cpus"]),
    ("[limits]\ngpu_regions_per_session = 513",
        &["limits.gpu_regions_per_session = 513", "1 to 512"]),
    ("[limits]\ngpu_bytes_per_session = \"0B\"", &["limits.gpu_bytes_per_session = 0B", "4KiB"]),
    ("[sidecar]\nsocket = \"kvrail.sock\"",
        &["sidecar.socket = kvrail.sock", "toml:2", "absolute"]),
    ("[sidecar]\nsocket = \"/\"", &["sidecar.socket = /", "absolute path of a socket"]),
    ("[sidecar]\nsocket = \"\"", &["sidecar.socket = ", "absolute"]),
    ("[sidecar]\nsocket_mode = \"0066\"", &["sidecar.socket_mode = 0066", "owner"]),
    ("[sidecar]\nallow_uids = [5, 6, 5]", &["sidecar.allow_uids = [5, 6, 5]", "5 twice"]),
    ("[sidecar]\nallow_gids = [7, 7]", &["sidecar.allow_gids = [7, 7]", "7 twice"]),
    ("[sidecar]\nallow_uids = [4294967295]", &["sidecar.allow_uids", "no id"]),
    ("[sidecar]\ndrain_timeout = \"2h\"", &["sidecar.drain_timeout = 2h", "0s to 1h"]),
    ("[sidecar]\nlog = \"info,=,\"", &["sidecar.log", "log filter"]),
    ("[sidecar]\nsocket = \"/a\\u0000b\"", &["sidecar.socket", "toml:2", "zero byte"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/a\", \"/x\\u0000y\"]",
        &["volume.0.members = \"/x\\0y\"", "zero byte"]),
    ("[target]\nstate_dir = \"/a\\u0000\"", &["target.state_dir", "zero byte"]),
    ("[gpu]\ncpus = [1]", &["gpu.cpus = [1]", "1 CPUs, gpu.devices names 0 GPUs"]),
    ("[gpu]\ndevices = [\"0\", \"1\"]\ncpus = [1, 2, 3]", &["gpu.cpus", "3 CPUs", "2 GPUs"]),
    ("[gpu]\ndevices = [\"all\"]\ncpus = [1, 1]", &["gpu.cpus", "CPU 1 twice"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/a\"]\n[[volume.tenant]]\nnamespaces = \"a*b\"\n\
      rights = \"read\"", &["volume.0.tenant.0.namespaces = \"a*b\"", "`*` at its end"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/a\"]\n[[volume.tenant]]\nnamespaces = \"a\"\n\
      rights = \"own\"\nuids = [1, 1]", &["volume.0.tenant.0.uids = [1, 1]", "1 twice"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/a\"]\n[[volume.tenant]]\nnamespaces = \"a\"\n\
      rights = \"drop\"", &["unknown variant `drop`", "`own`"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/a\"]\n[[volume.pool]]\nname = \"b\"\n\
      namespaces = \"*a\"", &["volume.0.pool.0.namespaces = \"*a\"", "`*` at its end"]),
    ("[memory_tier]\nbytes = \"16MiB\"\nwrite_late = [\"a*b\", \"\"]",
     &["memory_tier.write_late = \"a*b\"", "memory_tier.write_late = \"\"", "`*` at its end"]),
    ("[memory_tier]\nbytes = \"16MiB\"\nwrite_late = [\"a *\", \"b\", \"a *\"]",
     &["memory_tier.write_late = \"a *\"", "named twice"]),
    ("[memory_tier]\nbytes = \"16MiB\"\nwrite_late = [\"01234567890123456789012345678901234567890\
      123456789012345678901234*\"]", &["memory_tier.write_late = \"012345678901234567890123\"...",
     "65 bytes", "64 bytes at most"]),
    ("[memory_tier]\nbytes = \"16MiB\"\nwrite_late = [\"a\\nb\"]",
     &["memory_tier.write_late = \"a\\nb\"", "control characters"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/a\"]\n[[volume.pool]]\nname = \"a b\"\n\
      namespaces = \"a\"\nminimum = \"20%\"\nmaximum = \"10%\"",
     &["volume.0.pool.0.name = a b", "1 to 32 of", "pool.0.minimum = 20%", "maximum, 10%"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/a\"]\n[[volume.pool]]\nname = \"default\"\n\
      minimum = \"40%\"\n[[volume.pool]]\nname = \"b\"\nnamespaces = \"b\"\nminimum = \"60.01%\"",
     &["volume.0.pool = ...", "minimums are more than 100%"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/a\"]\n[[volume.pool]]\nname = \"default\"\n\
      namespaces = \"a\"", &["volume.0.pool.0.namespaces = a", "no other pool names"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/a\"]\n[[volume.pool]]\nname = \"b\"\n\
      namespaces = \"a\"\nminimum = \"110%\"", &["110%", "0% to 100%", "1TiB"]),
    ("[sidecar]\nlog = \"inof\"", &["sidecar.log", "\"inof\" is no level"]),
    ("[sidecar]\nlog = \"\"", &["sidecar.log", "no level"]),
    ("[pollers]\ncount = 0", &["pollers.count = 0", "toml:2", "1 to 64"]),
    ("[pollers]\ncount = 65", &["pollers.count = 65", "1 to 64"]),
    ("[pollers]\ncpus = []", &["pollers.cpus = []", "1 to 64"]),
    ("[pollers]\ncpus = [1, 2, 1]", &["pollers.cpus = [1, 2, 1]", "CPU 1 twice"]),
    ("[pollers]\ncpus = [9000]", &["pollers.cpus", "CPU 9000 is beyond 8191"]),
    ("[pollers]\nbusy_poll_max = \"2s\"", &["pollers.busy_poll_max = 2s", "0s to 1s"]),
    ("[pollers]\nheartbeat = \"1ms\"", &["pollers.heartbeat = 1ms", "10ms to 1m"]),
    ("[pollers]\nheartbeat = \"2m\"", &["pollers.heartbeat = 2m"]),
    ("[limits]\nsessions = 0", &["limits.sessions = 0", "1 to 64"]),
    ("[limits]\nsessions = 65", &["limits.sessions = 65"]),
    ("[limits]\nsessions_per_uid = 0", &["limits.sessions_per_uid = 0", "1 to 64"]),
    ("[limits]\nsessions_per_uid = 65", &["limits.sessions_per_uid = 65"]),
    ("[limits]\narenas_per_session = 0", &["limits.arenas_per_session = 0", "1 to 512"]),
    ("[limits]\narenas_per_session = 513", &["limits.arenas_per_session = 513"]),
    ("[limits]\narena_bytes_per_session = \"0B\"",
        &["limits.arena_bytes_per_session = 0B", "4KiB to 1TiB"]),
    ("[limits]\narena_bytes_total = \"2TiB\"", &["limits.arena_bytes_total = 2TiB"]),
    ("[limits]\nqueues_per_session = 0", &["limits.queues_per_session = 0"]),
    ("[limits]\nlane_depth = 0", &["limits.lane_depth = 0", "power of two"]),
    ("[limits]\nlane_depth = 100", &["limits.lane_depth = 100", "power of two"]),
    ("[limits]\nlane_depth = 8192", &["limits.lane_depth = 8192", "2 to 4096"]),
    ("[limits]\nqueues_per_session = 1025", &["limits.queues_per_session = 1025", "1 to 1024"]),
    ("[limits]\nhandshake_timeout = \"0s\"", &["limits.handshake_timeout = 0s", "10ms to 1m"]),
    ("[device]\nqueue_depth = 0", &["device.queue_depth = 0", "1 to 4096"]),
    ("[device]\nqueue_depth = 4097", &["device.queue_depth = 4097"]),
    ("[device]\nin_flight_bytes = \"4KiB\"", &["device.in_flight_bytes = 4KiB", "64KiB to 16GiB"]),
    ("[device]\nsq_idle = \"0ms\"", &["device.sq_idle = 0s", "1ms to 1m"]),
    ("[device]\nsq_idle = \"1500us\"", &["device.sq_idle = 1500us", "whole milliseconds"]),
    ("[device]\nsq_cpu = 9000", &["device.sq_cpu = 9000", "0 to 8191"]),
    ("[[volume]]\nname = \"a\"\nmembers = []", &["volume.0.members", "toml:3", "1 to 64"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"x\"]", &["volume.0.members = x", "absolute"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"pci:3b\"]", &["line 3", "^", "0000:3b:00.0"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"serial:A/0\"]", &["line 3", "no namespace id"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"wwid:00\"]", &["line 3", "eui., nvme. or uuid."]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"pci:3b:00.0\", \"pci:0000:3B:00.0\"]",
        &["volume.0.members = pci:0000:3b:00.0", "volume a has this member already"]),
    ("[target]\nconfigfs = \"nvmet\"", &["target.configfs = nvmet", "toml:2", "absolute"]),
    ("[target]\nstate_dir = \"state\"", &["target.state_dir = state", "absolute"]),
    ("[target]\nreconcile_interval = \"1ms\"", &["target.reconcile_interval = 1ms", "100ms to 1h"]),
    ("[target]\non_shutdown = \"remove\"", &["unknown variant `remove`", "`keep` or `teardown`"]),
    ("[[target.subsystem]]\nnqn = \"x\"", &["target.subsystem.0.nqn = \"x\"", "toml:2", "YYYY-MM"]),
    ("[[target.port]]\nid = 1\ntransport = \"loop\"\nsubsystems = []",
        &["target.port.0.subsystems = []", "toml:4", "never opened"]),
    // Contradictions.
    ("[pollers]\ncount = 3\ncpus = [1, 2]", &["pollers.count = 3", "pollers.cpus has 2"]),
    ("[limits]\narena_bytes_total = \"1GiB\"",
        &["limits.arena_bytes_per_session = 128GiB (default)", "more than all (1GiB)"]),
    ("[device]\nmode = \"iopoll\"\ndirect = \"off\"", &["device.mode = \"iopoll\"", "O_DIRECT"]),
    ("[device]\nmode = \"sqpoll+iopoll\"\ndirect = \"optional\"", &["O_DIRECT only"]),
    ("[device]\nmode = \"passthrough\"\ndirect = \"off\"", &["\"passthrough\"", "O_DIRECT only"]),
    ("[device]\nwrite_stream = 300", &["line 2", "300", "\"auto\" or a whole number"]),
    ("[device]\nmode = \"interrupt\"\nsq_cpu = 1", &["device.sq_cpu = 1", "no kernel thread"]),
    ("[device]\nmode = \"iopoll\"\nsq_cpu = 1", &["device.sq_cpu = 1", "no kernel thread"]),
    ("[pollers]\ncpus = [1]\n[device]\nmode = \"sqpoll\"\nsq_cpu = 1",
        &["device.sq_cpu = 1", "a poller spins"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/x\"]\n[[volume]]\nname = \"a\"\nmembers = [\"/y\"]",
        &["volume.1.name = a", "volume.0 has this name too"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/x\", \"/x\"]",
        &["volume.0.members = /x", "volume a has this member already"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/d/x\"]\n\
      [[volume]]\nname = \"b\"\nmembers = [\"/d/./e/../x\"]",
        &["volume.1.members", "volume a has this member already"]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/x\"]\n\
      [volume.device]\nmode = \"iopoll\"\ndirect = \"off\"",
        &["volume.0.device.mode", "toml:5", "O_DIRECT"]),
    ("[device]\ndirect = \"off\"\n[[volume]]\nname = \"a\"\nmembers = [\"/x\"]\n\
      [volume.device]\nmode = \"iopoll\"", &["volume.0.device.mode = \"iopoll\""]),
    ("[[volume]]\nname = \"a\"\nmembers = [\"/x\"]\n[volume.device]\nqueue_depth = 0",
        &["volume.0.device.queue_depth = 0", "1 to 4096"]),
];

/// Environment variables.
#[rustfmt::skip]
const VARIABLES: &[(&str, &str, &[&str])] = &[
    ("KVRAIL_DEVICE__MOED", "auto", &["environment KVRAIL_DEVICE__MOED", "unknown field `moed`"]),
    ("KVRAIL_ENGINE__X", "1", &["environment KVRAIL_ENGINE__X", "unknown field `engine`"]),
    ("KVRAIL_SOCKET", "/x", &["environment KVRAIL_SOCKET", "KVRAIL_SECTION__KEY"]),
    ("KVRAIL_", "1", &["environment KVRAIL_", "KVRAIL_SECTION__KEY"]),
    ("KVRAIL_DEVICE__MODE", "fast",
        &["environment KVRAIL_DEVICE__MODE", "mode \"fast\" is unknown"]),
    ("KVRAIL_LIMITS__SESSIONS", "0",
        &["limits.sessions = 0 (environment KVRAIL_LIMITS__SESSIONS)"]),
    ("KVRAIL_LIMITS__SESSIONS", "", &["environment KVRAIL_LIMITS__SESSIONS", "invalid type"]),
    ("KVRAIL_DEVICE__MODE__X", "1", &["environment KVRAIL_DEVICE__MODE__X"]),
    ("KVRAIL_VOLUME__7__NAME", "b", &["environment KVRAIL_VOLUME__7__NAME", "no volume \"7\""]),
    ("KVRAIL_VOLUME", "a", &["environment KVRAIL_VOLUME", "invalid type"]),
];

/// `--set`.
#[rustfmt::skip]
const SETS: &[(&str, &[&str])] = &[
    ("device.mode", &["--set device.mode", "section.key=value"]),
    ("=1", &["--set =1", "section.key=value"]),
    ("device..mode=auto", &["section.key=value"]),
    ("device.moed=auto", &["--set device.moed=auto", "unknown field `moed`"]),
    ("device.mode=fast", &["--set device.mode=fast", "mode \"fast\" is unknown"]),
    ("device.queue_depth=0", &["device.queue_depth = 0 (--set device.queue_depth=0)", "1 to 4096"]),
    ("limits.sessions=[1]", &["--set limits.sessions=[1]", "invalid type"]),
    ("volume.b.name=c", &["--set volume.b.name=c", "there is no volume \"b\""]),
    ("volume.a.size=1", &["--set volume.a.size=1", "unknown field `size`"]),
    ("limits=1", &["--set limits=1", "invalid type"]),
];

fn refusal(layers: &Layers) -> String {
    match load(layers) {
        Ok(_) => panic!("taken: {layers:?}"),
        Err(error) => {
            assert!(!error.remedy().is_empty());
            error.to_string()
        }
    }
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str], case: &str) {
    for part in parts {
        assert!(text.contains(part), "{case}\nlacks {part:?}:\n{text}");
    }
}

#[test]
fn bad_files_are_refused_with_place_and_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.toml");
    for (text, parts) in FILES {
        std::fs::write(&file, text).unwrap();
        let words = refusal(&Layers { file: Some(file.clone()), ..Layers::default() });
        assert_says(&words, &["bad.toml"][..usize::from(!words.contains("(default)"))], text);
        assert_says(&words, parts, text);
    }
}

#[test]
fn bad_environments_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("good.toml");
    std::fs::write(&file, VOLUME).unwrap();
    for (name, value, parts) in VARIABLES {
        let environment = vec![(OsString::from(name), OsString::from(value))];
        let words = refusal(&Layers { file: Some(file.clone()), environment, sets: vec![] });
        assert_says(&words, parts, name);
    }
}

#[test]
fn bad_arguments_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("good.toml");
    std::fs::write(&file, VOLUME).unwrap();
    for (set, parts) in SETS {
        let sets = vec![(*set).to_owned()];
        let words = refusal(&Layers { file: Some(file.clone()), environment: vec![], sets });
        assert_says(&words, parts, set);
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    for path in ["/nowhere/kvrail.toml", "/"] {
        let error = load(&Layers { file: Some(path.into()), ..Layers::default() }).unwrap_err();
        assert!(matches!(error, ConfigError::Read { .. }));
        assert_says(&error.to_string(), &[path, "cannot be read"], path);
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let sets = ["limits.sessions=0", "device.queue_depth=0"].map(str::to_owned).to_vec();
    let words = refusal(&Layers { sets, ..Layers::default() });
    assert_says(&words, &["limits.sessions = 0", "device.queue_depth = 0"], "both");
}

/// A problem in `[device]` is reported once, not again for each volume.
#[test]
fn inherited_problems_are_said_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.toml");
    let text =
        format!("[device]\nqueue_depth = 0\n{VOLUME}[volume.device]\nmode = \"interrupt\"\n");
    std::fs::write(&file, text).unwrap();
    let words = refusal(&Layers { file: Some(file), ..Layers::default() });
    assert_eq!(words.matches("queue_depth = 0").count(), 1, "{words}");
}

/// Such files were always valid: a pattern that no name has names nothing.
#[test]
fn patterns_of_pools_and_tenants_may_be_longer_than_names() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("good.toml");
    for pattern in ["b".repeat(100) + "*", "b".repeat(100), "a\\tb".to_owned()] {
        let text = format!(
            "{VOLUME}[[volume.pool]]\nname = \"p\"\nnamespaces = \"{pattern}\"\n\
             [[volume.tenant]]\nuids = [1]\nnamespaces = \"{pattern}\"\nrights = \"own\"\n"
        );
        std::fs::write(&file, &text).unwrap();
        let loaded = load(&Layers { file: Some(file.clone()), ..Layers::default() });
        assert!(loaded.is_ok(), "{text}{loaded:?}");
    }
}

/// A floor under the table: it grows with the keys.
#[test]
fn there_are_enough_bad_cases() {
    assert!(FILES.len() + VARIABLES.len() + SETS.len() >= 60);
}
