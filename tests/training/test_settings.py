import numpy as np
import pytest

from drsrobust.training import Settings


def test_plain_numbers_whatever_was_given():
    settings = Settings(epochs=np.int64(2), learning_rate=np.float32(0.5), table_learning_rate=np.float64(0.25))
    values = settings.epochs, settings.learning_rate, settings.table_learning_rate
    assert [type(value) for value in values] == [int, float, float]


REFUSED = [("batch_size", 1), ("table_learning_rate", -1), ("weight_decay", -1e-6), ("patience", 0)]
REFUSED += [("table_optimizer", "rowwise"), ("precision", "float16")]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_makes_no_sense_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        Settings(**{name: value})


def test_weight_decay_of_tables():
    assert Settings(weight_decay=1e-4).table_weight_decay == 1e-4
    assert Settings(weight_decay=1e-4, table_optimizer="adagrad").table_weight_decay == 0
    with pytest.raises(ValueError, match="table_weight_decay .* 1e-06"):
        Settings(table_optimizer="sgd", table_weight_decay=1e-6)
