"""A real Chromium. These tests are run by `make browser-test`, not by `make test`."""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    found = os.environ.get("DRSROBUST_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.fail("there is no Chromium on PATH; on Debian and Ubuntu: apt-get install chromium")
    # Chromium refuses its sandbox to root, which is what one is in most containers.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="session")
def report():
    folder = ROOT / os.environ.get("DRSROBUST_REPORT", "build/smoke/report")
    if not (folder / "index.html").is_file():
        pytest.fail(f"there is no report in {folder}: make reproduce PROFILE={folder.parent.name}")
    return folder
