//! GPUs, by their PCI class.

use kvrail_memory::Root;

use crate::device::{Detail, Device, DeviceKind};
use crate::place::MachineFacts;

const FUNCTIONS: &str = "sys/bus/pci/devices";

/// PCI classes (base and sub) of GPUs without a screen, and of accelerators.
const COMPUTE: [u32; 2] = [0x0302, 0x1200];

/// With a screen: VGA. Boards' management chips are of it too, so only vendors of GPUs count.
const DISPLAY: u32 = 0x0300;
const NVIDIA: u32 = 0x10de;
const AMD: u32 = 0x1002;

/// Every GPU, in the order of PCI addresses.
pub(crate) fn gpus(ground: &MachineFacts<'_>) -> Vec<Device> {
    let functions = ground.root.names(FUNCTIONS).into_iter();
    let gpus = functions.filter_map(|address| gpu(ground, &address));
    let numbered = gpus.enumerate();
    numbered.map(|(index, gpu)| Device { name: format!("gpu{index}"), ..gpu }).collect()
}

fn gpu(ground: &MachineFacts<'_>, address: &str) -> Option<Device> {
    let root = ground.root;
    let dir = format!("{FUNCTIONS}/{address}");
    let class = hex(root, &format!("{dir}/class"))? >> 8;
    let (vendor, device) =
        (hex(root, &format!("{dir}/vendor"))?, hex(root, &format!("{dir}/device"))?);
    let display = class == DISPLAY && [NVIDIA, AMD].contains(&vendor);
    if !COMPUTE.contains(&class) && !display {
        return None;
    }
    let driver = std::fs::read_link(root.path(format!("{dir}/driver"))).ok();
    let driver = driver.and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
    let id = format!("{vendor:04x}:{device:04x}");
    Some(Device {
        name: String::new(),
        kind: DeviceKind::Gpu,
        model: model(root, address).unwrap_or_else(|| format!("PCI {id}")),
        place: ground.place(&dir),
        detail: Detail::Gpu { id, bar1_bytes: bar1(root, &dir), driver },
    })
}

/// `Model:           NVIDIA H200`
fn model(root: &Root, address: &str) -> Option<String> {
    let path = format!("proc/driver/nvidia/gpus/{address}/information");
    let text = root.text(path).ok().flatten()?;
    let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
    Some(model.trim().to_owned())
}

/// Size of the second window. `resource` has a line `begin end flags` for each of six registers; a
/// window of 64 bits takes two of them and leaves the second line zero.
fn bar1(root: &Root, dir: &str) -> u64 {
    let text = root.text(format!("{dir}/resource")).ok().flatten().unwrap_or_default();
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let size = |line: &str| {
        let mut words = line.split_whitespace();
        let (begin, end) = (number(words.next()?)?, number(words.next()?)?);
        (end > begin).then(|| end - begin + 1)
    };
    text.lines().take(6).filter_map(size).nth(1).unwrap_or(0)
}

fn hex(root: &Root, path: &str) -> Option<u32> {
    let text = root.text(path).ok().flatten()?;
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}
