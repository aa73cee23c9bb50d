//! `auto`: a mode that works, with the reason; and the mechanism type over the whole contract.

use std::any::type_name;

use kvrail_device::{
    AnyDevice, Device, DirectIo, Driver, Interrupt, ModeChoice, ModeName, NullDevice, NullOptions,
    Uring, UringOptions, open_path,
};

use crate::rig::{Bytes, Subject};
use crate::uring::place;

fn open_as(choice: ModeChoice) -> Option<Subject<AnyDevice>> {
    let (name, keep) = place();
    let fd = open_path(&name, DirectIo::Off).expect("our own file");
    let options = UringOptions { direct: DirectIo::Optional, ..UringOptions::new(&name, fd) };
    let device = AnyDevice::open(choice, options).expect("interrupt works everywhere");
    Some(Subject { device, bytes: Bytes::Kept, keep })
}

fn open() -> Option<Subject<AnyDevice>> {
    open_as(ModeChoice::Auto)
}

conformance!(open);

#[test]
fn auto_reports_its_choice_and_the_reason() {
    let subject = open().expect("never skipped");
    let description = subject.device.description();
    println!("{description:?}");
    let mode: ModeName = description.mode.parse().expect("one of the modes");
    assert!(description.reason.starts_with(&format!("auto: {mode}: ")), "{description:?}");
    if description.reason.contains("reads a second") {
        let measured = description.reason.contains(&format!("{mode} "));
        assert!(measured, "the numbers of the chosen mode are shown: {description:?}");
    }
    if description.reason.contains("its kernel thread needs 4 cores") {
        assert!(!mode.has_kernel_thread(), "three spinning threads on few cores: {description:?}");
    }
}

#[test]
fn a_fixed_mode_is_used() {
    let subject = open_as(ModeChoice::Fixed(ModeName::Interrupt)).expect("never skipped");
    let description = subject.device.description();
    assert_eq!(
        (description.mode.as_str(), description.reason.as_str()),
        ("interrupt", "configured")
    );
    assert!(description.features.iter().any(|text| text.contains("DEFER_TASKRUN")));
}

/// Mechanism type that records the number and the names of devices it got.
struct Type;

impl Driver for Type {
    type End = (&'static str, usize);

    fn drive<D: Device>(self, devices: Vec<D>) -> Self::End {
        (type_name::<D>(), devices.len())
    }
}

#[test]
fn devices_of_one_kind_are_driven_as_that_kind() {
    let null = || AnyDevice::Null(Box::new(NullDevice::new(NullOptions::default())));
    let ring = || {
        let subject = open_as(ModeChoice::Fixed(ModeName::Interrupt)).expect("never skipped");
        (subject.device, subject.keep)
    };
    let ((first, _first_file), (second, _second_file)) = (ring(), ring());
    let driven = |devices| Device::hand_to(devices, Type);
    assert_eq!(driven(vec![null()]), (type_name::<NullDevice>(), 1));
    assert_eq!(driven(vec![null(), first]), (type_name::<AnyDevice>(), 2));
    assert_eq!(driven(vec![second]), (type_name::<Uring<Interrupt>>(), 1));
}
