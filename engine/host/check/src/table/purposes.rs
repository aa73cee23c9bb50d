//! Sets of purposes that checks are for.

use crate::machine::Purpose;

pub(super) const ALL: &[Purpose] =
    &[Purpose::Serve, Purpose::Store, Purpose::Target, Purpose::Host, Purpose::Gpu, Purpose::Bench];
pub(super) const RINGS: &[Purpose] =
    &[Purpose::Serve, Purpose::Store, Purpose::Gpu, Purpose::Bench];
pub(super) const LOCAL: &[Purpose] =
    &[Purpose::Serve, Purpose::Store, Purpose::Target, Purpose::Gpu, Purpose::Bench];
pub(super) const FILES: &[Purpose] =
    &[Purpose::Serve, Purpose::Store, Purpose::Gpu, Purpose::Bench];
pub(super) const STORE: &[Purpose] = &[Purpose::Store];
pub(super) const WIRE: &[Purpose] = &[Purpose::Target, Purpose::Host];
pub(super) const TARGET: &[Purpose] = &[Purpose::Target];
pub(super) const HOST: &[Purpose] = &[Purpose::Host];
pub(super) const GPU: &[Purpose] = &[Purpose::Gpu];
pub(super) const PEER: &[Purpose] = &[Purpose::Target, Purpose::Gpu];
