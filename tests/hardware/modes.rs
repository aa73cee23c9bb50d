//! Each ring mode on a real namespace: the features that the kernel accepted, by name.

use kvrail_device::{AnyDevice, Device, DirectIo, ModeChoice, ModeName, UringOptions, open_path};

use crate::machine;

#[test]
fn every_mode_opens_and_reports_the_accepted_features() {
    if !machine::is_ours() {
        return;
    }
    let path = machine::namespace("kvr-main", 1);
    let path = path.to_str().expect("a plain name");
    for mode in ModeName::ALL {
        let fd = open_path(path, DirectIo::Required).expect("our own device");
        let options = UringOptions::new(path, fd);
        let device = match AnyDevice::open(ModeChoice::Fixed(mode), options) {
            Ok(device) => device,
            Err(error) => {
                println!("mode {mode}: refused: {error}");
                assert!(mode == ModeName::Hybrid, "only this one needs a newer kernel than 6.12");
                assert!(error.to_string().contains("needs kernel 6.13"), "{error}");
                continue;
            }
        };
        let description = device.description();
        assert_eq!(description.mode, mode.name());
        println!("mode {mode}: {}", description.features.join(", "));
    }
}
