//! Refusals of a start before it touches a device: CPUs and NUMA nodes that this host does not
//! have. `kvrail config check` asks the same.

use kvrail_memory::Topology;

use super::numa;
use kvrail_cli::config::Config;
use kvrail_cli::failure::{Exit, Failure};

/// Reads the CPUs and nodes of this host, and holds a configuration against them.
///
/// # Errors
/// `Failure` with status 2 names the key, its value, and what there is.
pub(crate) fn check_host(config: &Config) -> Result<Topology, Failure> {
    let topology = Topology::host().map_err(|error| {
        Failure::new(Exit::Failed, format!("the machine's CPUs cannot be read: {error}"))
    })?;
    check(config, &topology)?;
    Ok(topology)
}

fn check(config: &Config, topology: &Topology) -> Result<(), Failure> {
    numa::policy(config, topology, None)?;
    for (key, cpus) in named_cpus(config) {
        check_cpus(&key, &cpus, topology)?;
    }
    Ok(())
}

/// Every key that names CPUs, with them.
fn named_cpus(config: &Config) -> Vec<(String, Vec<u16>)> {
    let lists = [("pollers.cpus", &config.pollers.cpus), ("gpu.cpus", &config.gpu.cpus)];
    let lists = lists.into_iter().filter_map(|(key, cpus)| Some((key, cpus.fixed()?.clone())));
    let own = config.volume.iter().enumerate().filter_map(|(index, volume)| {
        let cpu = volume.device.sq_cpu?.fixed().copied()?;
        Some((format!("volume.{index}.device.sq_cpu"), vec![cpu]))
    });
    let shared = config.device.sq_cpu.fixed().map(|&cpu| ("device.sq_cpu".to_owned(), vec![cpu]));
    lists.map(|(key, cpus)| (key.to_owned(), cpus)).chain(own).chain(shared).collect()
}

fn check_cpus(key: &str, cpus: &[u16], topology: &Topology) -> Result<(), Failure> {
    let online = topology.online();
    let Some(absent) = cpus.iter().find(|&&cpu| !online.contains(u32::from(cpu))) else {
        return Ok(());
    };
    let what = format!("{key}: CPU {absent} is not there; this host's CPUs are {online}");
    Err(Failure::new(Exit::Usage, what).with_remedy(format!("name CPUs of {online}, or \"auto\"")))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::serve::numa::tests::machine;
    use kvrail_cli::config::Config;

    #[test]
    fn cpus_and_nodes_that_are_not_there_are_refused() {
        let topology = machine(&[(0, "0-1"), (1, "2-3")]);
        let volume = "[[volume]]\nname = \"kv\"\nmembers = [\"/a\", \"/b\"]\n";
        let cases = [
            ("[memory]\nnode = 4096\n", "memory.node = 4096"),
            ("[pollers]\ncpus = [0, 7]\n", "pollers.cpus: CPU 7 is not there"),
            ("[gpu]\ndevices = [\"0\"]\ncpus = [4]\n", "gpu.cpus: CPU 4 is not there"),
            ("[device]\nsq_cpu = 99\n", "device.sq_cpu: CPU 99 is not there"),
        ];
        for (text, words) in cases {
            let config: Config = toml::from_str(&format!("{text}{volume}")).unwrap();
            let why = check(&config, &topology).unwrap_err().log_text();
            assert!(why.contains(words), "no {words:?} in {why}");
        }
        let own = format!("{volume}[volume.device]\nsq_cpu = 5\n");
        let why = check(&toml::from_str(&own).unwrap(), &topology).unwrap_err().log_text();
        assert!(why.contains("volume.0.device.sq_cpu: CPU 5"), "{why}");
        let text = "[memory]\nnode = 1\n[pollers]\ncpus = [2, 3]\n[device]\nsq_cpu = 1\n";
        check(&toml::from_str(&format!("{text}{volume}")).unwrap(), &topology).unwrap();
    }
}
