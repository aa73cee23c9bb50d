//! What the configuration takes and refuses.

mod defaults;
mod refused;
