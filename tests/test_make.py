"""What the Makefile passes on."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

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


def test_an_image_has_nothing_that_git_ignores():
    ignored, left_out = ((ROOT / name).read_text().split("\n") for name in (".gitignore", ".containerignore"))
    assert {line.strip("/") for line in ignored} <= {line.removeprefix("**/") for line in left_out}


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
