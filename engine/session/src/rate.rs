//! Log lines that a client can provoke: at most one a second, the others counted.

use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// One kind of log line.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    last: Option<Instant>,
    suppressed: u64,
}

impl RateLimit {
    /// How many lines were held back since the last one, if this one may be written.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
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
}
