//! The kernel's rules (drivers/nvme/target/configfs.c and core.c, fs/configfs), and those that the
//! vendor's public documents state for offload. Where the kernel is laxer than an orderly program
//! should need, this is stricter: an enabled namespace cannot be removed.

use rustix::io::Errno;

use super::{Flavor, Node, State};

const HOST: &[(&str, &str)] = &[
    ("dhchap_key", ""),
    ("dhchap_ctrl_key", ""),
    ("dhchap_hash", "hmac(sha256)"),
    ("dhchap_dhgroup", "null"),
];
const PORT: &[(&str, &str)] = &[
    ("addr_adrfam", ""),
    ("addr_traddr", ""),
    ("addr_treq", "not specified"),
    ("addr_trsvcid", ""),
    ("addr_trtype", ""),
    ("addr_tsas", ""),
    ("param_inline_data_size", "-1"),
    ("param_max_queue_size", "-1"),
    ("param_pi_enable", "0"),
];
const SUBSYSTEM: &[(&str, &str)] = &[
    ("attr_allow_any_host", "0"),
    ("attr_cntlid_min", "1"),
    ("attr_cntlid_max", "65519"),
    ("attr_model", "Linux"),
    ("attr_pi_enable", "0"),
    ("attr_qid_max", "128"),
    ("attr_serial", "9f1c0d5a7e3b2468"),
    ("attr_version", "2.1"),
];
const NAMESPACE: &[(&str, &str)] = &[
    ("ana_grpid", "1"),
    ("buffered_io", "0"),
    ("device_nguid", "00000000-0000-0000-0000-000000000000"),
    ("device_path", "(null)"),
    ("device_uuid", "ef90689c-6c46-444c-89c1-4067801309a8"),
    ("enable", "0"),
    ("revalidate_size", ""),
];
const ANA_STATES: [&str; 5] =
    ["optimized", "non-optimized", "inaccessible", "persistent-loss", "change"];

impl State {
    fn files(&mut self, path: &str, files: &[(&str, &str)]) {
        for (name, value) in files {
            self.nodes.insert(format!("{path}/{name}"), Node::File((*value).into()));
        }
    }

    pub(super) fn make_dir(&mut self, path: &str) -> Result<(), Errno> {
        if self.nodes.contains_key(path) {
            return Err(Errno::EXIST);
        }
        let (parent, _) = path.rsplit_once('/').ok_or(Errno::PERM)?;
        if !matches!(self.nodes.get(parent), Some(Node::Dir { .. })) {
            return Err(Errno::NOENT);
        }
        let number = |text: &str| text.parse::<u64>().map_err(|_| Errno::INVAL);
        let parts: Vec<&str> = path.split('/').collect();
        let vendor = self.flavor == Flavor::Vendor;
        let recent = self.flavor == Flavor::Recent;
        match parts[..] {
            ["hosts", name] if name.len() <= 223 => self.files(path, HOST),
            ["subsystems", name] if name.len() <= 223 && !name.ends_with(".discovery") => {
                self.files(path, SUBSYSTEM);
                if vendor {
                    self.files(path, &[("attr_offload", "0")]);
                }
                for folder in ["namespaces", "allowed_hosts", "passthru"] {
                    self.born(&format!("{path}/{folder}"));
                }
                self.files(&format!("{path}/passthru"), &[("enable", "0"), ("device_path", "")]);
            }
            ["subsystems", _, "namespaces", id] => {
                if !(1..0xffff_ffff).contains(&number(id)?) {
                    return Err(Errno::INVAL);
                }
                self.files(path, NAMESPACE);
                if recent {
                    self.files(path, &[("p2pmem", "0"), ("resv_enable", "0")]);
                }
                if vendor {
                    self.files(path, &[("pci_device_path", "")]);
                }
            }
            ["ports", id] => {
                if number(id)? > u64::from(u16::MAX) {
                    return Err(Errno::INVAL);
                }
                self.files(path, PORT);
                if vendor {
                    self.files(path, &[("param_offload_queues", "1")]);
                }
                for folder in ["subsystems", "referrals", "ana_groups", "ana_groups/1"] {
                    self.born(&format!("{path}/{folder}"));
                }
                self.files(&format!("{path}/ana_groups/1"), &[("ana_state", "optimized")]);
            }
            ["ports", _, "ana_groups", group] => {
                if !(2..=128).contains(&number(group)?) {
                    return Err(Errno::INVAL);
                }
                self.files(path, &[("ana_state", "inaccessible")]);
            }
            _ => return Err(if parts.len() == 2 { Errno::INVAL } else { Errno::PERM }),
        }
        self.add(path, true);
        Ok(())
    }

    pub(super) fn remove_dir(&mut self, path: &str) -> Result<(), Errno> {
        match self.nodes.get(path) {
            Some(Node::Dir { made: true, .. }) => {}
            Some(Node::Dir { .. }) => return Err(Errno::PERM),
            Some(_) => return Err(Errno::NOTDIR),
            None => return Err(Errno::NOENT),
        }
        let below = format!("{path}/");
        let inside = |(name, node): (&String, &Node)| {
            name.starts_with(&below) && matches!(node, Node::Dir { made: true, .. } | Node::Link(_))
        };
        if self.nodes.iter().any(inside) {
            return Err(Errno::NOTEMPTY);
        }
        let holds = |node: &Node| matches!(node, Node::Link(target) if target == path);
        let enabled = path.contains("/namespaces/") && self.text(&format!("{path}/enable")) == "1";
        if self.nodes.values().any(holds) || enabled {
            return Err(Errno::BUSY);
        }
        self.nodes.retain(|name, _| name != path && !name.starts_with(&below));
        Ok(())
    }

    pub(super) fn write(&mut self, path: &str, text: &str) -> Result<(), Errno> {
        if !matches!(self.nodes.get(path), Some(Node::File(_))) {
            return Err(Errno::NOENT);
        }
        let (object, name) = path.rsplit_once('/').ok_or(Errno::NOENT)?;
        let value = text.trim_end_matches('\n');
        if object.starts_with("ports/") {
            self.check_port(object, name, value)?;
        } else if object.contains("/namespaces/") {
            self.check_namespace(object, name, value)?;
        } else if object.starts_with("subsystems/") {
            self.check_subsystem(object, name, value)?;
        } else if name.ends_with("_key") && !value.starts_with("DHHC-1:") {
            return Err(Errno::INVAL);
        }
        self.nodes.insert(path.into(), Node::File(value.into()));
        Ok(())
    }

    fn check_port(&self, object: &str, name: &str, value: &str) -> Result<(), Errno> {
        if name == "ana_state" {
            return if ANA_STATES.contains(&value) { Ok(()) } else { Err(Errno::INVAL) };
        }
        if !self.links(&format!("{object}/subsystems")).is_empty() {
            return Err(Errno::ACCESS);
        }
        let good = match name {
            "addr_trtype" => ["rdma", "tcp", "loop", "fc"].contains(&value),
            "addr_adrfam" => ["ipv4", "ipv6", "ib", "fc", "loop"].contains(&value),
            "addr_traddr" => value.len() < 256,
            "addr_trsvcid" => value.len() < 32,
            "param_inline_data_size" | "param_max_queue_size" | "param_offload_queues" => {
                value.parse::<i32>().is_ok()
            }
            _ => false,
        };
        if good { Ok(()) } else { Err(Errno::INVAL) }
    }

    fn check_namespace(&mut self, object: &str, name: &str, value: &str) -> Result<(), Errno> {
        let enabled = self.text(&format!("{object}/enable")) == "1";
        match name {
            "enable" if value == "1" && !enabled => self.enable(object),
            "enable" if value == "1" || value == "0" => Ok(()),
            "ana_grpid" => match value.parse::<u32>() {
                Ok(1..=128) => Ok(()),
                _ => Err(Errno::INVAL),
            },
            _ if enabled => Err(Errno::BUSY),
            "device_path" if value.is_empty() => Err(Errno::INVAL),
            "device_uuid" | "device_nguid" if value.len() != 36 => Err(Errno::INVAL),
            "p2pmem" if !["0", "1"].contains(&value) => Err(Errno::NODEV),
            _ => Ok(()),
        }
    }

    fn enable(&mut self, object: &str) -> Result<(), Errno> {
        let device = self.text(&format!("{object}/device_path")).to_owned();
        if !self.devices.contains_key(&device) {
            return Err(Errno::NOENT);
        }
        let subsystem = object.split("/namespaces").next().unwrap_or_default();
        let offloaded = self.text(&format!("{subsystem}/attr_offload")) == "1";
        let enabled = |path: &String| self.text(&format!("{path}/enable")) == "1";
        if offloaded && self.namespaces(subsystem).iter().any(enabled) {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    fn check_subsystem(&self, object: &str, name: &str, value: &str) -> Result<(), Errno> {
        let linked = self.ports().iter().any(|port| {
            self.links(&format!("{port}/subsystems")).iter().any(|(_, target)| target == object)
        });
        let enabled = self
            .namespaces(object)
            .iter()
            .any(|namespace| self.text(&format!("{namespace}/enable")) == "1");
        let listed = !self.links(&format!("{object}/allowed_hosts")).is_empty();
        match name {
            "attr_allow_any_host" if value == "1" && listed => Err(Errno::INVAL),
            "attr_offload" if linked || enabled => Err(Errno::BUSY),
            "attr_serial" if value.len() > 20 => Err(Errno::INVAL),
            "attr_model" if value.is_empty() || value.len() > 40 => Err(Errno::INVAL),
            "attr_qid_max" if !matches!(value.parse(), Ok(1..=128_u32)) => Err(Errno::INVAL),
            _ => Ok(()),
        }
    }

    pub(super) fn link(&mut self, path: &str, target: &str) -> Result<(), Errno> {
        if !self.nodes.contains_key(target) {
            return Err(Errno::NOENT);
        }
        if self.nodes.contains_key(path) {
            return Err(Errno::EXIST);
        }
        let (folder, _) = path.rsplit_once('/').ok_or(Errno::PERM)?;
        if !self.nodes.contains_key(folder) {
            return Err(Errno::NOENT);
        }
        let parts: Vec<&str> = path.split('/').collect();
        match parts[..] {
            ["subsystems", name, "allowed_hosts", _] if target.starts_with("hosts/") => {
                if self.text(&format!("subsystems/{name}/attr_allow_any_host")) == "1" {
                    return Err(Errno::INVAL);
                }
            }
            ["ports", id, "subsystems", _] if target.starts_with("subsystems/") => {
                self.open(&format!("ports/{id}"), target)?;
            }
            _ => return Err(Errno::PERM),
        }
        self.nodes.insert(path.into(), Node::Link(target.into()));
        Ok(())
    }

    /// The first link of a port makes it listen.
    fn open(&mut self, port: &str, subsystem: &str) -> Result<(), Errno> {
        let linked = self.links(&format!("{port}/subsystems"));
        let offload = |subsystem: &str| self.text(&format!("{subsystem}/attr_offload")) == "1";
        let one_link = offload(subsystem) || linked.iter().any(|(_, other)| offload(other));
        if !linked.is_empty() {
            return if one_link { Err(Errno::BUSY) } else { Ok(()) };
        }
        let transport = self.text(&format!("{port}/addr_trtype"));
        let module = match transport {
            "rdma" => "nvmet_rdma",
            "tcp" => "nvmet_tcp",
            "loop" => "nvme_loop",
            _ => return Err(Errno::INVAL),
        };
        if !self.modules.contains(module) {
            return Err(Errno::INVAL);
        }
        if transport != "loop" {
            let address = self.text(&format!("{port}/addr_traddr"));
            if !self.addresses.contains(address) {
                return Err(Errno::ADDRNOTAVAIL);
            }
            if transport == "rdma" && !self.addresses.contains(&format!("rdma {address}")) {
                return Err(Errno::NODEV);
            }
            if self.is_taken(port) {
                return Err(Errno::ADDRINUSE);
            }
        }
        let inline = if transport == "loop" { "0" } else { "4096" };
        if offload(subsystem) {
            self.take_queue(subsystem)?;
        }
        for (name, chosen) in [("param_inline_data_size", inline), ("param_max_queue_size", "128")]
        {
            let path = format!("{port}/{name}");
            if self.text(&path) == "-1" {
                self.nodes.insert(path, Node::File(chosen.into()));
            }
        }
        Ok(())
    }

    fn place(&self, port: &str) -> String {
        ["addr_trtype", "addr_traddr", "addr_trsvcid"]
            .map(|name| self.text(&format!("{port}/{name}")))
            .join(" ")
    }

    fn is_taken(&self, port: &str) -> bool {
        let place = self.place(port);
        let open = |other: &String| !self.links(&format!("{other}/subsystems")).is_empty();
        self.listening.contains(&place)
            || self
                .ports()
                .iter()
                .any(|other| other != port && open(other) && self.place(other) == place)
    }

    /// Each pair of port and offloaded subsystem takes a queue of the drive.
    fn take_queue(&mut self, subsystem: &str) -> Result<(), Errno> {
        for namespace in self.namespaces(subsystem) {
            let device = self.text(&format!("{namespace}/device_path")).to_owned();
            let left = self.devices.get_mut(&device).ok_or(Errno::NOENT)?;
            *left = left.checked_sub(1).ok_or(Errno::BUSY)?;
        }
        Ok(())
    }

    pub(super) fn unlink(&mut self, path: &str) {
        let Some(Node::Link(target)) = self.nodes.remove(path) else { return };
        if path.starts_with("ports/") && self.text(&format!("{target}/attr_offload")) == "1" {
            for namespace in self.namespaces(&target) {
                let device = self.text(&format!("{namespace}/device_path")).to_owned();
                *self.devices.entry(device).or_default() += 1;
            }
        }
    }
}
