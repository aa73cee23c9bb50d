//! The object tier on KVBM's own types, with NIXL's own library and a real sidecar. `scripts/dev
//! kvbm test` sets their paths.

mod manager;
mod object_tier;
mod rig;
