//! How long operations took at each device a moment ago: histograms are since the start.

use std::time::{Duration, Instant};

use kvrail_poller::PollerHandle;
use kvrail_protocol::DeviceReport;

/// Length of a window. A slow drive is named within two.
const WINDOW: Duration = Duration::from_secs(20);

/// Fewer operations tell nothing.
const OPERATIONS_MIN: u64 = 8;

/// Of one device, since the start: operations that ended, and their time.
type Totals = (u64, u64);

/// The last windows of all devices.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    at: Option<Instant>,
    totals: Vec<Totals>,
    /// Number and mean time of each device.
    means: Vec<(u16, u64)>,
}

impl Recent {
    /// Ends a window when it is time.
    pub(crate) fn sample(&mut self, handles: &[PollerHandle], now: Instant) {
        if self.at.is_some_and(|at| now.duration_since(at) < WINDOW) {
            return;
        }
        self.at = Some(now);
        let devices = handles.iter().flat_map(|handle| {
            let devices = handle.devices.iter().zip(&handle.stats.devices);
            devices.map(|((index, _), stats)| (index.0, stats.totals()))
        });
        self.end_window(devices.collect());
    }

    fn end_window(&mut self, devices: Vec<(u16, Totals)>) {
        let before = self.totals.iter().map(Some).chain(std::iter::repeat(None));
        let means = devices.iter().zip(before).map(|((index, (operations, ns)), before)| {
            let passed = before.map_or((0, 0), |(before, before_ns)| {
                (operations.wrapping_sub(*before), ns.wrapping_sub(*before_ns))
            });
            let mean = if passed.0 < OPERATIONS_MIN { 0 } else { passed.1 / passed.0 };
            (*index, mean)
        });
        self.means = means.collect();
        self.totals = devices.into_iter().map(|(_, totals)| totals).collect();
    }

    /// Adds the means to a report.
    pub(crate) fn add_to(&self, devices: &mut [DeviceReport]) {
        for device in devices {
            let mean = self.means.iter().find(|(index, _)| *index == device.index);
            device.recent_ns = mean.map_or(0, |(_, mean)| *mean);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn a_mean_is_that_of_the_last_window() {
        let mut recent = Recent::default();
        recent.end_window(vec![(3, (1000, 9_000_000)), (4, (0, 0))]);
        assert_eq!(recent.means, [(3, 0), (4, 0)], "nothing is known of a first window");
        recent.end_window(vec![(3, (1010, 9_050_000)), (4, (7, 7_000_000))]);
        assert_eq!(recent.means, [(3, 5000), (4, 0)], "seven are too few");
        recent.end_window(vec![(3, (1010, 9_050_000)), (4, (27, 27_000_000))]);
        assert_eq!(recent.means, [(3, 0), (4, 1_000_000)], "what is over does not count");
    }
}
