//! The kernel's build options.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

use flate2::read::GzDecoder;
use kvrail_memory::Root;

/// Options that are set, without `CONFIG_`.
pub(crate) struct KernelOptions(BTreeMap<String, String>);

impl KernelOptions {
    /// From the first place that has them; none where no place has.
    pub(crate) fn find(root: &Root, release: &str) -> Option<Self> {
        let plain = [
            format!("boot/config-{release}"),
            format!("lib/modules/{release}/config"),
            format!("usr/lib/modules/{release}/config"),
        ];
        let text = packed(root)
            .or_else(|| plain.iter().find_map(|path| root.text(path).ok().flatten()))?;
        Some(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let set = text.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix("CONFIG_")?.split_once('=')?;
            Some((name.to_owned(), value.trim().to_owned()))
        });
        Self(set.collect())
    }

    /// `y`, `m`, a number or a text; none where it is not set.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

fn packed(root: &Root) -> Option<String> {
    let file = File::open(root.path("proc/config.gz")).ok()?;
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).ok()?;
    Some(text)
}
