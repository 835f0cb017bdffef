"""The command `drsrobust`: campaigns and reports from a TOML file, error rates from failure rates."""

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

import drsrobust
import drsrobust_extras
from drsrobust import __version__
from drsrobust_extras.protection import rates

_FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False))
_TRIALS = click.option("--trials", type=click.IntRange(min=1), help="Trials per condition, in place of the file's.")
_PACKAGES = tuple(str(Path(module.__file__).parent) for module in (drsrobust, drsrobust_extras))


@contextmanager
def _errors() -> Iterator[None]:
    """Any exception as one line; of a user's function with its kind and place."""
    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        own = isinstance(error, ValueError | OSError | ImportError) or frame.filename.startswith(_PACKAGES)
        text = str(error) if own else f"{type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})"
        raise click.ClickException(text) from error


def _say(text: object, *, err: bool = False) -> None:
    """Prints a line; where its reader has gone, as `head` does, this and what follows is dropped, and the work goes on."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())


@contextmanager
def _notes() -> Iterator[None]:
    """Warnings as one line each."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_, **__: _say(f"note: {message}", err=True)
        yield


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="drsrobust")
def main() -> None:
    """What hardware bit errors do to a deep recommender, and what protection is worth."""


@main.command()
@_FILE
@click.option("--workers", type=click.IntRange(min=1), help="Processes; without it as the file says.")
@_TRIALS
@click.option("--shard", metavar="I/N", help="Compute only shard I of N, from 0, for `drsrobust merge`.")
@click.option("--check", is_flag=True, help="Check the file, load model and rows, run nothing.")
def campaign(file: str, workers: int | None, trials: int | None, shard: str | None, check: bool) -> None:
    """Run the campaign of a TOML FILE, print its table and write its report.

    Finished trials are stored: a stopped campaign goes on where it was.
    """
    with _errors():
        made, settings = _made(file, trials)
        _say(made)
        if check:
            return
        table = made.run(workers=workers or settings.campaign.workers, shard=shard)
        if shard:
            _say(f"shard {shard}: {len(table):,} trials finished; when all are: drsrobust merge {file}")
        else:
            _tell(made, settings, table)


@main.command()
@click.argument("model", metavar="MODEL:MAKE")
@click.argument("rows", type=click.Path())
@click.option("--label", required=True, help="The column of 0 and 1 that the model predicts.")
@click.option(
    "--checkpoint", type=click.Path(), help="A state dict (.pt, .safetensors) to load into what MAKE returns."
)
@click.option("--dense", metavar="A,B", help="Columns that are numbers, where their type says ids.")
@click.option("--ids", metavar="A,B", help="Columns that are ids, where their type says numbers.")
@click.option("--user", metavar="COLUMN", help="The column of users.")
@click.option("--output", type=click.Choice(["logit", "probability"]), help="Of the model; without it as it looks.")
@click.option("--trials", type=click.IntRange(min=1), help="Trials per condition (60).")
@click.option(
    "--rows", "head", metavar="N", type=click.IntRange(min=1), help="Rows in use; without it some minute's worth."
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes; without it as many as help.")
@click.option("--fit-per-mbit", type=float, help="Failures of memory in 10^9 hours per Mbit: says when flips come.")
@click.option("--folder", type=click.Path(file_okay=False), default="assess", show_default=True, help="Where to.")
@click.option("--init", is_flag=True, help="Write the TOML file of the campaign and run nothing.")
def assess(model: str, rows: str, workers: int | None, init: bool, **options) -> None:
    """Measure what bit flips do to the model that MODEL:MAKE (as model.py:make) returns, on the ROWS of a file, and what helps.

    Columns of floats are numbers, others ids; text as $3.54 is refused. Those that the model's forward takes by name are passed
    to it; a function forward(model, batch) in the file does it another way.
    """
    from drsrobust_extras.pages.assess import TRIALS
    from drsrobust_extras.pages.assess import assess as prepare

    for name in ("dense", "ids"):
        options[name] = [column.strip() for column in (options[name] or "").split(",") if column.strip()]
    options["trials"] = options["trials"] or TRIALS
    with _errors(), _notes():
        made = prepare(model, rows, **options)
        for note in made.notes:
            _say(f"note: {note}", err=True)
        if init:
            _say(made.write_toml())
            return
        campaign = made.campaign()
        campaign.run(workers=workers)
        page, lines = made.write(campaign)
        for line in (*lines, f"report: {page}"):
            _say(line)


@main.command()
@_FILE
@click.argument("folders", nargs=-1, type=click.Path(exists=True, file_okay=False))
@_TRIALS
def merge(file: str, folders: tuple[str, ...], trials: int | None) -> None:
    """Join the shards of the campaign of a TOML FILE, print its table and write its report.

    FOLDERS are those of all its shards; without them, those next to the campaign's store.
    """
    from drsrobust.campaign import merge

    with _errors():
        made, settings = _made(file, trials)
        _tell(made, settings, merge(made, folders or None))


def _made(file: str, trials: int | None):
    """The campaign of a file, and the file's settings."""
    from dataclasses import replace

    from drsrobust_extras.pages.campaign_file import read_campaign_file

    settings = read_campaign_file(file)
    if trials:
        settings = replace(settings, campaign=replace(settings.campaign, trials=trials))
    return settings.make(), settings


def _tell(campaign, settings, table) -> None:
    """Prints the summary of a finished campaign, and writes its report."""
    from drsrobust.statistics import summarise

    shown = [name for headline in campaign.headlines[:1] for name in headline.columns] or [*campaign.metrics]
    summary = summarise(table, shown, bounds=settings.report.ends())
    ends = [f"{shown[-1]}{end}" for end in ("", "_low", "_high")]
    columns = ["target", "mitigation", "error_model", "rate", "n", *ends]
    _say(summary[columns].to_string(index=False, float_format="{:.3g}".format))
    _write(campaign, settings)


@main.command()
@_FILE
@_TRIALS
@click.option("--folder", type=click.Path(file_okay=False), help="Where to; without it as the file says.")
def report(file: str, trials: int | None, folder: str | None) -> None:
    """Write the report of a campaign's finished trials, without running more."""
    with _errors():
        _write(*_made(file, trials), folder)


def _write(campaign, settings, folder: str | None = None) -> None:
    from drsrobust_extras.pages.report import write

    page = write(campaign, settings.report_folder if folder is None else folder, bounds=settings.report.ends())
    _say(f"report: {page}")
    if text := campaign.left_out_text():
        _say(text)


@main.command()
@click.option("--fit-per-mbit", type=float, required=True, help="Failures in 10^9 hours per Mbit (2^20 bits).")
@click.option("--hours", type=float, required=True, help="How long words stay in memory until they are written again.")
def ber(fit_per_mbit: float, hours: float) -> None:
    """Bit error rate of memory, before ECC, from its failure rate and the time that words stay in it."""
    try:
        end, mean = rates.ber(fit_per_mbit, hours), rates.mean_ber(fit_per_mbit, hours)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    _say(f"{end:.3g} at the end of {hours:g} h; {mean:.3g} at a random moment of them")
