"""A notebook in a real JupyterLab: a person opens the index, follows a link, and runs all cells."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = "00_quickstart"
STARTED = re.compile(r"http://(?:127\.0\.0\.1|localhost):\d+")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the notebooks: Lab saves what it ran."""
    made = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", made / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    (made / "pyproject.toml").touch()  # figures go below the folder that holds one
    return made


@pytest.fixture(scope="module")
def lab(folder):
    """The address of a running JupyterLab, as `make lab` starts it, but without a window and without asking for a token."""
    variables = {"DRSROBUST_CACHE": str(ROOT / "build" / "cache"), "JUPYTER_PREFER_ENV_PATH": "1"}
    variables |= {name: str(folder / "jupyter" / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--ip=127.0.0.1", "--port-retries=50"]
    command += ["--IdentityProvider.token=", "--notebook-dir=notebooks", "--LabApp.news_url=None"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    command += ["--allow-root"] if os.geteuid() == 0 else []
    with open(folder / "lab.log", "w") as log:
        server = subprocess.Popen(command, cwd=folder, env=os.environ | variables, stdout=log, stderr=log)
        try:
            yield _address(server, folder / "lab.log")
        finally:
            server.terminate()
            server.wait(30)


def _address(server, log):
    for _ in range(120):
        if found := STARTED.search(log.read_text()):
            try:
                with urlopen(f"{found[0]}/api", timeout=5):
                    return found[0]
            except OSError:
                pass
        assert server.poll() is None, log.read_text()[-2000:]
        time.sleep(0.5)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def page(browser, lab):
    """Lab, opened on the index; then the quick start, by its link there."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{lab}/lab/tree/index.ipynb")
    page.get_by_role("heading", name="The notebooks").wait_for()
    yield page
    context.close()


def run_all(page, path):
    """Runs all cells of the notebook that is open, and waits for their end."""
    title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].removeprefix("# ")
    page.get_by_role("heading", name=title).wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    deadline = time.monotonic() + 280
    while True:
        page.wait_for_timeout(2000)
        page.keyboard.press("Control+s")
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        errors = [output for cell in cells for output in cell.outputs if output.output_type == "error"]
        assert not errors, errors[0].evalue
        if all(cell.execution_count for cell in cells) and cells[-1].outputs:
            break
        assert time.monotonic() < deadline, "the cells did not end within 280 seconds"
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


def test_the_index_opens_the_quick_start_and_all_its_cells_run(page, folder):
    page.get_by_role("link", name=NAME).first.click()
    run_all(page, folder / "notebooks" / f"{NAME}.ipynb")


def test_its_figure_is_seen(page, folder):
    figure = page.locator(".jp-OutputArea-output img")
    figure.first.scroll_into_view_if_needed()
    box = figure.first.bounding_box()
    assert figure.count() == 1 and box["width"] > 300 and box["height"] > 150
    assert (folder / "build" / "lab" / "figures" / f"{NAME}.svg").is_file()


def test_there_is_no_wall_of_warnings(folder):
    """What goes to the error stream is progress bars, a line each."""
    cells = nbformat.read(folder / "notebooks" / f"{NAME}.ipynb", as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    printed = [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    lines = [line for text in printed for line in re.split(r"[\r\n]+", text) if line.strip()]
    assert all(re.search(r"\d%\|", line) for line in lines), lines
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_the_slider_of_one_flip_moves_the_mark(browser, lab, folder):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{lab}/lab/tree/11_one_flip.ipynb")
    run_all(page, folder / "notebooks" / "11_one_flip.ipynb")
    handle = page.get_by_role("slider")
    handle.scroll_into_view_if_needed()
    marked = page.locator(".widget-output img, .jupyter-widgets-output-area img").first
    marked.wait_for()
    before = marked.get_attribute("src")
    handle.focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(
        "before => document.querySelector('.jupyter-widgets-output-area img')?.src !== before", arg=before
    )
    page.wait_for_timeout(1000)
    assert page.locator(".widget-readout").first.inner_text() == "29"
    context.close()
