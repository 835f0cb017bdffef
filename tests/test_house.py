"""What holds the house together: pins, set-up, the rule of imports, notebooks without outputs, no machine in the files."""

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
import yaml

import drsrobust

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
needs_git = pytest.mark.skipif(tracked.returncode != 0, reason="not a git checkout")


def pins(name):
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    lines = [line.split("#")[0].strip() for line in lines]
    return dict(line.split("==") for line in lines if "==" in line), [
        line for line in lines if line and "==" not in line
    ]


def test_every_version_is_pinned_and_no_place_is_named():
    versions, others = pins("cpu.txt")
    assert others == ["-e .", "./requirements/fbgemm-gpu-cpu-shim"]
    assert versions["torch"] == "2.13.0" and versions["torchrec"] == "1.8.0" and versions["fbgemm-gpu-cpu"] == "1.8.0"
    text = (ROOT / "requirements" / "cpu.txt").read_text()
    assert not re.search(r"nvidia-|\+cpu|file:|https?:|--(extra-)?index|--find-links", text)
    gpu, others = pins("gpu.txt")
    assert others == ["-e ."]
    assert gpu["torch"] == "2.13.0" and gpu["fbgemm-gpu"] == "1.8.0" and "fbgemm-gpu-cpu" not in gpu
    same = set(versions) & set(gpu)
    assert len(same) > 80 and all(versions[name] == gpu[name] for name in same)
    assert not re.search(
        r"file:|https?:|--(extra-)?index|--find-links", (ROOT / "requirements" / "gpu.txt").read_text()
    )


def test_the_needs_of_pytorchs_cuda_build_are_those_of_the_gpu_lock():
    versions, _ = pins("cpu.txt")
    gpu, _ = pins("gpu.txt")
    assert pins("cuda.txt") == ({name: gpu[name] for name in gpu if name not in versions and name != "fbgemm-gpu"}, [])
    blocks = (ROOT / "requirements" / "cuda.hashes.txt").read_text()
    assert all(
        block in (ROOT / "requirements" / "gpu.hashes.txt").read_text() for block in re.split(r"\n(?=\w)", blocks)
    )


@pytest.mark.parametrize("name", ["cpu", "gpu", "cuda", "docs", "browser", "article", "pip"])
def test_hashes_are_of_the_locked_versions(name):
    """Of all packages but PyTorch, whose CPU build differs from index to index, and of the project itself."""
    blocks = (ROOT / "requirements" / f"{name}.hashes.txt").read_text().replace("\\\n", "").splitlines()
    hashed = {}
    for block in blocks:
        pin, *hashes = block.split()
        assert hashes and all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", text) for text in hashes), pin
        package, hashed_version = pin.split("==")
        hashed[package] = hashed_version
    versions = {package.lower(): pinned for package, pinned in pins(f"{name}.txt")[0].items() if package != "torch"}
    assert hashed == versions and len(hashed) == len(blocks)


def test_set_up_checks_hashes():
    """By what make would do; each file that starts elsewhere does the same."""
    command = ["make", "-n", "-W", "requirements/cpu.txt", "setup"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installer, first, second = (line for line in said.splitlines() if " install " in line)
    assert installer.endswith("--no-deps --require-hashes -r requirements/pip.hashes.txt")
    assert first.endswith("--no-deps --require-hashes -r requirements/cpu.hashes.txt")
    assert second.endswith("--no-require-hashes -c requirements/cuda.hashes.txt -r requirements/cpu.txt && wait")
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["dependencies"] == ["python=3.11", "pip", "make", {"pip": ["-r requirements/cpu.txt"]}]
    for name in ("Containerfile", ".binder/Dockerfile"):
        text = (ROOT / name).read_text()
        assert re.search(r"^FROM [\w.:-]+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    for workflow in (ROOT / ".github" / "workflows").iterdir():
        actions = re.findall(r"uses: (\S+)", workflow.read_text())
        assert len(actions) == 2 and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in actions)


def test_what_the_project_needs_is_in_the_lock():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", need)[0].lower() for need in project["dependencies"]]
    extras = {extra: needs for extra, needs in project["optional-dependencies"].items() if extra != "benchmark"}
    browser, _ = pins("browser.txt")
    assert {re.match(r"[\w-]+", need)[0] for need in extras.pop("browser")} <= set(browser)
    names += [re.match(r"[\w-]+", need)[0].lower() for needs in extras.values() for need in needs]
    versions, _ = pins("cpu.txt")
    assert set(names) <= set(versions)
    required = names[: len(project["dependencies"])]
    assert not {"torchrec", "fbgemm-gpu"} & set(required)  # they would bring the CUDA build


def test_version_stands_in_one_place():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == drsrobust.__version__
    study, preprint, tool = citation["references"]
    assert study["doi"] == "10.1109/ISSRE66568.2025.00016" and tool["license"] == "MIT"
    assert preprint["identifiers"][0]["value"] == "arXiv:2307.10244"
    assert f'version = "{drsrobust.__version__}"' not in (ROOT / "pyproject.toml").read_text()


def test_make_prints_a_line_per_target():
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    done = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert targets == phony == set(re.findall(r"^  make ([a-z-]+)  +\S", done, re.MULTILINE))


def test_imports_go_one_way():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_library_does_not_know_its_study():
    """Neither as a name of its typed stubs, which import-linter does not read, nor by the study's words."""
    for path in sorted((ROOT / "src" / "drsrobust").rglob("*.py*")):
        name, text = path.relative_to(ROOT / "src" / "drsrobust").as_posix(), path.read_text(errors="replace")
        if path.suffix == ".pyi":
            assert not re.search(r"\bstudy\b|check_parameters", text), name
        if path.suffix == ".py":
            assert "drsrobust_study" not in text, name
            assert "published script" not in text, name
            assert "as_released" not in text or name.startswith("models/"), name  # a group of tensors, and a lookup
            words = re.findall(r"(?<![\w\"])protocol(?![\w\"`])", text)
            assert not words, name  # but as the column of tables


def test_style():
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


ONE_RUN = r"\b(hundreds|thousands|millions) of|[Ff]irst (two|three|four|five) models|now and then"
ONE_RUN += r"|last figure shows both|[0-9],000 (hosts|faults)|million days"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_hygiene(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) <= {"kernelspec", "language_info", "drsrobust"}
    assert [cell.id for cell in notebook.cells] == [str(i) for i in range(len(notebook.cells))]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) <= 14
    for cell in code:
        assert not cell.outputs and cell.execution_count is None
        assert len(cell.source.splitlines()) <= 15 and max(map(len, cell.source.splitlines())) <= 100
        own = "" if path.stem == "10_your_model" else "|def |class "
        assert not re.search(rf"^\s*([%!]{own})|sys\.exit|[\"' ]/\w+/|\.\./", cell.source, re.MULTILINE)
    assert "parameters" in code[0].metadata.tags
    assert ("check_parameters(globals())" in code[1].source) == ("drsrobust_study" in code[1].source)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert not re.search(ONE_RUN, prose), (
        "true for one run alone: a number from a variable in code, or a sentence for all values"
    )


def test_notebooks_do_not_shadow_modules():
    assert not list((ROOT / "notebooks").glob("*.py"))
    names = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert all(re.match(r"\d\d_", name) for name in names - {"index.ipynb"})


BASES = {"Mitigation", "Composed", "ABFT"}  # of protections


def protections():
    for package in (drsrobust.mitigation, import_module("drsrobust_extras.protection")):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = import_module(found.name)
            own = {
                name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == found.name
            }
            classes = {
                name: value for name, value in own.items() if inspect.isclass(value) and not inspect.isabstract(value)
            }
            of_kind = {name for name, value in classes.items() if issubclass(value, drsrobust.mitigation.Mitigation)}
            yield from (name for name in of_kind - BASES if name[0] != "_")


def metrics():
    """Functions that give a number, with an example; helpers have none."""
    for path in (ROOT / "src" / "drsrobust" / "metrics").glob("*.py"):
        functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        numbers = [node for node in functions if node.returns and ast.unparse(node.returns) == "float"]
        yield from (node.name for node in numbers if ">>>" in (ast.get_docstring(node) or ""))


def readers():
    """Of data sets: a format, a function, or the generated set itself."""
    for name, source in drsrobust.data.SOURCES.items():
        yield getattr(source.read, "__name__", source.read) or name


# Kind -> its names, and the files (or folders, of which one will do) that must hold each.
REGISTERED = {
    "protection": (protections, ["src/drsrobust/_names.py", "docs/protection.md", "tests"]),
    "metric": (metrics, ["src/drsrobust/_names.py", "tests/metrics"]),
    "data set": (lambda: drsrobust.data.SOURCES, ["docs/data.md"]),
    "reader of data sets": (readers, ["tests/extras/data"]),
    "notebook": (
        lambda: [path.stem for path in NOTEBOOKS],
        [*(f"reproduce/profiles/{name}.toml" for name in ("smoke", "laptop", "paper"))]
        + ["docs/reproduce.md", "reproduce/defaults.csv", "tests/reproduce/test_reproduce.py"],
    ),
}


def lacking(name, places):
    for place in places:
        paths = [ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("test_*.py")
        if not any(re.search(rf"\b{re.escape(name)}\b", path.read_text()) for path in paths):
            yield f"{name}: add it to {place}"


@pytest.mark.parametrize("kind", REGISTERED)
def test_what_is_there_is_registered_and_tested(kind):
    """By CONTRIBUTING's rows; the message names the file to touch."""
    names, places = REGISTERED[kind]
    found = sorted(set(names()))
    assert found and [line for name in found for line in lacking(name, places)] == []
    nothing = "no" + "such_name"
    assert list(lacking(nothing, places)) == [f"{nothing}: add it to {place}" for place in places]


@needs_git
def test_no_file_names_a_machine():
    places = [re.escape(str(ROOT)), re.escape(str(Path.home())) + r"\b", r"file:/", r"\b(pypi|pythonhosted)\.\w"]
    place = re.compile("|".join(places))
    for name in filter(None, tracked.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in {".png", ".svg"} or path == Path(__file__) or not path.is_file():
            continue
        found = place.search(path.read_text(errors="replace"))
        assert not found, f"{name}: {found[0]}"


@needs_git
def test_real_data_is_not_in_the_repository():
    names = tracked.stdout.split("\0")
    assert not [name for name in names if name.endswith((".dat", ".gz", ".txt.gz", ".parquet", ".npy", ".safetensors"))]


UNCLEAR = "surely|told|tells|anew|lest|stands|beside|besides|reckon|reckoned|wanted|judge|judges|hollow|whoever"


EXPERIMENT = r"\bE[1-9]\b(?!\[)"  # numbers of experiments in a plan that readers do not have; E[x] is a mean


def test_prose_is_plain_english():
    """Words that a reader may not know, or that say nothing, are in no module, page or notebook."""
    paths = [
        path
        for folder in ("src", "benchmarks", "reproduce", "notebooks", "docs")
        for path in (ROOT / folder).rglob("*")
    ]
    found = []
    for path in [*paths, ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]:
        if path.suffix in (".py", ".md", ".ipynb", ".toml", ".j2", "") and path.is_file():
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.search(rf"\b(?:{UNCLEAR})\b", line, re.IGNORECASE) or re.search(EXPERIMENT, line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:90]}")
    assert found == []


@needs_git
def test_files_that_pages_name_exist():
    """Of this repository, by a path from its root or from src, or as `evaluation/evaluator.py`, from src/drsrobust."""
    files = set(tracked.stdout.split("\0"))
    folders = {path.split("/")[0] for path in files if "/" in path} | {
        "drsrobust",
        "drsrobust_extras",
        "drsrobust_study",
    }
    folders |= {path.split("/")[2] for path in files if path.startswith("src/drsrobust/") and path.count("/") > 2}
    named = {
        (page, path)
        for page in files
        if page.endswith(".md") and page.split("/")[0] not in ("CHANGELOG.md", "figures", "paper")
        for path in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|toml|md|ipynb))`", (ROOT / page).read_text())
        if path.split("/")[0] in folders and "NN_" not in path
    }
    missing = {(page, path) for page, path in named if not {path, f"src/{path}", f"src/drsrobust/{path}"} & files}
    assert len(named) > 20 and not missing


def test_test_files_have_names_of_their_own():
    """Where a folder is no package, pytest imports its files by their names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert sorted(names) == sorted(set(names))
