//! How fast a device is, as its completions tell: what it may be given at once, and what a request
//! costs in device time.
//!
//! Completions are counted in windows. A window in which something waited for the device at every
//! end says what it can do; any other window only that it can do that much at least. Changes are
//! bounded in each window, so that a stall of a second is no new rate.

/// How much work a device is given at once: enough that its queues never run dry behind a wake-up,
/// and what a new request may have to wait for.
const AHEAD_NS: u64 = 2_000_000;

/// Least that a device is given at once: four requests of 1 MiB, or one long one. Less leaves
/// gaps between large requests.
const BYTES_MIN: u64 = 4 << 20;

/// Most. The fastest drives move it in some milliseconds.
const BYTES_MAX: u64 = 64 << 20;

/// A window holds this many completions at least, and lasts this long.
const WINDOW_ENDS: u64 = 16;
const WINDOW_NS: u64 = 10_000_000;

/// Bytes behind which the time that a device worked is a rate.
const WORKED_BYTES: u64 = 64 << 20;

/// What one MiB and one operation may take: 70 GB/s to 10 MB/s; a null device to a slow disk.
const MIB_NS: (u64, u64) = (15_000, 100_000_000);
const OPERATION_NS: (u64, u64) = (1_000, 1_000_000);

/// Before anything was measured: 2 GB/s, 130,000 operations a second.
const MIB_NS_FIRST: u64 = 500_000;
const OPERATION_NS_FIRST: u64 = 7_500;

/// Device time of operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DevicePace {
    /// Of each MiB.
    mib_ns: u64,
    /// Of each read or write, beside its bytes.
    operation_ns: u64,
    window: Option<CompletionWindow>,
    /// Nothing was measured yet but empty places of the device, at its start.
    guessed: bool,
    /// Bytes of such operations as `worked` counts, and the device's time for them.
    worked: (u64, u64),
}

/// Completions since a moment.
#[derive(Clone, Copy, Debug)]
struct CompletionWindow {
    start_ns: u64,
    ends: u64,
    bytes: u64,
    /// Whether something waited at every end.
    full: bool,
}

/// What was left when operations ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Requests wait for the device.
    Waiting,
    /// None waits, but the device works.
    Working,
    /// Nothing: time passes without work.
    Nothing,
}

impl DevicePace {
    /// Of a device that moves so many bytes a second, as far as that is known.
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        let measured = bytes_per_second.map(|rate| (1_000_000_000 << 20) / rate.max(1));
        let mib_ns = measured.unwrap_or(MIB_NS_FIRST).clamp(MIB_NS.0, MIB_NS.1);
        Self {
            mib_ns,
            operation_ns: OPERATION_NS_FIRST,
            window: None,
            guessed: false,
            worked: (0, 0),
        }
    }

    /// The same, which is only a guess: what is measured first counts in full. A drive that is
    /// asked at its start for what nobody wrote has no need to read it.
    pub(crate) fn guessed(self) -> Self {
        Self { guessed: true, ..self }
    }

    /// Bytes that it moves in 2 ms, within bounds: what it is given while sessions share it.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        ((AHEAD_NS << 20) / self.mib_ns).clamp(BYTES_MIN, BYTES_MAX)
    }

    /// Bytes that it moves in 4 ms, within bounds: what one session alone may give it.
    pub(crate) fn in_flight_bytes_alone(&self) -> u64 {
        (((2 * AHEAD_NS) << 20) / self.mib_ns).clamp(BYTES_MIN, BYTES_MAX)
    }

    /// Device time of a read or write, in nanoseconds.
    #[inline]
    pub(crate) fn cost_ns(&self, length: u32) -> u64 {
        self.operation_ns + ((u64::from(length) * self.mib_ns) >> 20)
    }

    /// Device time of these bytes in these reads or writes, in nanoseconds.
    pub(crate) fn time_ns(&self, count: u32, bytes: u64) -> u64 {
        let bytes_ns = (u128::from(bytes) * u128::from(self.mib_ns)) >> 20;
        let bytes_ns = u64::try_from(bytes_ns).unwrap_or(u64::MAX);
        bytes_ns.saturating_add(u64::from(count) * self.operation_ns)
    }

    /// Reads and writes ended; whether the device's rate is seen anew.
    #[inline]
    pub(crate) fn ended(&mut self, now_ns: u64, (count, bytes): (u32, u64), left: Left) -> bool {
        let Some(window) = &mut self.window else {
            if left != Left::Nothing {
                self.begin(now_ns, left);
            }
            return false;
        };
        window.ends += u64::from(count);
        window.bytes += bytes;
        window.full &= left == Left::Waiting;
        let whole =
            window.ends >= WINDOW_ENDS && now_ns.saturating_sub(window.start_ns) >= WINDOW_NS;
        if whole {
            self.learn(now_ns);
        }
        if whole || left == Left::Nothing {
            self.begin(now_ns, left);
        }
        whole
    }

    /// Counts anew from here.
    #[inline(never)]
    fn begin(&mut self, start_ns: u64, left: Left) {
        let full = left == Left::Waiting;
        self.window = (left != Left::Nothing).then_some(CompletionWindow {
            start_ns,
            ends: 0,
            bytes: 0,
            full,
        });
    }

    /// Corrects what most of the window's time is made of.
    #[cold]
    fn learn(&mut self, now_ns: u64) {
        let Some(CompletionWindow { start_ns, ends, bytes, full }) = self.window else { return };
        let took_ns = now_ns.saturating_sub(start_ns);
        let bytes_ns = (bytes.saturating_mul(self.mib_ns)) >> 20;
        let ends_ns = ends * self.operation_ns;
        if !full && took_ns >= bytes_ns + ends_ns {
            return; // it could have done more
        }
        if bytes_ns >= ends_ns {
            let seen = took_ns.saturating_sub(ends_ns);
            let seen = u128::from(seen) * (1 << 20) / u128::from(bytes.max(1));
            let seen = u64::try_from(seen).unwrap_or(u64::MAX);
            self.mib_ns = follow(self.mib_ns, seen, MIB_NS);
        } else {
            let seen = took_ns.saturating_sub(bytes_ns) / ends;
            self.operation_ns = follow(self.operation_ns, seen, OPERATION_NS);
        }
    }
}

impl DevicePace {
    /// Whether nothing was measured yet.
    pub(crate) fn is_guessed(&self) -> bool {
        self.guessed
    }

    /// Operations ended of which it had as many as it can use, or a long one: it worked for this
    /// time, since something ended there or since it had nothing. What a device moves while it
    /// works is its rate, even if one long operation at a time leaves no window full.
    pub(crate) fn worked(&mut self, bytes: u64, ns: u64) {
        self.worked.0 += bytes;
        self.worked.1 += ns;
        let (bytes, ns) = self.worked;
        if bytes < WORKED_BYTES || ns < WINDOW_NS {
            return;
        }
        self.worked = (0, 0);
        let seen = u64::try_from((u128::from(ns) << 20) / u128::from(bytes)).unwrap_or(u64::MAX);
        self.mib_ns = match std::mem::replace(&mut self.guessed, false) {
            true => seen.clamp(MIB_NS.0, MIB_NS.1),
            false => follow(self.mib_ns, seen, MIB_NS),
        };
    }
}

/// A quarter of the way to what was seen, which counts as no more than twice and no less than half
/// of what was known.
fn follow(known: u64, seen: u64, (least, most): (u64, u64)) -> u64 {
    let seen = seen.clamp(known / 2, known * 2);
    ((known * 3 + seen) / 4).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::{BYTES_MAX, BYTES_MIN, DevicePace, Left};

    /// A device that does one thing after the other, given as much as its pace says.
    struct Simulated {
        pace: DevicePace,
        now_ns: u64,
        mib_ns: u64,
        operation_ns: u64,
        /// What it was given at once at most, and what it was allowed then.
        most: u64,
    }

    impl Simulated {
        fn new(mib_ns: u64) -> Self {
            let pace = DevicePace::new(None);
            Self { pace, now_ns: 1_000_000_000, mib_ns, operation_ns: 5_000, most: 0 }
        }

        /// Lengths in turns; more than the device takes where the backlog is endless.
        fn serve(&mut self, lengths: &[u64], milliseconds: u64, backlog: Left) {
            let end_ns = self.now_ns + milliseconds * 1_000_000;
            let (mut held, mut bytes, mut next) = (VecDeque::new(), 0, 0);
            while self.now_ns < end_ns {
                loop {
                    let length = lengths[next % lengths.len()];
                    let full = match backlog {
                        Left::Waiting => bytes + length > self.pace.in_flight_bytes(),
                        Left::Working | Left::Nothing => !held.is_empty(),
                    };
                    if full && !held.is_empty() {
                        break;
                    }
                    held.push_back(length);
                    bytes += length;
                    next += 1;
                }
                self.most = self.most.max(bytes);
                let length = held.pop_front().unwrap();
                bytes -= length;
                self.now_ns += self.operation_ns + ((length * self.mib_ns) >> 20);
                self.pace.ended(self.now_ns, (1, length), backlog);
            }
        }

        /// How far the limit is from what the device moves in 2 ms.
        fn apart(&self) -> f64 {
            let right = ((2_000_000_u64 << 20) / self.mib_ns).clamp(BYTES_MIN, BYTES_MAX);
            self.pace.in_flight_bytes() as f64 / right as f64
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limit_is_what_the_device_moves_in_two_milliseconds() {
        // 2.7, 7 and 14 GB/s, and a disk of 200 MB/s.
        for mib_ns in [388_000, 150_000, 75_000, 5_000_000] {
            let mut device = Simulated::new(mib_ns);
            device.serve(&[MIB], 1_000, Left::Waiting);
            assert!((0.9..1.1).contains(&device.apart()), "{mib_ns}: {}", device.apart());
        }
    }

    #[test]
    fn a_rate_that_changes_is_followed_both_ways() {
        let mut device = Simulated::new(100_000);
        for mib_ns in [100_000, 400_000, 80_000] {
            device.mib_ns = mib_ns;
            device.serve(&[4 * MIB, MIB], 500, Left::Waiting);
            assert!((0.9..1.1).contains(&device.apart()), "{mib_ns}: {}", device.apart());
        }
    }

    #[test]
    fn long_operations_are_a_rate_however_few_there_are_at_once() {
        let mut pace = DevicePace::new(Some(33_000_000_000)).guessed();
        pace.worked(32 * MIB, 32 * 388_000);
        assert!(pace.is_guessed(), "one is not enough");
        pace.worked(32 * MIB, 32 * 388_000);
        assert!(!pace.is_guessed() && pace.time_ns(0, MIB) == 388_000);
        (0..200).for_each(|_| pace.worked(32 * MIB, 32 * 100_000));
        assert!((90_000..110_000).contains(&pace.time_ns(0, MIB)));
        pace.worked(u64::from(u32::MAX), 0);
        assert!(pace.time_ns(0, MIB) > 0);
    }

    #[test]
    fn mixed_lengths_leave_the_rate_of_bytes_alone() {
        let mut device = Simulated::new(200_000);
        for lengths in [&[MIB, 4096][..], &[4096], &[4 * MIB, 4096, 4096, 64 << 10]] {
            device.serve(lengths, 500, Left::Waiting);
            assert!((0.8..1.25).contains(&device.apart()), "{lengths:?}: {}", device.apart());
        }
        let small = device.pace.cost_ns(4096);
        assert!((5_000..8_000).contains(&small), "{small} ns for what takes 5.8 us");
    }

    #[test]
    fn one_request_at_a_time_and_idle_periods_say_nothing_against_the_device() {
        let mut device = Simulated::new(200_000);
        device.serve(&[MIB], 500, Left::Waiting);
        let before = device.pace.in_flight_bytes();
        device.mib_ns = 2_000_000; // as slow as one at a time looks
        device.serve(&[MIB], 500, Left::Working);
        device.serve(&[4096], 100, Left::Nothing);
        device.now_ns += 60_000_000_000;
        device.serve(&[4096], 100, Left::Nothing);
        assert_eq!(device.pace.in_flight_bytes(), before);
    }

    #[test]
    fn a_stall_is_no_new_rate() {
        let mut device = Simulated::new(200_000);
        device.serve(&[MIB], 500, Left::Waiting);
        let before = device.pace.in_flight_bytes();
        device.now_ns += 5_000_000_000;
        device.serve(&[MIB], 12, Left::Waiting);
        assert!(device.pace.in_flight_bytes() > before * 3 / 5);
        device.serve(&[MIB], 200, Left::Waiting);
        assert!((0.9..1.1).contains(&device.apart()), "{}", device.apart());
    }

    #[test]
    fn more_than_what_was_thought_is_believed_without_a_backlog() {
        let mut device = Simulated::new(100_000);
        device.serve(&[MIB], 1_000, Left::Working);
        assert!((0.9..1.1).contains(&device.apart()), "{}", device.apart());
    }

    #[test]
    fn bounds_hold_for_devices_of_any_speed() {
        for rate in [Some(0), Some(1), Some(u64::MAX), None] {
            let bytes = DevicePace::new(rate).in_flight_bytes();
            assert!((BYTES_MIN..=BYTES_MAX).contains(&bytes), "{rate:?}: {bytes}");
        }
        let mut pace = DevicePace::new(None);
        for now_ns in [0, 0, 5, u64::MAX, 3, u64::MAX - 1] {
            pace.ended(now_ns, (u32::MAX, u64::from(u32::MAX)), Left::Waiting);
            assert!((BYTES_MIN..=BYTES_MAX).contains(&pace.in_flight_bytes()));
        }
    }
}
