//! Sets of purposes that checks are for.

use crate::machine::HostPurpose;

pub(super) const ALL: &[HostPurpose] = &HostPurpose::ALL;
pub(super) const RINGS: &[HostPurpose] =
    &[HostPurpose::Serve, HostPurpose::Store, HostPurpose::Gpu, HostPurpose::Bench];
pub(super) const LOCAL: &[HostPurpose] = &[
    HostPurpose::Serve,
    HostPurpose::Store,
    HostPurpose::Target,
    HostPurpose::Gpu,
    HostPurpose::Bench,
];
pub(super) const FILES: &[HostPurpose] =
    &[HostPurpose::Serve, HostPurpose::Store, HostPurpose::Gpu, HostPurpose::Bench];
pub(super) const STORE: &[HostPurpose] = &[HostPurpose::Store];
pub(super) const WIRE: &[HostPurpose] = &[HostPurpose::Target, HostPurpose::Host];
pub(super) const TARGET: &[HostPurpose] = &[HostPurpose::Target];
pub(super) const HOST: &[HostPurpose] = &[HostPurpose::Host];
pub(super) const GPU: &[HostPurpose] = &[HostPurpose::Gpu];
pub(super) const PEER: &[HostPurpose] = &[HostPurpose::Target, HostPurpose::Gpu];
