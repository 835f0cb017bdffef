"""Profiles: which notebooks run, with which parameters, on which data."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drsrobust._choices import unknown
from reproduce.notebooks import Notebook
from reproduce.runner import ALONE

FOLDER = Path(__file__).resolve().parent / "profiles"
JUDGED = ("laptop", "paper")  # whose claims get verdicts and whose times are read; `smoke` is too small


@dataclass(frozen=True)
class Profile:
    """A profile as it will run: notebook name -> its parameters, data sets filled in."""

    name: str
    parameters: dict[str, dict[str, Any]]
    real: bool
    datasets: tuple[str, ...]
    real_datasets: tuple[str, ...]  # of all roles, present or missing

    @property
    def alone(self) -> tuple[str, ...]:
        """Notebooks during which no other may run, since they measure times."""
        return ALONE if self.name in JUDGED else ()


def check_name(name: str) -> None:
    """Refuses what is no profile's name: results go to a folder of that name.

    Raises:
        ValueError: an unknown profile.
    """
    known = sorted(file.stem for file in FOLDER.glob("*.toml"))
    if name not in known:
        raise unknown("profile", name, known)


def load_profile(name: str, notebooks: dict[str, Notebook], data: Path | None, *, check: bool = True) -> Profile:
    """Reads `profiles/<name>.toml`: a table `[datasets]` (role -> the real and the synthetic data set that plays it), a table
    `[all]` with parameters of all notebooks that have them, and a table per notebook with others that are not the notebook's
    own; `dataset` (or each of `datasets`), where the notebook has it, names a role.

    Args:
        name: of the profile.
        notebooks: the existing ones.
        data: the folder with real data sets; None: the synthetic ones are used, and every caption says so.
        check: whether the data must be there.

    Raises:
        ValueError: an unknown profile, notebook or role, a parameter that is unknown or out of range.
        TypeError: a parameter of another type.
        FileNotFoundError: `data` does not hold a data set that the profile names.
    """
    check_name(name)
    tables = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    roles, every = tables.pop("datasets"), tables.pop("all", {})
    kind = "synthetic" if data is None else "real"
    if data is not None and check and (missing := missing_data([role["real"] for role in roles.values()], data)):
        raise FileNotFoundError("; ".join(missing))
    chosen = {}
    for notebook, values in tables.items():
        if notebook not in notebooks:
            raise unknown(f"notebook in profile {name}", notebook, notebooks)
        values = {key: value for key, value in every.items() if key in notebooks[notebook].parameters} | values
        for key in ("dataset", "datasets"):
            if key not in notebooks[notebook].parameters:
                continue
            given = values.get(key)
            named = given if isinstance(given, list) else [given]
            for role in named:
                if role not in roles:
                    raise unknown(f"data set role in profile {name}, {notebook}", role, roles)
            played = list(dict.fromkeys(roles[role][kind] for role in named))  # one may play two roles
            values = values | {key: played if isinstance(given, list) else played[0]}
        notebooks[notebook].check(values)
        chosen[notebook] = {key: one.default for key, one in notebooks[notebook].parameters.items()} | values
    played, real = (tuple(dict.fromkeys(role[which] for role in roles.values())) for which in (kind, "real"))
    return Profile(name, chosen, data is not None, played, real)


def missing_data(names: Iterable[str], data: Path | None) -> list[str]:
    """What a folder (None: `$DRSROBUST_DATA`, if any) lacks of these data sets: of each which file, where it comes from and
    where to put it. Nothing is silently substituted: data that was asked for is there, or the run does not start."""
    from drsrobust_extras.data.registry import find_files

    missing = []
    for name in dict.fromkeys(names):
        try:
            find_files(name, data)
        except FileNotFoundError as error:
            missing.append(str(error))
    return list(dict.fromkeys(missing))  # one file may be of several data sets
