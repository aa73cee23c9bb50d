//! Who is next at a device, what it may hold, and which requests are late.

pub(crate) mod budget;
pub(crate) mod deadlines;
pub(crate) mod drr;
