//! Probes for bpftrace: those of the documentation are in the program, with the documented
//! arguments.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvrail_client::{Pages, Request};
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{LONG, Place, Sidecar, eventually, kvrail_program};

/// Number of writes.
const WRITES: u64 = 5;
const WRITE_BYTES: u64 = 8192;

/// Bytes of the first writes, which repeat until each probe has fired once.
const FIRST_BYTES: u64 = 4096;

/// Prints each new session, and the writes that are taken and ended (opcode 2).
const SCRIPT: &str = r#"
usdt:PROGRAM:kvrail:session_attached { printf("session %d %d\n", arg0, arg1); }
usdt:PROGRAM:kvrail:requests_taken { printf("taken %d\n", arg2); }
usdt:PROGRAM:kvrail:batch_ended /arg2 == 2/ {
    printf("batch %d %d %d %d\n", arg0, arg3, arg4, arg5);
}
"#;

/// Names of probes and numbers of their arguments, as `docs/metrics.md` lists them.
fn documented() -> BTreeMap<String, usize> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("| probe | arguments |").expect("a table of probes");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let of_row = |cells: Vec<&str>| {
        let arguments = cells[2].split(',').filter(|argument| !argument.trim().is_empty());
        (cells[1].trim_matches('`').to_owned(), arguments.count())
    };
    cells.map(of_row).collect()
}

#[test]
fn the_program_has_the_probes_of_the_documentation() {
    let notes = Command::new("readelf").arg("-nW").arg(kvrail_program()).output();
    let Ok(notes) = notes else { return println!("skipped: no readelf (Debian package binutils)") };
    let notes = String::from_utf8_lossy(&notes.stdout);
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for note in notes.split("Provider: kvrail").skip(1) {
        let field = |name: &str| {
            let (_, rest) = note.split_once(name).unwrap_or_else(|| panic!("no {name}: {note}"));
            rest.lines().next().unwrap().trim()
        };
        // A semaphore: without a listener, arguments are not computed.
        assert!(!field("Semaphore:").trim_start_matches("0x").trim_matches('0').is_empty());
        let arguments = field("Arguments:").split_whitespace().count();
        let before = found.insert(field("Name:").to_owned(), arguments);
        assert!(before.is_none_or(|before| before == arguments), "{note}");
    }
    assert!(found.len() > 5, "{found:?}");
    assert_eq!(found, documented(), "docs/metrics.md lists them");
}

/// A bpftrace with the script, and its output until now.
struct Listener {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
}

impl Listener {
    /// `None`, with a line printed, where bpftrace is missing.
    fn start(sidecar: &Sidecar) -> Option<Self> {
        let program = kvrail_program().display().to_string();
        let script = SCRIPT.replace("PROGRAM", &program);
        let mut command = Command::new("bpftrace");
        command.args(["-B", "line", "-p", &sidecar.pid().to_string(), "-e", &script]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else {
            println!("skipped: no bpftrace in PATH (Debian package bpftrace)");
            return None;
        };
        let (shared, output) =
            (Arc::default(), BufReader::new(child.stdout.take().expect("piped")));
        let lines: Arc<Mutex<Vec<String>>> = Arc::clone(&shared);
        let reader = std::thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| lines.lock().unwrap().push(line));
        });
        Some(Self { child, lines: shared, reader })
    }

    /// The numbers of all lines of a kind.
    fn of(&self, kind: &str) -> Vec<Vec<u64>> {
        let lines = self.lines.lock().unwrap();
        let own = lines.iter().filter_map(|line| line.strip_prefix(kind));
        own.map(|rest| rest.split_whitespace().map(|number| number.parse().unwrap()).collect())
            .collect()
    }

    /// Whether bpftrace has ended, because this kernel forbids it.
    fn is_refused(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Its whole output. Beside a dozen other tests bpftrace once did not end for minutes.
    fn end(mut self) -> Arc<Mutex<Vec<String>>> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).unwrap();
        let until = Instant::now() + LONG;
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                self.child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.reader.join().unwrap();
        self.lines
    }
}

/// Makes this number of writes of this size with a client of its own, and returns its session.
fn write(sidecar: &Sidecar, count: u64, bytes: u64) -> u64 {
    let client = sidecar.attach();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    for at in 0..count {
        let lease = arena.lease(usize::try_from(bytes).unwrap()).unwrap();
        queue.submit(Request::write(&volume, at * bytes, lease)).unwrap();
        assert!(queue.wait(LONG).unwrap().is_some());
    }
    client.session().0
}

#[test]
fn bpftrace_prints_each_probe() {
    let place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let Some(mut listener) = Listener::start(&sidecar) else { return drop(sidecar.stop()) };
    // bpftrace attaches its probes one after the other.
    let mut refused = false;
    eventually("each probe has fired", || {
        write(&sidecar, 1, FIRST_BYTES);
        refused = listener.is_refused();
        refused || ["session", "taken", "batch"].iter().all(|kind| !listener.of(kind).is_empty())
    });
    if refused {
        println!("skipped: bpftrace cannot listen here (its privileges, or this kernel)");
        return drop(sidecar.stop());
    }
    let before: u64 = listener.of("taken").iter().map(|line| line[0]).sum();
    let session = write(&sidecar, WRITES, WRITE_BYTES);
    let ours = |it: &Vec<u64>| it[3] == WRITE_BYTES;
    eventually("all writes are printed", || {
        listener.of("batch").iter().filter(|line| ours(line)).count() as u64 == WRITES
    });
    let pid = u64::from(std::process::id());
    assert!(listener.of("session").contains(&vec![session, pid]));
    let taken: u64 = listener.of("taken").iter().map(|line| line[0]).sum();
    assert!(taken >= before + WRITES, "{before} {taken}");
    // Batches of device 0, all OK, one request each, with all bytes of the writes.
    let batches: Vec<_> = listener.of("batch").into_iter().filter(ours).collect();
    assert_eq!(batches, vec![vec![0, 0, 1, WRITE_BYTES]; 5]);
    assert!(!listener.end().lock().unwrap().is_empty());
    sidecar.stop();
}
