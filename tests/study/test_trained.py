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
    found, whole = trained.train(["afm", "fm"], [data.name], [3, 4]), len(data.train)
    assert [(one.name, one.seed) for one in found] == [("afm", 3), ("afm", 4), ("fm", 3), ("fm", 4)]
    rows = [one.data.train.rows for one in found]
    assert [len(own) for own in rows] == [300, 300, whole, whole] and (rows[0] == data.train.rows[:300]).all()
    assert [len(request["data"].train) for request in requests] == [300, 300, whole, whole]


def test_afn_of_the_studys_size_is_trained_once(requests, data):
    seeds = [0, 1, 2]
    assert [one.seed for one in trained.train(["afn", "fm"], [data.name], seeds, afn_neurons=1500)] == [0, *seeds]
    assert [one.seed for one in trained.train(["afn"], [data.name], seeds)] == seeds
    assert requests[0]["sizes"] == {"neurons": 1500} and requests[1]["sizes"] is None
