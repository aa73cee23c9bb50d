//! A PCIe link: what it could be and what it is.

use std::fmt;

use kvrail_memory::Root;
use serde::Serialize;

/// Speed and width of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkSpeed {
    /// Transfers in a second on each lane, in 10^9.
    pub speed_gt: f32,
    /// Lanes.
    pub width: u32,
    /// The device's best speed.
    pub speed_max_gt: f32,
    /// Lanes that the device has.
    pub width_max: u32,
}

impl LinkSpeed {
    /// The link above a PCI function; none for functions without one (root complex, virtual).
    pub(crate) fn read(root: &Root, function: &str) -> Option<Self> {
        let file = |name: &str| root.text(format!("{function}/{name}")).ok().flatten();
        let speed = |name: &str| file(name)?.split_whitespace().next()?.parse::<f32>().ok();
        let width = |name: &str| file(name)?.trim().parse::<u32>().ok().filter(|width| *width > 0);
        Some(Self {
            speed_gt: speed("current_link_speed")?,
            width: width("current_link_width")?,
            speed_max_gt: speed("max_link_speed")?,
            // 255 is the value of a function without a link of its own.
            width_max: width("max_link_width").filter(|lanes| *lanes <= 32)?,
        })
    }

    /// Whether it runs below the device's ability. GPUs save power at a low speed when idle, so for
    /// them only the width counts.
    #[must_use]
    pub fn is_narrow(&self) -> bool {
        self.width < self.width_max
    }

    /// Whether it runs slower than the device could.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.speed_gt < self.speed_max_gt
    }
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GT/s x{}", self.speed_gt, self.width)?;
        if self.is_narrow() || self.is_slow() {
            write!(f, " (of {} GT/s x{})", self.speed_max_gt, self.width_max)?;
        }
        Ok(())
    }
}
