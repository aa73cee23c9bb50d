//! The keys of a changed configuration that a running sidecar takes over, and the others.

use toml::Value;

use super::Config;
use super::flatten::flatten;
use super::load::Loaded;
use super::model::MemoryConfig;
use super::provenance::Origins;
use super::target::TargetConfig;

impl Config {
    /// This configuration, with what can change while serving taken from `new`.
    pub fn apply_reload(&self, new: &Self) -> Self {
        let mut renewed = self.clone();
        renewed.limits = new.limits.clone();
        renewed.pollers.stall_after = new.pollers.stall_after;
        renewed.pollers.overdue_after = new.pollers.overdue_after;
        renewed.pollers.slow_after = new.pollers.slow_after;
        renewed.memory = MemoryConfig { node: self.memory.node, ..new.memory.clone() };
        renewed.sidecar.allow_uids.clone_from(&new.sidecar.allow_uids);
        renewed.sidecar.allow_gids.clone_from(&new.sidecar.allow_gids);
        renewed.sidecar.drain_timeout = new.sidecar.drain_timeout;
        renewed.sidecar.log.clone_from(&new.sidecar.log);
        for volume in &mut renewed.volume {
            let new = new.volume.iter().find(|other| other.name == volume.name);
            if let Some(new) = new {
                volume.write_budget = new.write_budget;
                volume.tenant.clone_from(&new.tenant);
                for pool in &mut volume.pool {
                    if let Some(new) = new.pool.iter().find(|other| other.name == pool.name) {
                        (pool.minimum, pool.maximum) = (new.minimum, new.maximum);
                    }
                }
            }
        }
        renewed.target = new.target.clone();
        if !self.target.wish().is_empty() {
            // A target that is kept up stays where it is.
            let TargetConfig { configfs, state_dir, .. } = self.target.clone();
            renewed.target = TargetConfig { configfs, state_dir, ..renewed.target };
        }
        renewed
    }

    /// The keys whose values differ, by the alphabet.
    pub fn differing_keys(&self, other: &Self) -> Vec<String> {
        let (ours, theirs) = (entries(self), entries(other));
        let only_ours = ours.iter().filter(|entry| !theirs.contains(entry));
        let only_theirs = theirs.iter().filter(|entry| !ours.contains(entry));
        let mut keys: Vec<_> = only_ours.chain(only_theirs).map(|(key, _)| key.clone()).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// The values of these keys before (of this configuration) and afterwards, for people.
    pub fn changes(&self, other: &Self, keys: &[String]) -> Vec<String> {
        let (ours, theirs) = (entries(self), entries(other));
        let value = |all: &[(String, Value)], key: &String| {
            let found = all.iter().find(|(name, _)| name == key);
            found.map_or_else(|| "none".into(), |(_, value)| value.to_string())
        };
        let change = |key| format!("{key}: {} -> {}", value(&ours, key), value(&theirs, key));
        keys.iter().map(change).collect()
    }
}

impl Loaded {
    /// What is in force after a reload of `new` that left `config`: a value that is as in `new`
    /// comes from there, others still come from where they came.
    pub fn after_reload(&self, new: &Self, config: Config) -> Self {
        let theirs = new.entries();
        let mut origins = Origins::default();
        for (key, value) in entries(&config) {
            let same = theirs.iter().find(|(name, other, _)| (name, other) == (&key, &value));
            let origin = same.map_or_else(|| self.origin(&key), |(.., origin)| origin.clone());
            origins.set(&key, origin);
        }
        Self::new(config, origins)
    }
}

fn entries(config: &Config) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let value = Value::try_from(config).expect("a configuration can be written as TOML");
    flatten("", &value, &mut found);
    found
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Layers, load};

    fn config(text: &str) -> Config {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn changes_are_sorted_by_when_they_hold() {
        let before = config("[limits]\nsessions = 3\n[device]\nqueue_depth = 8");
        let after = config(
            "[sidecar]\nlog = \"debug\"\nlog_format = \"json\"\n[[volume]]\nname = \"a\"\n\
             members = [\"/a\"]\n[device]\nqueue_depth = 8",
        );
        let renewed = before.apply_reload(&after);
        assert_eq!(before.differing_keys(&renewed), ["limits.sessions", "sidecar.log"]);
        let at_next_start = ["sidecar.log_format", "volume", "volume.0.members", "volume.0.name"];
        assert_eq!(renewed.differing_keys(&after), at_next_start);
        assert!(after.differing_keys(&after).is_empty());
    }

    #[test]
    fn a_change_has_both_values_and_each_value_its_origin() {
        let layers = |sets: &[&str]| Layers {
            sets: sets.iter().map(|&set| set.to_owned()).collect(),
            ..Layers::default()
        };
        let before = load(&layers(&["limits.sessions=3", "device.queue_depth=8"])).unwrap();
        let new = load(&layers(&["limits.sessions=4", "device.queue_depth=9"])).unwrap();
        let renewed = before.config.apply_reload(&new.config);
        let keys = before.config.differing_keys(&renewed);
        assert_eq!(before.config.changes(&renewed, &keys), ["limits.sessions: 3 -> 4"]);
        let after = before.after_reload(&new, renewed);
        let of = |key: &str| after.entries().into_iter().find(|(name, ..)| name == key).unwrap();
        assert_eq!(of("limits.sessions").2.to_string(), "--set limits.sessions=4");
        assert_eq!(of("device.queue_depth").2.to_string(), "--set device.queue_depth=8");
        assert_eq!(of("limits.lane_depth").2.to_string(), "default");
        let volume = config("[[volume]]\nname = \"a\"\nmembers = [\"/a\"]");
        let change = before.config.changes(&volume, &["volume.0.name".into()]);
        assert_eq!(change, ["volume.0.name: none -> \"a\""]);
    }

    #[test]
    fn budgets_and_tenants_change_with_the_volume_of_their_name() {
        let volumes = |one: &str, two: &str| {
            let volume = |name: &str, more: &str| {
                format!("[[volume]]\nname = \"{name}\"\nmembers = [\"/{name}\"]\n{more}\n")
            };
            volume("a", one) + &volume("b", two)
        };
        let before = config(&volumes("", "write_budget = \"2dwpd\""));
        let tenant = "tenant = [{ namespaces = \"*\", rights = \"read\" }]";
        let after = config(&volumes("write_budget = \"0.5dwpd\"", tenant));
        let renewed = before.apply_reload(&after);
        let keys = [
            "volume.0.write_budget",
            "volume.1.tenant.0.namespaces",
            "volume.1.tenant.0.rights",
            "volume.1.write_budget",
        ];
        assert_eq!(before.differing_keys(&renewed), keys);
        assert_eq!(renewed, after);
    }

    #[test]
    fn a_pool_gets_another_size_and_keeps_its_namespaces() {
        let pool = |names: &str, minimum: &str| {
            config(&format!(
                "[[volume]]\nname = \"a\"\nmembers = [\"/a\"]\n[[volume.pool]]\nname = \"b\"\n\
                 namespaces = \"{names}\"\nminimum = \"{minimum}\""
            ))
        };
        let (before, after) = (pool("b *", "5%"), pool("c *", "1GiB"));
        let renewed = before.apply_reload(&after);
        assert_eq!(before.differing_keys(&renewed), ["volume.0.pool.0.minimum"]);
        assert_eq!(renewed.differing_keys(&after), ["volume.0.pool.0.namespaces"]);
    }

    #[test]
    fn a_target_changes_and_stays_where_it_is() {
        let port = "[[target.port]]\nid = 1\ntransport = \"loop\"\nsubsystems = []\n";
        let text =
            format!("[target]\nstate_dir = \"/elsewhere\"\non_shutdown = \"teardown\"\n{port}");
        let (nothing, after) = (Config::default(), config(&text));
        assert_eq!(nothing.apply_reload(&after), after);
        let before = config(&port.replace("id = 1", "id = 2"));
        let renewed = before.apply_reload(&after);
        assert_eq!(before.differing_keys(&renewed), ["target.on_shutdown", "target.port.0.id"]);
        assert_eq!(renewed.differing_keys(&after), ["target.state_dir"]);
    }
}
