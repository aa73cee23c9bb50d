//! Relative paths of the command line begin where the command was given. Those of files and of the
//! environment do not: what reads them is started elsewhere.

use std::path::PathBuf;

use kvrail_nvme::Selector;

use super::model::Config;
use super::provenance::{Origin, Origins};

/// Makes them absolute.
pub(super) fn anchor(config: &mut Config, origins: &Origins) {
    let is_said_here = |key: &str| matches!(origins.of(key), Origin::CommandLine { .. });
    let full = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let target = &mut config.target;
    for (key, path) in [
        ("sidecar.socket", &mut config.sidecar.socket),
        ("target.configfs", &mut target.configfs),
        ("target.state_dir", &mut target.state_dir),
    ] {
        if is_said_here(key) {
            *path = full(path);
        }
    }
    for (index, volume) in config.volume.iter_mut().enumerate() {
        if is_said_here(&format!("volume.{index}.members")) {
            let members = volume.members.iter().map(|member| match member {
                Selector::Path(path) if volume.null_size(member).is_none() => {
                    Selector::Path(full(path))
                }
                other => other.clone(),
            });
            volume.members = members.collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Layers, load};

    #[test]
    fn relative_paths_of_the_command_line_begin_here() {
        let here = std::env::current_dir().unwrap();
        let sets = ["sidecar.socket=./s", "volume=[{name=\"a\", members=[\"x\", \"serial:A\"]}]"];
        let null = "volume=[{name=\"n\", members=[\"null:1GiB\"]}]";
        let loaded = |sets: &[&str]| {
            let sets = sets.iter().map(|&set| set.to_owned()).collect();
            load(&Layers { sets, ..Layers::default() }).unwrap().config
        };
        let config = loaded(&sets);
        assert_eq!(config.sidecar.socket, here.join("s"));
        let members = config.volume[0].members.iter().map(ToString::to_string);
        let expected = [here.join("x").display().to_string(), "serial:A".into()];
        assert_eq!(members.collect::<Vec<_>>(), expected);
        assert_eq!(loaded(&[null]).volume[0].members[0].to_string(), "null:1GiB");
        let variable = [("KVRAIL_SIDECAR__SOCKET".into(), "s".into())];
        let refused = load(&Layers { environment: variable.into(), ..Layers::default() });
        assert!(refused.unwrap_err().to_string().contains("absolute"));
    }
}
