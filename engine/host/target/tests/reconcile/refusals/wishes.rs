//! Edits of a good specification that no host could fulfil, and their errors.

/// A name of one byte too many.
pub(super) const LONG: &str = "nqn.2026-01.org.example:\
    0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123\
    4567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567\
    012345678901";

/// The replaced text, its replacement, and parts of the refusal.
pub(super) type Edit = (&'static str, &'static str, &'static [&'static str]);

/// Refused whatever the host.
pub(super) const WISHES: &[Edit] = &[
    // Names.
    (
        "nqn.2026-01.org.example:a\"\ndh",
        "host-a\"\ndh",
        &["target.host.0.nqn = \"host-a\"", "nqn.YYYY-MM"],
    ),
    (
        "\"nqn.2026-01.org.example:a\"]",
        "\"a\"]",
        &["target.subsystem.0.hosts.0 = \"a\"", "qualified name"],
    ),
    ("nqn = \"nqn.2026-01.org.example:kv0", "nqn = \"kv0", &["target.subsystem.0.nqn = \"kv0\""]),
    (
        "nqn = \"nqn.2026-01.org.example:kv0",
        "nqn = \"nqn.26-01.org.example:kv0",
        &["has no date", "nqn.2026-01.org.example:kv0"],
    ),
    (
        "nqn = \"nqn.2026-01.org.example:kv0",
        "nqn = \"nqn.2026-13.org.example:kv0",
        &["has no date"],
    ),
    ("nqn = \"nqn.2026-01.org.example:kv0", "nqn = \"nqn.2026-01.", &["target.subsystem.0.nqn"]),
    (
        "nqn = \"nqn.2026-01.org.example:kv0",
        "nqn = \"nqn.2026-01.org.example:k/v",
        &["'/' cannot stand"],
    ),
    (
        "nqn = \"nqn.2026-01.org.example:kv0",
        "nqn = \"nqn.2026-01.org.example:k v",
        &["' ' cannot stand"],
    ),
    (
        "nqn = \"nqn.2026-01.org.example:kv0",
        "nqn = \"nqn.2026-01.org.example:ü",
        &["'ü' cannot stand"],
    ),
    ("nqn = \"nqn.2026-01.org.example:kv0", "nqn = \"", &["target.subsystem.0.nqn = \"\""]),
    (
        "nqn = \"nqn.2026-01.org.example:kv0\"",
        "nqn = \"nqn.2014-08.org.nvmexpress.discovery\"",
        &["discovery service"],
    ),
    ("nqn = \"nqn.2026-01.org.example:kv0\"", "nqn = \"LONG\"", &["224 bytes", "at most 223"]),
    ("\"nqn.2026-01.org.example:a\"]", "\"LONG\"]", &["target.subsystem.0.hosts.0", "at most 223"]),
    (
        "nqn = \"nqn.2026-01.org.example:kv1",
        "nqn = \"nqn.2026-01.org.example:kv0",
        &["target.subsystem.1.nqn", "target.subsystem.0 has this name too"],
    ),
    (
        "hosts = [\"nqn.2026-01.org.example:b\"]",
        "hosts = [\"nqn.2026-01.org.example:b\", \"nqn.2026-01.org.example:b\"]",
        &["target.subsystem.1.hosts.1", "has this name too"],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-01.org.example:kv0",
        "[[host]]\nnqn = \"nqn.2026-01.org.example:a\"\ndhchap_key_file = \"/k\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-01.org.example:kv0",
        &["target.host.1.nqn", "target.host.0 has this name too"],
    ),
    // Access.
    (
        "hosts = [\"nqn.2026-01.org.example:b\"]\n",
        "",
        &["target.subsystem.1.hosts = []", "allow_any_host is off", "no host could connect"],
    ),
    (
        "hosts = [\"nqn.2026-01.org.example:b\"]\n",
        "hosts = [\"nqn.2026-01.org.example:b\"]\nallow_any_host = true\n",
        &["target.subsystem.1.allow_any_host = true", "excludes a host list"],
    ),
    (
        "dhchap_key_file = \"/keys/a\"",
        "dhchap_key_file = \"keys/a\"",
        &["target.host.0.dhchap_key_file = keys/a", "absolute"],
    ),
    (
        "dhchap_key_file = \"/keys/a\"",
        "dhchap_ctrl_key_file = \"/keys/a\"",
        &["target.host.0.dhchap_key_file = none"],
    ),
    (
        "dhchap_key_file = \"/keys/a\"",
        "dhchap_key_file = \"/keys/a\"\ndhchap_ctrl_key_file = \"c\"",
        &["target.host.0.dhchap_ctrl_key_file = c", "absolute"],
    ),
    // Identity.
    ("serial = \"S1\"", "serial = \"\"", &["target.subsystem.0.serial = \"\"", "1 to 20"]),
    ("serial = \"S1\"", "serial = \"123456789012345678901\"", &["1 to 20"]),
    ("serial = \"S1\"", "serial = \"Sä\"", &["printable ASCII"]),
    ("serial = \"S1\"", "serial = \" S\"", &["no blanks at its ends"]),
    (
        "serial = \"S1\"",
        "model = \"12345678901234567890123456789012345678901\"",
        &["target.subsystem.0.model", "1 to 40"],
    ),
    ("qid_max = 8", "qid_max = 0", &["target.subsystem.0.qid_max = 0", "1 to 128"]),
    ("qid_max = 8", "qid_max = 129", &["1 to 128"]),
    ("cntlid_min = 1", "cntlid_min = 0", &["target.subsystem.0.cntlid_min = 0", "1 to 65519"]),
    ("cntlid_max = 100", "cntlid_max = 65520", &["target.subsystem.0.cntlid_max = 65520"]),
    ("cntlid_min = 1", "cntlid_min = 101", &["cntlid_min = 101", "above cntlid_max"]),
    // Namespaces.
    (
        "nsid = 1\ndevice = \"pci",
        "nsid = 0\ndevice = \"pci",
        &["target.subsystem.0.namespace.0.nsid = 0", "1 to 1024"],
    ),
    ("nsid = 1\ndevice = \"pci", "nsid = 1025\ndevice = \"pci", &["1 to 1024"]),
    (
        "[[subsystem.namespace]]\nnsid = 1\ndevice = \"serial:B/1\"\n",
        "",
        &["target.subsystem.1.namespace = []", "needs a namespace"],
    ),
    (
        "device = \"serial:B/1\"\n",
        "device = \"serial:B/1\"\n[[subsystem.namespace]]\nnsid = 1\ndevice = \"serial:C\"\n",
        &["target.subsystem.1.namespace.1.nsid = 1", "has this number"],
    ),
    (
        "serial:B/1",
        "pci:0000:01:00.0/1",
        &[
            "target.subsystem.1.namespace.0.device",
            "target.subsystem.0.namespace.0 exports this device already",
        ],
    ),
    ("serial:B/1", "/dev/nvme0n1", &["kernel names change", "\"/dev/nvme0n1\""]),
    ("ana_group = 1", "ana_group = 0", &["ana_group = 0", "1 to 128"]),
    ("ana_group = 1", "ana_group = 129", &["1 to 128"]),
    ("ana_group = 1", "ana_group = 5", &["target.port.0.ana", "ANA group 5", "no state here"]),
    (
        "ana_group = 1",
        "uuid = \"00000000-0000-0000-0000-000000000000\"",
        &["namespace.0.uuid = 0", "all zero"],
    ),
    (
        "ana_group = 1",
        "nguid = \"00000000-0000-0000-0000-000000000000\"",
        &["namespace.0.nguid = 0"],
    ),
    // Offload without looking at any host.
    (
        "ana_group = 1",
        "ana_group = 1\n[[subsystem.namespace]]\nnsid = 9\ndevice = \"pci:0000:01:00.0/2\"",
        &["target.subsystem.0.namespace = [2]", "an offloaded subsystem has one namespace"],
    ),
    (
        "ana_group = 1",
        "ana_group = 1\n[[subsystem.namespace]]\nnsid = 9\ndevice = \"serial:C\"",
        &["an offloaded subsystem has one namespace"],
    ),
    (
        "subsystems = [\"nqn.2026-01.org.example:kv0\"]",
        "subsystems = [\"nqn.2026-01.org.example:kv0\", \"nqn.2026-01.org.example:kv1\"]",
        &["target.port.0.subsystems = [2]", "an offloaded port has one subsystem"],
    ),
    (
        "transport = \"rdma\"",
        "transport = \"tcp\"",
        &["target.port.0.transport = tcp", "only RDMA cards offload"],
    ),
    (
        "transport = \"tcp\"",
        "offload_queues = 1\ntransport = \"tcp\"",
        &["target.port.1.offload_queues = 1", "no subsystem of the port is offloaded"],
    ),
    (
        "transport = \"rdma\"",
        "offload_queues = 0\ntransport = \"rdma\"",
        &["target.port.0.offload_queues = 0"],
    ),
    // Ports.
    ("id = 1\ntransport", "id = 0\ntransport", &["target.port.0.id = 0", "1 to 65535"]),
    (
        "id = 2\ntransport",
        "id = 1\ntransport",
        &["target.port.1.id = 1", "another port has this number"],
    ),
    ("address = \"192.0.2.1\"\n", "", &["target.port.0.address = none", "\"rdma\" needs one"]),
    ("address = \"192.0.2.2\"\n", "", &["target.port.1.address = none", "\"tcp\" needs one"]),
    (
        "address = \"192.0.2.1\"",
        "address = \"192.0.2.1\"\nnic = \"mlx5_0\"",
        &["target.port.0.nic = mlx5_0", "another is written"],
    ),
    (
        "transport = \"tcp\"\naddress = \"192.0.2.2\"",
        "transport = \"loop\"\nnic = \"nearest\"",
        &["target.port.1.nic = nearest", "loop transport has no nic"],
    ),
    (
        "address = \"192.0.2.1\"",
        "address = \"0.0.0.0\"",
        &["target.port.0.address = 0.0.0.0", "all networks"],
    ),
    ("address = \"192.0.2.1\"", "address = \"::\"", &["all networks"]),
    ("address = \"192.0.2.1\"", "address = \"239.1.1.1\"", &["multicast"]),
    ("address = \"192.0.2.1\"", "address = \"fe80::1\"", &["link-local"]),
    ("service = 4420", "service = 0", &["target.port.0.service = 0"]),
    (
        "transport = \"tcp\"",
        "transport = \"loop\"",
        &["target.port.1.address = 192.0.2.2", "loop transport has no address"],
    ),
    (
        "transport = \"tcp\"\naddress = \"192.0.2.2\"",
        "transport = \"loop\"\nservice = 4420",
        &["target.port.1.service = 4420"],
    ),
    (
        "transport = \"tcp\"\naddress = \"192.0.2.2\"",
        "transport = \"loop\"\ninline_data_bytes = 4096",
        &["no data inline"],
    ),
    (
        "transport = \"tcp\"\naddress = \"192.0.2.2\"",
        "transport = \"rdma\"\naddress = \"192.0.2.1\"",
        &["target.port.1.address = rdma 192.0.2.1 4420", "another port listens there"],
    ),
    (
        "subsystems = [\"nqn.2026-01.org.example:kv1\"]",
        "subsystems = []",
        &["target.port.1.subsystems = []", "never opened"],
    ),
    (
        "subsystems = [\"nqn.2026-01.org.example:kv1\"]",
        "subsystems = [\"nqn.2026-01.org.example:kv0\"]",
        &["target.subsystem.1.nqn", "no port offers it"],
    ),
    (
        "subsystems = [\"nqn.2026-01.org.example:kv1\"]",
        "subsystems = [\"nqn.2026-01.org.example:kv1\", \"nqn.2026-01.org.example:kv9\"]",
        &["target.port.1.subsystems.1", "no [[target.subsystem]] has this name"],
    ),
    (
        "subsystems = [\"nqn.2026-01.org.example:kv1\"]",
        "subsystems = [\"nqn.2026-01.org.example:kv1\", \"nqn.2026-01.org.example:kv1\"]",
        &["target.port.1.subsystems.1", "has this name too"],
    ),
    (
        "[[port]]\nid = 1\n",
        "[[port]]\nid = 1\ninline_data_bytes = 16385\n",
        &["target.port.0.inline_data_bytes = 16385", "0 to 16384"],
    ),
    (
        "[[port]]\nid = 1\n",
        "[[port]]\nid = 1\nqueue_size_max = 8\n",
        &["target.port.0.queue_size_max = 8", "16 to 1024"],
    ),
    ("[[port]]\nid = 1\n", "[[port]]\nid = 1\nqueue_size_max = 2048\n", &["16 to 1024"]),
    ("{ group = 1, state", "{ group = 0, state", &["target.port.1.ana.0.group = 0", "1 to 128"]),
    (
        "{ group = 1, state = \"optimized\" }",
        "{ group = 1, state = \"optimized\" }, { group = 1, state = \"change\" }",
        &["target.port.1.ana.1.group = 1", "listed twice"],
    ),
];

/// Not even a specification: the parser's errors.
pub(super) const TEXTS: &[Edit] = &[
    ("transport = \"tcp\"", "transport = \"fc\"", &["unknown variant `fc`", "`rdma`"]),
    ("offload = \"preferred\"", "offload = \"yes\"", &["unknown variant `yes`", "`required`"]),
    ("address = \"192.0.2.1\"", "address = \"mlx5_0\"", &["invalid IP address"]),
    ("address = \"192.0.2.1\"", "address = \"192.0.2.1:4420\"", &["invalid IP address"]),
    ("service = 4420", "service = 70000", &["invalid value: integer `70000`"]),
    ("state = \"optimized\"", "state = \"good\"", &["unknown variant `good`", "`non-optimized`"]),
    ("device = \"serial:B/1\"", "device = \"pci:1\"", &["no PCIe address"]),
    ("device = \"serial:B/1\"", "device = \"serial:\"", &["no serial number"]),
    ("device = \"serial:B/1\"", "device = \"\"", &["nothing is named"]),
    ("device = \"serial:B/1\"\n", "", &["missing field `device`"]),
    (
        "dhchap_key_file = \"/keys/a\"",
        "dhchap_key = \"secret\"",
        &["unknown field `dhchap_key`", "dhchap_key_file"],
    ),
    (
        "dhchap_key_file = \"/keys/a\"",
        "dhchap_key_file = \"/keys/a\"\ndhchap_hash = \"md5\"",
        &["unknown variant `md5`"],
    ),
    (
        "dhchap_key_file = \"/keys/a\"",
        "dhchap_key_file = \"/keys/a\"\ndhchap_dhgroup = \"ffdhe1024\"",
        &["unknown variant `ffdhe1024`"],
    ),
    ("ana_group = 1", "uuid = \"1\"", &["UUID"]),
    ("ana_group = 1", "p2pmem = \"on\"", &["unknown variant `on`"]),
    ("ana_group = 1", "content = \"mine\"", &["unknown variant `mine`"]),
    ("ana_group = 1", "enable = true", &["unknown field `enable`"]),
];
