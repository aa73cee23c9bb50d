//! The object tier on KVBM's own types, with NIXL's own library and a real sidecar. `scripts/dev
//! kvbm test` says where those are.

mod manager;
mod object_tier;
mod rig;
