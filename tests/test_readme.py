"""The README's Python runs as written; its commands and files exist."""

import re
from pathlib import Path

import matplotlib as mpl

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_python_runs(capsys, monkeypatch):
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})  # each stands by itself
    plt.close("all")
    assert re.search(r"<ErrorMap BitFlip, seed 7: \d+ bits", capsys.readouterr().out)


def test_what_it_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for notebook in re.findall(r"`(\d\d_\w+)`", README):
        assert (ROOT / "notebooks" / f"{notebook}.ipynb").is_file()
    for name in re.findall(r"`((?:injection|campaign|reproduce)/\w+\.py|metrics\.py)`", README):
        assert (ROOT / "src" / "drsrobust" / name).is_file() or (ROOT / name).is_file(), name
    for profile in re.findall(r"PROFILE=(\w+)", README):
        assert (ROOT / "reproduce" / "profiles" / f"{profile}.toml").is_file()
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", README):
        assert (ROOT / link).is_file(), link
