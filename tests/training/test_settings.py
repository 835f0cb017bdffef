import numpy as np
import pytest

from drsrobust.training import Settings


def test_plain_numbers_whatever_was_given():
    settings = Settings(epochs=np.int64(2), learning_rate=np.float32(0.5), table_learning_rate=np.float64(0.25))
    assert [type(value) for value in (settings.epochs, settings.learning_rate, settings.table_learning_rate)] == [
        int,
        float,
        float,
    ]
    with pytest.raises(TypeError):
        Settings(epochs=1.5)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"batch_size": 1}, "batch_size must be at least 2, got 1"),
        ({"learning_rate": 0}, "learning_rate must be over 0, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be over 0, got nan"),
        ({"table_learning_rate": -1}, "table_learning_rate must be over 0, got -1"),
        ({"weight_decay": -1e-6}, "weight_decay must be at least 0, got -1e-06"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"table_optimizer": "rowwise"}, "unknown table_optimizer 'rowwise'; did you mean 'rowwise_adagrad'"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        (
            {"table_optimizer": "sgd", "table_weight_decay": 1e-6},
            "table_weight_decay must be 0 with table_optimizer='sgd', .* got 1e-06",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        Settings(**wrong)


def test_weight_decay_of_tables():
    assert Settings(weight_decay=1e-4).table_weight_decay == 1e-4
    assert Settings(weight_decay=1e-4, table_optimizer="adagrad").table_weight_decay == 0
