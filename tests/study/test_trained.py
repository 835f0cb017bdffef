import pytest

from drsrobust_study import trained


@pytest.fixture
def requests(monkeypatch, data):
    """What is trained, without training it; `data` is each data set."""
    asked = []
    monkeypatch.setattr(trained, "load_dataset", lambda name: data)
    monkeypatch.setattr(trained, "load_models", lambda found: asked.extend(found) or [None] * len(found))
    return asked


def test_large_sets_are_capped(requests, data, monkeypatch):
    monkeypatch.setattr(trained, "MOST_ROWS", {"afm": 300})
    found = trained.train(["afm", "fm"], [data.name], [3, 4])
    assert [(one.name, one.seed, len(one.data.train)) for one in found] == [
        ("afm", 3, 300), ("afm", 4, 300), ("fm", 3, len(data.train)), ("fm", 4, len(data.train)),
    ]  # fmt: skip
    assert [len(request["data"].train) for request in requests] == [300, 300, len(data.train), len(data.train)]
    assert (found[0].data.train.rows == data.train.rows[:300]).all() and found[0].data.test is data.test


def test_afn_of_the_studys_size_is_trained_once(requests, data):
    seeds = [0, 1, 2]
    assert [one.seed for one in trained.train(["afn", "fm"], [data.name], seeds, afn_neurons=1500)] == [0, *seeds]
    assert [one.seed for one in trained.train(["afn"], [data.name], seeds)] == seeds
    assert requests[0]["sizes"] == {"neurons": 1500} and requests[1]["sizes"] is None
