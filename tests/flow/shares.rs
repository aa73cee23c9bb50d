//! Users' shares of a saturated device.

use kvrail_client::{Client, Completed, Lease, Pages, Queue, Request, Status, Volume};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::rig::{LONG, Place, Sidecar, is_root};

const UNPRIVILEGED: u32 = 65_534;
const READ_BYTES: usize = 512 << 10;
const DEPTH: usize = 16;
const SESSIONS: usize = 8;
/// Reads of all sessions together.
const READS: u64 = 2_000;

/// A session with some reads in flight at any time.
struct Reader {
    _client: Client,
    volume: Volume,
    queue: Queue,
    done: Vec<Completed>,
    ended: u64,
}

impl Reader {
    fn attach(sidecar: &Sidecar) -> Self {
        let client = sidecar.attach();
        let volume = client.volume("kv").unwrap();
        let arena = client.create_arena(DEPTH * READ_BYTES, Pages::Auto).unwrap();
        let queue = client.open_queue(DEPTH).unwrap();
        let mut reader = Self { _client: client, volume, queue, done: Vec::new(), ended: 0 };
        // Unwritten blocks may be read without the device.
        let block = arena.lease(READ_BYTES).unwrap();
        reader.queue.submit(Request::write(&reader.volume, 0, block)).unwrap();
        let written = reader.queue.wait(LONG).unwrap().expect("it ends");
        assert_eq!(written.status, Status::Ok);
        drop(written);
        (0..DEPTH).for_each(|_| reader.read(arena.lease(READ_BYTES).unwrap()));
        reader
    }

    fn read(&mut self, lease: Lease) {
        self.queue.submit(Request::read(&self.volume, 0, lease)).unwrap();
    }

    /// Counts the completed reads, and submits the same number again.
    fn turn(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.queue.poll(&mut done);
        for done in done.drain(..) {
            assert_eq!(done.status, Status::Ok);
            self.ended += 1;
            self.read(done.lease.expect("a read that ended well"));
        }
        self.queue.publish();
        self.done = done;
    }
}

/// One user opens eight sessions, the other one. Without shares of users the second has a ninth.
#[test]
fn a_user_gets_no_more_for_more_sessions() {
    if !is_root() {
        println!("skipped: a client of another user: only root becomes somebody else");
        return;
    }
    let mut place = Place::with_volume(1, 16 << 20);
    place.configure("sidecar.allow_uids = [65534]\nsidecar.socket_mode = \"0666\"");
    place.configure("device.queue_depth = 2");
    let sidecar = Sidecar::start(&place);
    let become_user = |user: Uid| set_thread_res_uid(Uid::ROOT, user, Uid::ROOT).unwrap();
    become_user(Uid::from_raw(UNPRIVILEGED));
    let mut readers: Vec<_> = (0..SESSIONS).map(|_| Reader::attach(&sidecar)).collect();
    become_user(Uid::ROOT);
    readers.push(Reader::attach(&sidecar));
    let uids: Vec<_> = sidecar.status().sessions.iter().map(|session| session.uid).collect();
    assert_eq!(uids.iter().filter(|uid| **uid == UNPRIVILEGED).count(), SESSIONS, "{uids:?}");
    while readers.iter().map(|reader| reader.ended).sum::<u64>() < READS {
        readers.iter_mut().for_each(Reader::turn);
    }
    let second = readers[SESSIONS].ended;
    assert!((READS / 4..=READS * 3 / 4).contains(&second), "{second} of {READS} are the second's");
    drop(readers);
    sidecar.stop();
}
