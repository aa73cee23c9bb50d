"""The chart as these tests use it: rendered with values by helm."""

import os
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "config/helm/kvrail"


def helm(*arguments, values, folder):
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    command = [os.environ["HELM"], *arguments, str(CHART), "--values", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def template(values, folder, version="1.30"):
    arguments = ["template", "cache", "--kube-version", version, "--namespace", "kv"]
    return helm(*arguments, values=values, folder=folder)


def render(values, folder, version="1.30"):
    done = template(values, folder, version)
    assert done.returncode == 0, done.stderr
    # The C loader where there is one: a fleet of a thousand nodes is long.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(done.stdout, loader) if document]


def all_of_kind(kind, documents):
    return [document for document in documents if document["kind"] == kind]


def of_kind(kind, documents):
    return all_of_kind(kind, documents)[0]


def pod_of(documents):
    return of_kind("DaemonSet", documents)["spec"]["template"]["spec"]
