//! Log lines that a client can provoke: a burst, then one a second, the others counted.

use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// One kind of log line.
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// Lines that may come at once.
    burst: u32,
    /// When the full burst is available again.
    clean: Option<Instant>,
    suppressed: u64,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::with_burst(1)
    }
}

impl RateLimit {
    pub(crate) fn with_burst(burst: u32) -> Self {
        debug_assert!(burst > 0, "a limit admits a line now and then");
        Self { burst, clean: None, suppressed: 0 }
    }

    /// Whether it would admit as many lines as ever.
    pub(crate) fn is_clean(&self, now: Instant) -> bool {
        self.suppressed == 0 && self.clean.is_none_or(|clean| clean <= now)
    }

    /// How many lines were held back since the last one, if this one may be written.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        let clean = self.clean.map_or(now, |clean| clean.max(now)) + INTERVAL;
        if clean > now + INTERVAL * self.burst {
            self.suppressed += 1;
            return None;
        }
        self.clean = Some(clean);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::RateLimit;

    #[test]
    fn counts_what_it_holds_back() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        assert_eq!(limit.admit(start), Some(0));
        for _ in 0..5 {
            assert_eq!(limit.admit(start + Duration::from_millis(10)), None);
        }
        assert_eq!(limit.admit(start + Duration::from_secs(1)), Some(5));
    }

    #[test]
    fn a_burst_is_let_through_once() {
        let (mut limit, start) = (RateLimit::with_burst(3), Instant::now());
        let admitted = |limit: &mut RateLimit, at| (0..5).filter_map(|_| limit.admit(at)).sum();
        let all: u64 = admitted(&mut limit, start);
        assert_eq!((all, limit.suppressed), (0, 2));
        assert_eq!(limit.admit(start + Duration::from_secs(1)), Some(2));
        assert_eq!(limit.admit(start + Duration::from_secs(1)), None);
        assert!(!limit.is_clean(start + Duration::from_secs(1)));
    }
}
