"""The README's Python runs as written; its commands and files exist."""

import re
from pathlib import Path

import matplotlib as mpl

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_python_runs(capsys, monkeypatch, tmp_path, fewer_rows):
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})  # each stands by itself
    plt.close("all")


def test_it_says_what_its_code_prints(capsys):
    code, shown = re.search(r"```python\n(.*?)```\s*```text\n(.*?)```", README, re.DOTALL).groups()
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown
    assert len([line for line in code.splitlines() if line and not line.startswith("import")]) == 6


def test_what_it_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for notebook in re.findall(r"`(\d\d_\w+)`", README):
        assert (ROOT / "notebooks" / f"{notebook}.ipynb").is_file()
    for name in re.findall(r"`((?:injection|evaluation|campaign|reproduce)/\w+\.py|metrics/)`", README):
        assert (ROOT / "src" / "drsrobust" / name).exists() or (ROOT / name).is_file(), name
    for profile in re.findall(r"PROFILE=(\w+)", README):
        assert (ROOT / "reproduce" / "profiles" / f"{profile}.toml").is_file()
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", README):
        assert (ROOT / link).exists(), link


def test_pages_name_what_exists():
    """Every `dr.<name>` of the README and the pages; every error model with the arguments that its table shows."""
    import inspect

    import drsrobust as dr

    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for dotted in set(re.findall(r"\bdr\.([A-Za-z_]+(?:\.[a-z_]+)?)", page.read_text())):
            value = dr
            for name in dotted.split("."):
                value = getattr(value, name)
    models = (ROOT / "docs" / "injection.md").read_text().split("## Error models")[1].split("##")[0]
    shown = dict(re.findall(r"^\| `(\w+)\(([^`]*)\)`", models, re.MULTILINE))
    assert {"BitFlip", "RowError", "MemoryFault"} < set(shown)
    for name, arguments in shown.items():
        assert [a.split("=")[0] for a in arguments.split(", ")] == list(inspect.signature(getattr(dr, name)).parameters)
    derived = set(_public_subclasses(dr.injection.ErrorModel))
    assert derived - {"Sum"} == set(shown) <= set(dr.__all__)
    protections = (ROOT / "docs" / "protection.md").read_text()
    for name in {name for name in dr.__all__ if isinstance(getattr(dr, name), type)}:
        if issubclass(getattr(dr, name), dr.mitigation.Mitigation):
            assert f"`{name}" in protections, name
    bases = {"ABFT", "Composed", "StorageProtection"}
    assert set(_public_subclasses(dr.mitigation.Mitigation)) - bases <= set(dr.__all__)


def _public_subclasses(cls):
    for derived in cls.__subclasses__():
        if derived.__module__.split(".")[0] in ("drsrobust", "drsrobust_extras"):
            if not derived.__name__.startswith("_"):
                yield derived.__name__
            yield from _public_subclasses(derived)


def test_every_model_and_data_set_has_its_line():
    from drsrobust.models import MODELS
    from drsrobust_extras.data.registry import SOURCES

    lists = (ROOT / "docs" / "models.md").read_text()
    page = (ROOT / "docs" / "data.md").read_text()
    for name in MODELS:
        assert re.search(rf"^\| `{name}` \|", lists, re.MULTILINE), name
    for name, source in SOURCES.items():
        assert f"`{name}`" in lists, name
        line = re.search(rf"^\| `{name}` \|.*", page, re.MULTILINE)
        assert line and all(f"`{schema}`" in line[0] for schema in source.schemas), name
