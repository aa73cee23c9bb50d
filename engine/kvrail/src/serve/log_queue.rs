//! Lines of the log on their way to standard error: a bounded queue and the thread that writes
//! them. Without a reader lines are lost and counted, and no caller waits.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// How long the end of a process waits for a reader of its last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The end of the queue that takes lines.
#[derive(Clone, Debug)]
pub(super) struct LogQueue {
    lines: SyncSender<Vec<u8>>,
    lost: LostLines,
}

/// How many lines were lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostLines(Arc<AtomicU64>);

/// Writes what is left in the queue when it is dropped.
#[derive(Debug)]
pub(crate) struct LogGuard {
    queue: LogQueue,
    stops: Arc<AtomicBool>,
    ended: Receiver<()>,
}

impl LogQueue {
    /// A queue of at most `lines_max` lines, and the thread that writes them.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        lines_max: usize,
        to: impl Write + Send + 'static,
    ) -> io::Result<(Self, LogGuard)> {
        let (lines, queued) = sync_channel(lines_max);
        let (ends, ended) = sync_channel(1);
        let (lost, stops) = (LostLines::default(), Arc::new(AtomicBool::new(false)));
        let (lost_there, stop) = (lost.clone(), Arc::clone(&stops));
        thread::Builder::new().name("kvrail-log".into()).spawn(move || {
            write_lines(queued, to, &stop, &lost_there);
            let _nobody_waits = ends.try_send(());
        })?;
        let queue = Self { lines, lost };
        Ok((queue.clone(), LogGuard { queue, stops, ended }))
    }

    pub(super) fn lost(&self) -> LostLines {
        self.lost.clone()
    }
}

impl LostLines {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Write for LogQueue {
    /// Takes a line as a whole, or loses it as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(line.to_vec()).is_err() {
            self.lost.add_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogQueue {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl LogGuard {
    /// Takes a message that is no event, in its order with them.
    pub(crate) fn say(&self, text: &str) {
        let mut queue = self.queue.clone();
        queue.write_all(format!("{text}\n").as_bytes()).expect("it takes or counts each line");
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        // Pairs with the load in `write_lines`.
        self.stops.store(true, Ordering::Release);
        // Wakes a thread that waits for a line; a queue that is full needs no wake-up.
        let _full = self.queue.lines.try_send(Vec::new());
        let _late = self.ended.recv_timeout(LAST_LINES);
    }
}

fn write_lines(
    queued: Receiver<Vec<u8>>,
    mut to: impl Write,
    stops: &AtomicBool,
    lost: &LostLines,
) {
    loop {
        // Pairs with the store of the guard: lines queued before it are found.
        let stops = stops.load(Ordering::Acquire);
        let line = match queued.try_recv() {
            Ok(line) => line,
            Err(_) if stops => return,
            Err(_) => match queued.recv() {
                Ok(line) => line,
                Err(_) => return,
            },
        };
        // A log without a reader stops no thread: it may be back for the next line.
        if to.write_all(&line).is_err() {
            lost.add_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::LogQueue;

    /// Sends on what it is given; each line waits for a permit.
    struct Slow(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _no_more_permits = self.0.recv();
            self.1.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_guard_writes_what_is_queued_and_then_ends() {
        let (permits, permit) = channel::<()>();
        let (lines, written) = channel();
        let (mut queue, guard) = LogQueue::start(8, Slow(permit, lines)).unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            queue.write_all(line.as_bytes()).unwrap();
        }
        drop(permits);
        drop(guard);
        let all: Vec<_> = written.try_iter().flatten().collect();
        assert_eq!(all, b"one\ntwo\nthree\n");
        assert_eq!(queue.lost().count(), 0);
        // Lines behind the end are lost, and counted.
        queue.write_all(b"late\n").unwrap();
        assert_eq!(queue.lost().count(), 1);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let (reader, writer) = io::pipe().unwrap();
        let (mut queue, guard) = LogQueue::start(8, writer).unwrap();
        drop(reader);
        queue.write_all(b"an event\n").unwrap();
        guard.say("a message");
        drop(guard);
        assert_eq!(queue.lost().count(), 2);
    }

    #[test]
    fn a_reader_that_stops_costs_lines_and_no_time() {
        let (permits, permit) = channel::<()>();
        let (lines, written) = channel();
        let (mut queue, guard) = LogQueue::start(2, Slow(permit, lines)).unwrap();
        for number in 0..10 {
            queue.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        // Two wait in the queue, and at most one is being written.
        assert!((7..=8).contains(&queue.lost().count()), "{}", queue.lost().count());
        drop(permits);
        drop(guard);
        let first = written.try_iter().next().expect("a line");
        assert_eq!(first, b"0\n");
    }
}
