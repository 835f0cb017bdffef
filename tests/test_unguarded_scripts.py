"""Scripts that start processes, which import the script: one line says what to do if they would run it again."""

import re
import runpy
import subprocess
import sys

import pytest

from drsrobust._processes import UnguardedScript, check_script, pool

CHECK = "from drsrobust._processes import check_script\n"
REFUSED = {
    "a line": CHECK + "check_script()\n",
    "a function": CHECK + "def main():\n    check_script()\nmain()\n",
    "a loop and an if": CHECK + "for _ in range(1):\n    if True:\n        check_script()\n",
    "outside of the guard": CHECK + "if __name__ == '__main__':\n    pass\ncheck_script()\n",
    "an imported module": "import called_at_import\n",
}
TAKEN = {
    "guarded": CHECK + "if __name__ == '__main__':\n    check_script()\n",
    "a guarded function": CHECK + "def main():\n    check_script()\nif '__main__' == __name__:\n    main()\n",
    "in a try": CHECK + "try:\n    if __name__ == '__main__':\n        check_script()\nfinally:\n    pass\n",
    "ended before": CHECK + "import sys\nif __name__ != '__main__':\n    sys.exit()\ncheck_script()\n",
    "by the parent": CHECK
    + "import multiprocessing\nif multiprocessing.parent_process() is None:\n    check_script()\n",
}


def run(text, folder, monkeypatch):
    (folder / "called_at_import.py").write_text(CHECK + "check_script()\n")
    (folder / "script.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "called_at_import", raising=False)
    runpy.run_path(str(folder / "script.py"), run_name="__main__")


@pytest.mark.parametrize("kind", REFUSED)
def test_a_line_that_workers_would_run_again_is_refused(kind, tmp_path, monkeypatch):
    with pytest.raises(
        UnguardedScript, match=r'script.py:\d+ would run again in .*put it under `if __name__ == "__main__":`'
    ):
        run(REFUSED[kind], tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", TAKEN)
def test_guarded_scripts_and_other_callers_start_processes(kind, tmp_path, monkeypatch):
    run(TAKEN[kind], tmp_path, monkeypatch)
    check_script()


def test_no_process_starts_without_the_check(tmp_path, monkeypatch):
    with pytest.raises(UnguardedScript, match="script.py:2 would run again"):
        run("from drsrobust._processes import pool\nwith pool(1): pass\n", tmp_path, monkeypatch)
    with pool(1) as executor:
        assert executor._max_workers == 1


SCRIPT = """
import sys, torch
from torch import nn
import drsrobust as dr
from drsrobust.campaign import stored_trials, trial
print("once")
torch.manual_seed(0)  # a worker that imports this makes the same campaign
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
data = dr.data.from_batches([(x, (x.sum(1) > 0).float())])
evaluator = dr.Evaluator(nn.Linear(8, 1), data, forward=lambda model, batch: model(batch[0]))
campaign = dr.Campaign(evaluator, errors=dr.BitFlip(1e-2), trials=int(sys.argv[2]), store=sys.argv[1])
stored_trials.MIN_SECONDS_FOR_PROCESSES = trial.TRIED = 0.0
stored_trials.cores = lambda: 2
"""
RUN = (
    "workers = eval(sys.argv[3])\ntable = campaign.run(workers=workers, progress=False)\nprint(len(table), 'trials')\n"
)
GUARDED = "if __name__ == '__main__':\n    " + RUN.replace("\n", "\n    ")


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "trials", "workers", "lines", "error"),
    [
        (RUN, "10", "2", ["once"], r"script.py:\d+ would run again in each worker process.*__main__"),
        (RUN, "200", "None", ["once", "200 trials"], "run in this process alone: .*would run again"),
        (GUARDED, "10", "2", ["once", "10 trials"], None),
    ],
    ids=["unguarded", "unguarded, no workers asked for", "guarded"],
)
def test_a_real_script(text, trials, workers, lines, error, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + text)
    arguments = [str(tmp_path / "store"), trials, workers]
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:-1].count("once") == 1 or text is GUARDED, done.stderr
    assert set(done.stdout.split("\n")[:-1]) == set(lines) and "died" not in done.stderr, done.stdout + done.stderr
    if error:
        assert re.search(error, done.stderr)
