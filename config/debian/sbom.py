"""The software bill of materials of a release (CycloneDX 1.6, JSON) on standard output.

Every crate that the lock file names and the binary or the libraries are built from, with its
version, licence, address and checksum.
"""

import json
import os
import subprocess
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

SHIPPED = ("kvrail", "kvrail-c", "kvrail-python")


def metadata() -> dict:
    """Cargo's metadata of this machine's build."""
    triple = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    host = next(line[6:] for line in triple.splitlines() if line.startswith("host: "))
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", host]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def built(graph: dict) -> set[str]:
    """Identifiers of the packages in the shipped ones, without those of tests."""
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    names = {package["id"]: package["name"] for package in graph["packages"]}
    members = graph["workspace_members"]
    waiting = [member for member in members if names[member] in SHIPPED]
    seen: set[str] = set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for dependency in nodes[one]["deps"]:
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return seen


def component(package: dict, checksums: dict[tuple[str, str], str]) -> Component:
    """One crate."""
    name, version = package["name"], package["version"]
    checksum = checksums.get((name, version))
    licence = (package["license"] or "").replace("/", " OR ")
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=f"{name}@{version}",
        purl=PackageURL("cargo", None, name, version),
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=checksum)] if checksum else [],
    )


def main() -> None:
    """Prints it."""
    graph = metadata()
    locked = tomllib.loads(Path("Cargo.lock").read_text())["package"]
    checksums = {(it["name"], it["version"]): it["checksum"] for it in locked if "checksum" in it}
    ids = built(graph)
    packages = {package["id"]: package for package in graph["packages"] if package["id"] in ids}
    parts = {key: component(package, checksums) for key, package in packages.items()}
    whole = next(part for part in parts.values() if part.name == "kvrail")
    when = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    # The same release has the same number.
    number = uuid.uuid5(uuid.NAMESPACE_URL, f"kvrail {whole.version} {when}")
    # The whole is no part of itself; a duplicate name would be replaced by a random one.
    others = [part for part in parts.values() if part is not whole]
    bom = Bom(serial_number=number, components=others)
    bom.metadata.timestamp = datetime.fromtimestamp(when, UTC)
    bom.metadata.component = whole
    for node in graph["resolve"]["nodes"]:
        if node["id"] in ids:
            below = [parts[it] for it in node["dependencies"] if it in ids]
            bom.register_dependency(parts[node["id"]], below)
    print(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1))


main()
