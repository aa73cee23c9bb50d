//! Puts that wait for space: blocks are moved, beside gets that have no end.

use kvrail_device::SimOptions;
use kvrail_poller::{MAP_CELLS_MAX, MapCell, Notice, PollerCommand};
use kvrail_ring::{Opcode, Request, Status};
use kvrail_store::Key;

use super::rig::{Asked, Client, Rig, config, keyed};

const BYTES: u32 = 256 << 10;
/// Blocks that go round in a ring of 120 MiB.
const BLOCKS: u64 = 600;
/// Gets ask for the youngest so many.
const YOUNG: u64 = 100;
/// And for every other one of so many: the segments of those hold blocks that are worth moving
/// beside blocks that are not.
const OLD: u64 = 420;
/// Gets under way.
const GETS: u64 = 16;

/// A full ring on a device that does four things at once, and half of its old blocks are got again:
/// a part of each segment is moved before puts go on.
struct Full {
    rig: Rig,
    next: u64,
}

impl Full {
    fn new() -> Self {
        let options = SimOptions { latency_ns: 100_000, ..SimOptions::default() };
        let rig = Rig::tight(config(512, 120 << 20, 8 << 20), options, 4);
        let mut full = Self { rig, next: 0 };
        let mut client = full.rig.client(9);
        for number in 0..BLOCKS {
            let put = full.put(&client);
            assert_eq!(full.rig.ask_one(&mut client, put).status(), Status::Ok);
            let get = get(&client, number);
            assert_eq!(full.rig.ask_one(&mut client, get).status(), Status::Ok);
        }
        full
    }

    /// A put of the next key. The sidecar does not look at bytes and checks.
    fn put(&mut self, client: &Client) -> Request {
        self.next += 1;
        keyed(client, key(self.next - 1), (BYTES, 1), (0, 0)).slot(Opcode::Put)
    }

    /// A tick, after which each get and each put that has ended is followed by another. So many of
    /// both went well.
    fn go_on(&mut self, reader: &mut Client, writer: &mut Client) -> [u64; 2] {
        self.rig.tick();
        let (got, put) = (reader.collect(), writer.collect());
        for ended in &got {
            let number = self.next - 1 - (ended.user_data * 7919) % OLD;
            let is_young = self.next - number <= YOUNG;
            reader.post(&alone(get(reader, if is_young { number } else { number & !1 })));
        }
        self.begin_puts(writer, put.len() as u64);
        [got, put].map(|ended| ended.iter().filter(|it| it.status() == Status::Ok).count() as u64)
    }

    /// Has that many gets under way.
    fn begin(&mut self, reader: &mut Client, gets: u64) {
        (0..gets).for_each(|at| reader.post(&alone(get(reader, self.next - 1 - at))));
    }

    /// The same of puts.
    fn begin_puts(&mut self, writer: &mut Client, puts: u64) {
        for _ in 0..puts {
            let put = self.put(writer);
            writer.post(&alone(put));
        }
    }

    fn moved(&self) -> u64 {
        self.rig.stats.devices[0].store.counters.store.moved.get()
    }
}

fn key(number: u64) -> Key {
    Key::of(number + 1, number + 1)
}

fn get(client: &Client, number: u64) -> Request {
    keyed(client, key(number), (BYTES, 0), (0, 0)).slot(Opcode::Get)
}

fn alone(request: Request) -> Asked<'static> {
    Asked { request, side: None }
}

/// Blocks are moved for those that are put, so a put costs up to twice what a get does, in a half
/// of the device's time: less than five gets for each. As nobody's work moves would leave it 15.
#[test]
fn puts_that_wait_for_space_have_their_share_of_the_device() {
    let mut full = Full::new();
    let (mut reader, mut writer) = (full.rig.client(0), full.rig.client(1));
    full.begin(&mut reader, GETS);
    full.begin_puts(&mut writer, 8);
    let (mut got, mut put, moved) = (0, 0, full.moved());
    while put < 200 {
        let [gets, puts] = full.go_on(&mut reader, &mut writer);
        (got, put) = (got + gets, put + puts);
        assert!(got < 5 * 200, "{got} gets beside {put} puts");
    }
    let moved = full.moved() - moved;
    assert!(moved >= 50, "{moved} blocks were moved");
}

/// What is moved for a session that dies goes on for nobody.
#[test]
fn the_death_of_a_session_that_waits_for_space_costs_no_block() {
    let mut full = Full::new();
    let mut reader = full.rig.client(0);
    full.begin(&mut reader, GETS);
    for session in 1..8 {
        let mut writer = full.rig.client(session);
        full.begin_puts(&mut writer, 8);
        // Until for long no put waits for the device, but for moves.
        let mut quiet = 0;
        while quiet < 60 {
            full.go_on(&mut reader, &mut writer);
            let waiting = full.rig.stats.devices[0].counters.waiting.get();
            quiet = if waiting <= GETS + 1 { quiet + 1 } else { 0 };
        }
        full.rig.mailbox.send(PollerCommand::CloseSession(writer.session)).unwrap();
        full.rig
            .until(|rig| rig.own.notices.iter().any(|it| matches!(it, Notice::SessionClosed(_))));
        full.rig.own.notices.clear();
    }
    full.rig.pass(20_000_000); // counters are shown every 10 ms
    assert_eq!(
        full.rig.stats.devices[0].store.counters.store.failures.get(),
        0,
        "moves were given up"
    );
    let mut writer = full.rig.client(8);
    full.begin_puts(&mut writer, 8);
    let moved = full.moved();
    while full.moved() < moved + 50 {
        full.go_on(&mut reader, &mut writer);
    }
}

fn map(rig: &Rig) -> Vec<MapCell> {
    rig.stats.devices[0].store.map.cells().collect()
}

/// The map has each segment: when it was opened, and how long its blocks were not used.
#[test]
fn a_map_shows_age_and_heat_of_segments() {
    let mut rig = Rig::tight(config(512, 120 << 20, 8 << 20), SimOptions::default(), 8);
    rig.pass(20_000_000);
    let store = &rig.stats.devices[0].store;
    assert_eq!(store.map.segments_of_cell(), 1);
    let segments = map(&rig).len();
    assert_eq!(segments, store.map.segments() as usize);
    assert!(segments > 10 && map(&rig).iter().all(|cell| cell.idle_ticks.is_none()));
    let mut client = rig.client(0);
    for number in 0..80 {
        let put = keyed(&client, key(number), (BYTES, 1), (0, 0)).slot(Opcode::Put);
        assert_eq!(rig.ask_one(&mut client, put).status(), Status::Ok);
    }
    // Those of the first segment are used again and again.
    for number in 0..200 {
        let get = get(&client, number % 30);
        assert_eq!(rig.ask_one(&mut client, get).status(), Status::Ok);
    }
    rig.pass(20_000_000);
    let cells = map(&rig);
    let filled: Vec<_> = cells.iter().filter(|cell| cell.idle_ticks.is_some()).collect();
    assert_eq!(filled.len(), 3, "{cells:?}");
    assert!(filled.iter().all(|cell| cell.filled == 255 && cell.opened_unix_s > 0), "{cells:?}");
    assert_eq!(cells.iter().filter(|cell| cell.is_open).count(), 1, "{cells:?}");
    // Ticks are a megabyte; fifty were used since the others were put.
    assert_eq!(rig.stats.devices[0].store.map.tick_bytes(), 1 << 20);
    let mut idle: Vec<_> = filled.iter().filter_map(|cell| cell.idle_ticks).collect();
    idle.sort_unstable();
    assert!(idle[0] < 12 && idle[1] >= 50, "{cells:?}");
}

/// The walk of the largest member looks at a bounded number of segments in one go, and comes round.
#[test]
fn the_map_of_many_segments_has_few_cells() {
    let rig = &mut Rig::tight(config(512, 3 << 30, 2 << 20), SimOptions::default(), 8);
    rig.pass(200_000_000);
    let map = &rig.stats.devices[0].store.map;
    assert!(map.segments() > 1500 && map.segments_of_cell() == 3, "{}", map.segments());
    let cells = map.cells().count();
    assert!(cells == map.segments().div_ceil(3) as usize && cells <= MAP_CELLS_MAX, "{cells}");
}
