"""What the Makefile passes on."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def make(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "DRSROBUST_DATA"} | variables
    done = subprocess.run(["make", "-s", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("data", "meant"),
    [
        ("/my data/sets", "/my data/sets"),
        ("~/two  spaces", "/home/a b/two  spaces"),
        ("~", "/home/a b"),
        ("my sets", f"{ROOT}/my sets"),
        ("/plain/../sets", "/sets"),
    ],
)
def test_a_folder_of_data_may_have_spaces_in_its_name(data, meant):
    assert make("--eval=show: ; @printenv DRSROBUST_DATA", "show", f"DATA={data}", HOME="/home/a b") == f"{meant}\n"


def installs(text):
    """The arguments of each call of pip that installs, without those that only say less or keep less."""
    quiet = {"-qq", "--disable-pip-version-check", "--no-compile", "--no-cache-dir"}
    calls = re.findall(r"python -m pip install (.*?)(?: \\| &&|$)", text, re.MULTILINE)
    return [[word for word in call.split() if word not in quiet] for call in calls]


def set_up():
    return installs(make("-n", "-W", "requirements/cpu.txt", "setup"))


@pytest.mark.parametrize("name", ["Containerfile", ".binder/Dockerfile"])
def test_an_image_is_installed_as_make_does(name):
    text = (ROOT / name).read_text()
    assert installs(text) == set_up() and "pip check && " in text


def conda():
    return yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][-1]["pip"][0].split()


@pytest.mark.long
def test_set_up_on_the_public_index_alone_has_all_that_pytorch_needs(tmp_path):
    """By what pip would install of an index that gives PyTorch's CUDA build, where the packages with hashes are installed."""
    bare = {name: value for name, value in os.environ.items() if not re.fullmatch("PIP_(FIND|EXTRA|INDEX).*", name)}
    bare |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    pip = [sys.executable, "-m", "pip"]
    probe = [*pip, "index", "versions", "torch", "--retries=0", "--timeout=10"]
    if subprocess.run(probe, env=bare, capture_output=True).returncode:
        pytest.skip("no package index answers")
    venv.create(tmp_path / "env", symlinks=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    hashed = [
        distribution(name) for name in re.findall("(?m)^(.*?)==", (ROOT / "requirements/cpu.hashes.txt").read_text())
    ]
    for path in (each._path for each in hashed):
        (packages / path.name).symlink_to(path)
    # fast-deps: an index without metadata files would send whole wheels.
    pip += [f"--python={tmp_path / 'env'}", "install", "-q", "--dry-run", "--use-feature=fast-deps"]
    calls = {"make": set_up()[-1], "conda": conda()}
    running = [
        subprocess.Popen(
            [*pip, f"--report={tmp_path / name}", *call], cwd=ROOT, env=bare, stderr=subprocess.PIPE, text=True
        )
        for name, call in calls.items()
    ]
    for process, name in zip(running, calls, strict=True):
        said = process.communicate()[1]
        assert process.returncode == 0, said
        found = [one["metadata"] for one in json.loads((tmp_path / name).read_text())["install"]]
        versions = {canonicalize_name(one["name"]): one["version"] for one in found}
        needs = {canonicalize_name(one["name"]): one.get("requires_dist", []) for one in found}
        assert {"torch", "drsrobust", "fbgemm-gpu"} <= set(versions)
        for installed in hashed:
            versions[canonicalize_name(installed.name)] = installed.version
            needs[canonicalize_name(installed.name)] = installed.requires or []
        assert list(unmet(versions, needs)) == [], name


def unmet(versions, needs):
    """What distributions require, with the extras that others ask of them, and no version of them meets."""
    waiting, seen = [(name, "") for name in needs], set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for requirement in map(Requirement, needs[name]):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                wanted = canonicalize_name(requirement.name)
                if wanted not in versions or not requirement.specifier.contains(versions[wanted], prereleases=True):
                    yield f"{name} requires {requirement}"
                else:
                    waiting += [(wanted, each) for each in requirement.extras]


def test_without_a_folder_the_variable_of_the_environment_stays():
    assert make("--eval=show: ; @printenv DRSROBUST_DATA", "show", DRSROBUST_DATA="as it is") == "as it is\n"


@pytest.mark.parametrize("target", ["data", "reproduce", "publish"])
def test_python_is_called_with_names_as_they_are(target, tmp_path):
    """Spaces in PROFILE do not make two words of it."""
    stamp, python = tmp_path / "installed", tmp_path / "python"
    stamp.touch()
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"; printf "%s" "$DRSROBUST_DATA"\n')
    python.chmod(0o755)
    said = make(f"BIN={tmp_path}", f"STAMP={stamp}", "-o", str(stamp), target, "PROFILE=a b", "DATA=/x y")
    assert said.endswith("|/x y") and (target == "data" or "|--profile|a b|" in said)
