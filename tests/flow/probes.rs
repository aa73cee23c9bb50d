//! Probes for bpftrace: those of the documentation are in the program, and say what they promise.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kvrail_client::{Pages, Request};
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{LONG, Place, Sidecar, kvrail_program};

/// Writes of so many bytes.
const WRITES: u64 = 5;
const WRITE_BYTES: u64 = 8192;

/// Prints each batch of writes, as opcode 2, and each new session.
const SCRIPT: &str = r#"
BEGIN { printf("listening\n"); }
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
        let arguments = cells[2].split(',').filter(|it| !it.trim().is_empty());
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
        // A semaphore: where nobody listens, arguments are not made.
        assert!(!field("Semaphore:").trim_start_matches("0x").trim_matches('0').is_empty());
        let arguments = field("Arguments:").split_whitespace().count();
        let before = found.insert(field("Name:").to_owned(), arguments);
        assert!(before.is_none_or(|before| before == arguments), "{note}");
    }
    assert!(found.len() > 5, "{found:?}");
    assert_eq!(found, documented(), "docs/metrics.md lists them");
}

/// bpftrace with the script, once it listens; says so where this kernel lets nobody listen.
fn listen(sidecar: &Sidecar) -> Option<(Child, BufReader<Box<dyn Read>>)> {
    let program = kvrail_program().display().to_string();
    let mut command = Command::new("bpftrace");
    command.args(["-p", &sidecar.pid().to_string(), "-e", &SCRIPT.replace("PROGRAM", &program)]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        println!("skipped: no bpftrace in PATH (Debian package bpftrace)");
        return None;
    };
    let mut said: BufReader<Box<dyn Read>> =
        BufReader::new(Box::new(child.stdout.take().expect("piped")));
    let mut line = String::new();
    while said.read_line(&mut line).unwrap() > 0 {
        if line.contains("listening") {
            return Some((child, said));
        }
    }
    let mut why = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut why).unwrap();
    child.wait().unwrap();
    println!("skipped: bpftrace cannot listen here: {}", why.lines().last().unwrap_or(&line));
    None
}

#[test]
fn bpftrace_hears_what_happens() {
    let place = Place::with_volume(1, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let Some((mut listener, said)) = listen(&sidecar) else { return drop(sidecar.stop()) };
    let client = sidecar.attach();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    for at in 0..WRITES {
        let lease = arena.lease(usize::try_from(WRITE_BYTES).unwrap()).unwrap();
        queue.submit(Request::write(&volume, at * WRITE_BYTES, lease)).unwrap();
        assert!(queue.wait(LONG).unwrap().is_some());
    }
    let session = client.session().0;
    drop((queue, arena, client));
    kill_process(Pid::from_child(&listener), Signal::INT).unwrap();
    let lines: Vec<String> = said.lines().map(Result::unwrap).collect();
    listener.wait().unwrap();
    let of = |kind: &str| -> Vec<Vec<u64>> {
        let own = lines.iter().filter_map(|line| line.strip_prefix(kind));
        own.map(|rest| rest.split_whitespace().map(|it| it.parse().unwrap()).collect()).collect()
    };
    let pid = u64::from(std::process::id());
    assert!(of("session").contains(&vec![session, pid]), "{lines:?}");
    let taken: u64 = of("taken").iter().map(|it| it[0]).sum();
    assert_eq!(taken, WRITES, "{lines:?}");
    // Of device 0, all OK, one request each, and all their bytes.
    assert_eq!(of("batch"), vec![vec![0, 0, 1, WRITE_BYTES]; 5], "{lines:?}");
    sidecar.stop();
}
