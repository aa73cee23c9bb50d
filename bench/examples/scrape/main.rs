//! The time of a scrape of a full sidecar, and its effect on clients:
//! `scrape SOCKET ADDRESS SECONDS ROUNDS`. `scripts/dev scrape` starts the sidecar.
#![forbid(unsafe_code)]

mod reader;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvrail_client::{BlockKey, BlockRequest, Client, Identity, Lease, Pages, Status};

use reader::{Reader, Round, medians};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Clients that hold a queue and an arena.
const SESSIONS: usize = 64;
const BLOCK: usize = 4096;
const DEPTH: usize = 64;
/// Scrapes whose time is taken.
const SCRAPES: usize = 200;
/// An answer is good for 100 ms, so each of these is one that was made for it.
const APART: Duration = Duration::from_millis(110);
const LONG: Duration = Duration::from_secs(60);

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, socket, address, seconds, rounds] = arguments.as_slice() else {
        return Err("usage: scrape SOCKET ADDRESS SECONDS ROUNDS".into());
    };
    let (time, rounds) = (Duration::from_secs_f64(seconds.parse()?), rounds.parse()?);
    let socket = Path::new(socket);
    let put = fill(socket)?;
    // The one that reads is one of them.
    let others: Vec<_> =
        (1..SESSIONS).map(|at| Reader::attach(socket, at)).collect::<Result<_, _>>()?;
    let mut reader = Reader::attach(socket, 0)?;
    let report = reader.status()?;
    let (blocks, most) = report
        .shards
        .iter()
        .fold((0, 0), |(blocks, most), it| (blocks + it.blocks, most + it.blocks_max));
    println!(
        "{} sessions, {} devices, {} pollers; {blocks} blocks of {most} that the index has room \
         for, after {put} puts",
        report.sessions.len(),
        report.devices.len(),
        report.pollers.len(),
    );
    scrapes(address)?;
    beside(address, &mut reader, time, rounds)?;
    drop(others);
    Ok(())
}

/// Puts until the store has evicted something: it is full. Returns how many.
fn fill(socket: &Path) -> Result<u64, Failure> {
    let client = Client::attach(socket)?;
    let space = client.store("store")?.namespace("fill", &Identity::new([("model", "fill")])?)?;
    let arena = client.create_arena(DEPTH * BLOCK, Pages::Auto)?;
    let mut queue = client.open_queue(DEPTH)?;
    let mut idle: Vec<Lease> = (0..DEPTH).map(|_| arena.lease(BLOCK)).collect::<Result<_, _>>()?;
    let (mut put, mut next) = (0, 0_u64);
    loop {
        while let Some(lease) = idle.pop() {
            next += 1;
            let key = BlockKey::of(&next.to_le_bytes());
            queue.submit(BlockRequest::put(&space, key, lease))?;
        }
        let done = queue.wait(LONG)?.ok_or("no answer")?;
        put += u64::from(done.status == Status::Ok);
        idle.extend(done.lease);
        if next % 65_536 == 0 {
            let report = client.status()?;
            let evicts =
                report.shards.iter().filter(|shard| shard.counters.store.evicted > Some(0));
            if evicts.count() == report.shards.len() {
                return Ok(put);
            }
        }
    }
}

/// Bytes of an answer.
fn scrape(address: &str) -> Result<usize, Failure> {
    let mut stream = TcpStream::connect(address)?;
    let accepts = "Accept: application/openmetrics-text\r\n";
    stream.write_all(
        format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accepts}\r\n").as_bytes(),
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if !answer.ends_with(b"# EOF\n") {
        return Err("half an answer".into());
    }
    Ok(answer.len())
}

/// Scrapes while nothing else is done.
fn scrapes(address: &str) -> Result<(), Failure> {
    let mut bytes = 0;
    let mut times = Vec::new();
    for _ in 0..SCRAPES {
        thread::sleep(APART);
        let begin = Instant::now();
        bytes = scrape(address)?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!(
        "a scrape: {bytes} bytes in {:.2} ms (median of {SCRAPES}), {:.2} ms (99 of 100), {:.2} ms \
         at most",
        at(50),
        at(99),
        at(100)
    );
    Ok(())
}

/// Reads of one client with a scrape every 110 ms and without, in turns.
fn beside(address: &str, reader: &mut Reader, time: Duration, rounds: u32) -> Result<(), Failure> {
    let stop = AtomicBool::new(false);
    let mut rows: [Vec<Round>; 2] = Default::default();
    for round in 0..2 * rounds {
        // Alone, beside; beside, alone: what drifts hits both.
        let is_beside = matches!(round % 4, 1 | 2);
        stop.store(!is_beside, Ordering::Relaxed); // ends a loop, orders nothing
        let round = thread::scope(|scope| {
            let scraper = scope.spawn(|| {
                // Relaxed: as above.
                while !stop.load(Ordering::Relaxed) {
                    scrape(address)?;
                    thread::sleep(APART);
                }
                Ok::<_, Failure>(())
            });
            let round = reader.read(time);
            stop.store(true, Ordering::Relaxed); // as above
            scraper.join().expect("no panic")?;
            round
        })?;
        rows[usize::from(is_beside)].push(round);
    }
    println!("a read of 4 KiB, us: median of {rounds} rounds (least, most)");
    for (what, rounds) in ["alone", "beside a scrape each 110 ms"].iter().zip(&rows) {
        println!("{what:28} {}", medians(rounds));
    }
    Ok(())
}
