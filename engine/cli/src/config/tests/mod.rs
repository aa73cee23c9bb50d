//! Accepted and refused configurations.

mod defaults;
mod refused;
