//! What `auto` has found on the devices of this process, so that each of several alike drives is
//! not left to its own luck, and the trials take their time once.
//!
//! A mode in which a kernel thread polls is not passed on: it costs a core for each device, so each
//! has to earn it in its own trials. Where one alike device needs no such thread, the next ones
//! have none either.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::found::ChosenMode;
use super::likeness::Likeness;
use crate::any_device::{AnyDevice, ModeChoice};
use crate::contract::{Description, Device};
use crate::error::DeviceError;
use crate::uring::UringOptions;

/// Modes that were found, each on the first of the devices that are alike.
#[derive(Debug, Default)]
pub struct KnownModes(Mutex<Vec<Known>>);

#[derive(Clone, Debug)]
struct Known {
    likeness: Likeness,
    name: String,
    found: ChosenMode,
}

impl KnownModes {
    /// A panic elsewhere leaves a whole list, so poison means nothing.
    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That of a device that is alike.
    fn of(&self, likeness: &Likeness) -> Option<Known> {
        self.lock().iter().find(|known| known.likeness == *likeness).cloned()
    }

    /// Notes that of a device that was opened, unless one that is alike has been noted.
    fn note(&self, likeness: Option<Likeness>, description: &Description) {
        let found = ChosenMode::of(description).filter(|found| !found.has_kernel_thread());
        let (Some(likeness), Some(found)) = (likeness, found) else { return };
        if self.of(&likeness).is_none() {
            let known = Known { likeness, name: description.name.clone(), found };
            self.lock().push(known);
        }
    }
}

impl AnyDevice {
    /// As `open` with `Auto`, but without trials where a mode is known that works here: that of the
    /// process before this one, or that of a device that is alike. The description names which.
    ///
    /// # Errors
    /// `DeviceError` with the likely cause and the remedy.
    pub fn open_auto(
        handed_on: Option<&ChosenMode>,
        known: &KnownModes,
        options: UringOptions,
    ) -> Result<Self, DeviceError> {
        let likeness = Likeness::of(&options);
        let (threaded, handed_on) = match handed_on {
            Some(found) if found.has_kernel_thread() => (Some(found), None),
            other => (None, other),
        };
        let alike = || known.of(likeness.as_ref()?)?.open(&options);
        let device = handed_on
            .and_then(|found| found.open_again(&options))
            .or_else(alike)
            .or_else(|| threaded?.open_again(&options));
        let device = match device {
            Some(device) => device,
            None => Self::open(ModeChoice::Auto, options)?,
        };
        known.note(likeness, device.description());
        Ok(device)
    }
}

impl Known {
    fn open(&self, options: &UringOptions) -> Option<AnyDevice> {
        self.found.open_alike(&self.name, options)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use tempfile::NamedTempFile;

    use super::{Known, KnownModes};
    use crate::any_device::{AnyDevice, ModeChoice};
    use crate::auto::found::ChosenMode;
    use crate::auto::found::tests::found;
    use crate::auto::likeness::Likeness;
    use crate::contract::{Description, Device, DirectIo};
    use crate::uring::{ModeName, UringOptions};

    const EARLIER: &str = " (found by the process before this one)";

    fn options(path: &str, file: &NamedTempFile) -> UringOptions {
        let fd = OwnedFd::from(file.reopen().unwrap());
        UringOptions { direct: DirectIo::Optional, ..UringOptions::new(path, fd) }
    }

    fn file() -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        file
    }

    /// Opens a file under a name, and describes it.
    fn open(handed_on: Option<&ChosenMode>, known: &KnownModes, path: &str) -> Description {
        let device = AnyDevice::open_auto(handed_on, known, options(path, &file())).unwrap();
        device.description().clone()
    }

    /// Of a file like those here.
    fn known(mode: ModeName) -> KnownModes {
        let known = KnownModes::default();
        let likeness = Likeness::of(&options("/a", &file())).unwrap();
        known.lock().push(Known { likeness, name: "/a".into(), found: found(mode) });
        known
    }

    #[test]
    fn what_was_found_is_taken_as_often_as_it_is_handed_on() {
        let file = file();
        let first = AnyDevice::open(ModeChoice::Auto, options("/a", &file)).unwrap();
        let found = ChosenMode::of(first.description()).unwrap();
        let again = open(Some(&found), &KnownModes::default(), "/a");
        assert_eq!(again.mode, first.description().mode);
        assert_eq!(again.reason, format!("{}{EARLIER}", first.description().reason));
        assert_eq!(again.bytes_per_second, first.description().bytes_per_second);
        assert_eq!(ChosenMode::of(&again), Some(found));
    }

    #[test]
    fn alike_files_take_over_what_the_first_one_found() {
        let known = KnownModes::default();
        let first = open(None, &known, "/a");
        assert!(!first.reason.contains("found by"), "{first:?}");
        if first.mode.parse::<ModeName>().unwrap().has_kernel_thread() {
            return; // by luck, where there are cores for it
        }
        for name in ["/b", "/c"] {
            let next = open(None, &known, name);
            assert_eq!(next.mode, first.mode);
            assert_eq!(next.reason, format!("{} (found by /a, which is alike)", first.reason));
            assert!(next.bytes_per_second.is_some(), "its own rate");
            // Handed on, it is this device's.
            let noted = ChosenMode::of(&next).unwrap();
            let again = open(Some(&noted), &KnownModes::default(), name);
            assert_eq!(again.reason, format!("{}{EARLIER}", first.reason));
        }
    }

    #[test]
    fn the_rate_is_that_of_the_device_itself() {
        let taken = open(None, &known(ModeName::Interrupt), "/b");
        assert!(taken.reason.contains("of old (found by /a"), "{taken:?}");
        assert!(taken.bytes_per_second.is_some_and(|rate| rate > 1), "{taken:?}");
    }

    #[test]
    fn devices_with_other_options_are_not_alike() {
        let known = KnownModes::default();
        let first = open(None, &known, "/a");
        let file = file();
        for other in [
            UringOptions { direct: DirectIo::Off, ..options("/b", &file) },
            UringOptions { depth: 4, ..options("/b", &file) },
        ] {
            let direct = first.io == "direct";
            if !direct && other.direct == DirectIo::Off {
                continue; // where no file is direct there is no difference
            }
            let device = AnyDevice::open_auto(None, &known, other).unwrap();
            let reason = &device.description().reason;
            assert!(!reason.contains("found by"), "{reason}");
        }
    }

    /// A namespace's mode, for what is a file.
    #[test]
    fn a_mode_that_does_not_work_is_not_insisted_on() {
        let passed = ModeName::PassthroughIopoll;
        let handed_on = open(Some(&found(passed)), &KnownModes::default(), "/b");
        let alike = open(None, &known(passed), "/b");
        for Description { mode, reason, .. } in [handed_on, alike] {
            assert_eq!(mode, "interrupt");
            assert!(reason.starts_with("auto: interrupt: "), "{reason}");
            assert!(!reason.contains("found by"), "{reason}");
        }
    }

    #[test]
    fn a_mode_with_a_kernel_thread_is_not_passed_on() {
        let opened = open(None, &KnownModes::default(), "/a");
        for mode in ModeName::ALL {
            let known = KnownModes::default();
            let likeness = Likeness::of(&options("/a", &file()));
            let described = Description { mode: mode.to_string(), ..opened.clone() };
            known.note(likeness.clone(), &described);
            let passed_on = known.of(&likeness.unwrap()).is_some();
            assert_eq!(passed_on, !mode.has_kernel_thread(), "{mode}");
        }
    }

    /// Of a process that let each device choose for itself: one of several had a thread.
    #[test]
    fn a_kernel_thread_ends_where_an_alike_device_needs_none() {
        let threaded = found(ModeName::Sqpoll);
        let taken = open(Some(&threaded), &known(ModeName::Interrupt), "/b");
        assert_eq!(taken.mode, "interrupt");
        assert!(taken.reason.ends_with("of old (found by /a, which is alike)"), "{taken:?}");
        // A mode without one is kept, whatever the others have.
        let kept = open(Some(&found(ModeName::Interrupt)), &known(ModeName::Hybrid), "/b");
        assert!(kept.mode == "interrupt" && kept.reason.ends_with(EARLIER), "{kept:?}");
    }
}
