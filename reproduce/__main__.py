"""Command line of the batch run."""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import drsrobust
from drsrobust._choices import unknown
from drsrobust._files import cache_folder, new_file
from drsrobust._processes import cores
from drsrobust._provenance import commit, machine, versions
from drsrobust_study.notebook import datasets_of
from reproduce.bundle import bundles_used, figure_sums, read_checkpoints, write_bundle
from reproduce.notebooks import ROOT, Notebook, all_notebooks, progress_file
from reproduce.plan import matching, print_plan, read_records, remember
from reproduce.portable import make_portable
from reproduce.profiles import JUDGED, Profile, check_name, load_profile, missing_data
from reproduce.progress import Progress
from reproduce.runner import end_with_make, explained, locked, read_run, run_notebooks, total_seconds
from reproduce.statements import load_rules, load_statements, rules_digest, write_statements
from reproduce.sweep import Sweep, print_sweep_plan, read_assignments, read_grid, read_values, run_sweep
from reproduce.sweep_result import FORM, Result, read_result


def main(arguments: list[str] | None = None) -> int:
    """Runs what was asked for.

    Returns:
        exit status: 0 when all of it was done, 1 when a notebook failed, the statements could not be judged or a compared run
        disagrees, 2 for a wrong call and while another run writes to the same folder, 130 when interrupted.
    """
    options = _parser().parse_intermixed_args(arguments)
    try:
        return _main(options)
    except KeyboardInterrupt:
        print("\nreproduce: stopped; the same command continues", file=sys.stderr)
        return 130


def _main(options: argparse.Namespace) -> int:
    notebooks = all_notebooks()
    try:
        if options.list:
            _list(notebooks)
            return 0
        if options.times:
            from reproduce.notebook_index import time_notebooks

            for name in options.what:
                if name not in notebooks:
                    raise unknown("notebook", name, notebooks)
            return time_notebooks(options.what, notebooks, Path(options.out).resolve())
        check_name(options.profile)
        load_rules(), load_statements()  # a mistake there stops a run before it starts
        build = Path(options.out).resolve()
        if options.publish:
            from reproduce.publish import publish

            with locked(build / options.profile):
                print("\n".join(f"figures/{name}" for name in publish(options.profile, build, cached=options.cached)))
            return 0
        if options.bundle:
            print(write_bundle(build / options.profile))
            return 0
        if options.compare:
            from reproduce.agreement import compared_with_published

            text, agrees = compared_with_published(build / options.profile)
            print(text)
            return 0 if agrees else 1
        if options.report:
            from reproduce.report import write_report

            with locked(build / options.profile):
                print(write_report(build / options.profile, read_run(build / options.profile)))
            return 0
        data = options.data or os.environ.get("DRSROBUST_DATA")
        data = Path(data).expanduser().resolve() if data else None
        profile = load_profile(options.profile, notebooks, data, check=not options.plan)
        sweep = _sweep(options, notebooks, profile)
        result = _result(options, sweep)
        chosen = {} if sweep else _choose(options.what, notebooks, profile)
        all_parameters = [sweep.parameters(point) for point in sweep.points] if sweep else chosen.values()
        datasets = [name for parameters in all_parameters for name in datasets_of(parameters)]
        if not options.plan:
            _check_package()
            if missing := missing_data(datasets, data):
                raise FileNotFoundError("; ".join(missing))
        if options.portable:
            make_portable()
        if options.checkpoints:
            bundle = Path(os.path.expanduser(options.checkpoints))
            print(f"{len(read_checkpoints(bundle))} trained models from {bundle}")
    except (ValueError, TypeError, OSError) as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 2
    if data:
        os.environ["DRSROBUST_DATA"] = str(data)
    if sweep:
        return _run_sweep(sweep, notebooks, build / f"{profile.name}-sweep-{sweep.identity}", options, result)
    if options.plan:
        records, missing = read_records(build, notebooks), missing_data(profile.real_datasets, data)
        print_plan(replace(profile, parameters=chosen), records, options.jobs, missing)
        return 0
    # A part of a profile, or other parameters, must not replace a whole run.
    folder = profile.name if chosen == profile.parameters else f"{profile.name}-part"
    try:
        with locked(build / folder):
            return _run(chosen, notebooks, profile, build / folder, options)
    except BlockingIOError as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # no room for the lock
        return _failed("run", error, build / folder)


def _sweep(options: argparse.Namespace, notebooks: dict[str, Notebook], profile: Profile) -> Sweep | None:
    if options.grid is None:
        return read_assignments(options.what, notebooks, profile) if options.sweep else None
    if options.what:
        raise ValueError(f"--grid takes the notebook and its parameters from the file, not {options.what[0]!r}")
    return read_grid(Path(options.grid).expanduser(), notebooks, profile)


def _result(options: argparse.Namespace, sweep: Sweep | None) -> Result | None:
    """What a sweep shows: as the call says, else as its notebook does."""
    if options.result is not None and sweep is None:
        raise ValueError(f"--result {options.result} is of a sweep; add --sweep or --grid")
    text = options.result if options.result is not None else sweep and sweep.notebook.result
    return read_result(text, sweep.notebook) if text else None


def _run_sweep(
    sweep: Sweep,
    notebooks: dict[str, Notebook],
    folder: Path,
    options: argparse.Namespace,
    result: Result | None,
) -> int:
    if options.plan:
        print_sweep_plan(sweep, notebooks, folder, options.jobs)
        return 0
    try:
        with locked(folder):
            outcomes = run_sweep(sweep, notebooks, folder, options.jobs)
            failed = {point: outcome.error for point, outcome in outcomes.items() if not outcome.ok}
            for point, error in failed.items():
                print(f"reproduce: {point} failed: {error}", file=sys.stderr)
            if failed:
                again = "the same command runs them again"
                print(f"reproduce: {len(failed)} of {len(outcomes)} points failed; {again}", file=sys.stderr)
            from reproduce.sweep_page import write_results  # not above: a refused call must not wait for it

            page = write_results(sweep, folder, outcomes, result)
    except BlockingIOError as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        return _failed("page of the sweep", error, folder)
    print(f"table: {folder / 'sweep.csv'}\npage:  {page}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reproduce", description="Runs the notebooks in batch.")
    parser.add_argument(
        "what",
        nargs="*",
        metavar="NOTEBOOK or name=value",
        help="notebooks to run (default: all of the profile) and parameters that differ from the profile's",
    )
    parser.add_argument("--profile", default="laptop", help="reproduce/profiles/PROFILE.toml (default: laptop)")
    parser.add_argument("--data", metavar="DIR", help="folder with the real data sets (default: $DRSROBUST_DATA)")
    parser.add_argument(
        "--out",
        metavar="DIR",
        default=str(ROOT / "build"),
        help="results go to DIR/PROFILE, those of a part of a profile or of other parameters to DIR/PROFILE-part",
    )
    parser.add_argument(
        "--jobs",
        type=_at_least_one,
        default=min(2, cores()),
        metavar="N",
        help="notebooks at a time; one that measures time or uses all cores runs alone (default: 2; 1 on one core)",
    )
    parser.add_argument(
        "--bundle", action="store_true", help="write models, figures and record of the last run as one zip file"
    )
    parser.add_argument(
        "--checkpoints", metavar="FILE", help="take trained models from such a file instead of training them"
    )
    parser.add_argument(
        "--portable",
        action="store_true",
        help="compute as any processor with AVX2 does; a fifth slower, with a cache of its own",
    )
    sweeps = parser.add_mutually_exclusive_group()
    sweeps.add_argument(
        "--sweep", action="store_true", help="a run for each value of trials=20,50 or seed=0..2, and one table of all"
    )
    sweeps.add_argument("--grid", metavar="FILE", help="a sweep by a TOML file: notebook, [fixed], and [grid] or [zip]")
    parser.add_argument(
        "--result", metavar=FORM, help="what the page of a sweep begins with; default: as the notebook says"
    )
    parser.add_argument("--list", action="store_true", help="list the notebooks and their parameters")
    parser.add_argument("--plan", action="store_true", help="print what would run, how long, and what data is missing")
    parser.add_argument("--times", action="store_true", help="time notebooks with their defaults; write their index")
    parser.add_argument("--publish", action="store_true", help="copy the finished run into figures/")
    parser.add_argument("--cached", action="store_true", help="with --publish: also a run that did not begin empty")
    parser.add_argument("--report", action="store_true", help="write the report of the profile's last run again")
    parser.add_argument(
        "--compare", action="store_true", help="compare the profile's last run with the published figures"
    )
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of notebooks: 1 or more")
    return int(text)


def _check_package(package: Path = Path(drsrobust.__file__)) -> None:
    """Raises ValueError if drsrobust is not of this checkout: a run would record the commit of other notebooks and profiles."""
    if ROOT not in package.resolve().parents:
        raise ValueError(
            f"drsrobust is imported from {package.parent}, and notebooks and profiles are of {ROOT}: a run records one commit; "
            f"`make setup` there installs it, or give PYTHONPATH={ROOT / 'src'}"
        )


def _list(notebooks: dict[str, Notebook]) -> None:
    for notebook in notebooks.values():
        print(f"{notebook.name}: {notebook.title}")
        for parameter in notebook.parameters.values():
            print(f"    {parameter.name} = {parameter.default!r}  # {parameter.comment}")


def _choose(what: list[str], notebooks: dict[str, Notebook], profile: Profile) -> dict[str, dict]:
    """Notebook name -> parameters: the profile's, with the assignments of the command line."""
    names = [word for word in what if "=" not in word] or list(profile.parameters)
    chosen = {}
    for name in names:
        if name not in notebooks:
            raise unknown("notebook", name, notebooks)
        if name not in profile.parameters:
            raise ValueError(f"profile {profile.name} has no table for {name}")
        given = {}
        for word in (word for word in what if "=" in word):
            parameter, values = read_values(word, notebooks[name])
            if len(values) > 1:
                raise ValueError(f"{word!r} is {len(values)} values of {parameter}; for a run with each add --sweep")
            given[parameter] = values[0]
        chosen[name] = profile.parameters[name] | given
        notebooks[name].check(chosen[name])
    return chosen


def _run(
    chosen: dict[str, dict],
    notebooks: dict[str, Notebook],
    profile: Profile,
    folder: Path,
    options: argparse.Namespace,
) -> int:
    from reproduce.report import write_report  # not above: `--list` and a refused call must not wait for it

    record, report = folder / "run.json", folder / "report" / "index.html"
    for earlier in (record, report):
        earlier.unlink(missing_ok=True)
    read = ", ".join(profile.datasets) + ("" if profile.real else " (generated; DATA=folder for real data)")
    print(f"profile {profile.name}, data {read}", flush=True)
    started, start, outcomes, made_from = datetime.now(UTC), time.monotonic(), [], commit()
    cached = any(any((cache_folder() / kind).glob("*")) for kind in ("campaigns", "checkpoints"))
    records = matching(read_records(folder.parent, notebooks), chosen)
    # Without steps, how much of a notebook is in the cache is not known.
    steps = {name: record.work for name, record in records.items() if not cached or record.steps}

    files = {name: progress_file(folder, name) for name in chosen}
    with Progress(files, steps, options.jobs, alone=profile.alone) as progress:
        for outcome in run_notebooks(chosen, notebooks, folder, options.jobs, profile.alone):
            outcomes.append(outcome)
            remember(outcome, folder.parent)
            took = f"{outcome.seconds:.0f} s, {outcome.cpu_seconds:.0f} CPU s"
            took = took if outcome.ok else f"FAILED after {took}"
            progress.line(f"  {outcome.notebook} ... {took}")
            if not outcome.ok:
                print(f"    {outcome.error}", file=sys.stderr, flush=True)
                if (folder / outcome.output).exists():
                    print(f"    see {folder / outcome.output}", file=sys.stderr, flush=True)
    entries = [asdict(outcome) for outcome in sorted(outcomes, key=lambda one: one.notebook)]
    if cached:  # what each took when it computed all its trials, as in a run that was interrupted
        for name, full in matching(read_records(folder.parent, notebooks), chosen).items():
            entry = next(one for one in entries if one["notebook"] == name)
            if full.cpu_seconds > entry["cpu_seconds"]:
                entry |= {key: getattr(full, key) for key in ("seconds", "cpu_seconds", "steps")}
    seconds = round(time.monotonic() - start, 1)
    from_empty = total_seconds({one["notebook"]: one["seconds"] for one in entries}, options.jobs, profile.alone)
    run = {
        "profile": profile.name,
        "real": profile.real,
        "datasets": sorted({dataset for outcome in outcomes for dataset in datasets_of(outcome.parameters)}),
        "complete": chosen == profile.parameters,
        "started": started.strftime("%Y-%m-%d %H:%M UTC"),
        "seconds": seconds,
        "seconds_from_empty": round(from_empty, 1) if cached else seconds,
        "cpu_seconds": round(sum(one["cpu_seconds"] for one in entries), 1),  # from an empty cache
        "rules_sha256": rules_digest(),
        "cached": cached,  # the cache was not empty: models and trials of earlier runs may have been read
        "versions": versions("pytorchfi", "mrfi"),  # of the tools whose speed is measured, too
        "commit": made_from,
        "machine": machine(),
        "portable": options.portable,
        "bundles": [],
        "figure_sha256": {},
        "notebooks": entries,
    }

    def write_record() -> None:
        run["bundles"] = bundles_used(run["datasets"])  # whose models were in the cache
        run["figure_sha256"] = figure_sums(folder / "figures")  # `publish` refuses others
        with new_file(record) as part:
            part.write_text(json.dumps(run, indent=1))

    good = [outcome.notebook for outcome in outcomes if outcome.ok]
    failed = [outcome.notebook for outcome in outcomes if not outcome.ok]
    status = 1 if failed else 0
    # A wrong table or a full disk must not cost what can be written; --report makes the report later.
    for what, write in (
        ("table of statements", lambda: write_statements(folder / "figures", run, judged=profile.name in JUDGED)),
        ("record of the run", write_record),
        ("report", lambda: write_report(folder, run)),
    ):
        try:
            write()
        except (OSError, ValueError) as error:
            status = _failed(what, error, folder)
    if failed:
        print(f"reproduce: {len(failed)} of {len(outcomes)} notebooks failed: {', '.join(failed)}", file=sys.stderr)
    if good:
        some = f" (of {len(good)} of {len(outcomes)} notebooks)" if failed else ""
        print(f"figures: {folder / 'figures'}{some}")
    if report.exists():
        print(f"report:  {report}")
    return status


def _failed(what: str, error: Exception, folder: Path) -> int:
    text = explained(type(error).__name__, str(error), folder) if isinstance(error, OSError) else str(error)
    print(f"reproduce: no {what}: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main() if end_with_make() else "reproduce: the make that started this has ended")
