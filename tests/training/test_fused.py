"""FBGEMM's fused tables against plain PyTorch."""

import pytest
import torch

from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.models import build_model, state_digest
from drsrobust.training import Settings, fit
from drsrobust.training.fused import fused_tables


def fused(optimizer, **more):
    return Settings(epochs=2, batch_size=512, table_optimizer=optimizer, table_learning_rate=0.1, **more)


def built(name, data):
    torch.manual_seed(3)
    return build_model(name, data.schema)


def one_step(model, batch):
    logits = model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
    torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()


def tables(model):
    return {
        name: p.detach().clone() for name, p in model.named_parameters() if "embedding_bags" in name and p.shape[1] > 1
    }


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_steps_are_those_of_the_formula(data, optimizer):
    """w -= rate * g; Adagrad: g / (sqrt(sum of g^2) + eps), row-wise with the mean of g^2 over the row. Single-hot features
    are summed, genres are averaged: two kernels in one collection, and `genres` is not the last feature of the model."""
    batches = [data.train.batch(slice(start, start + 300)) for start in (0, 300)]
    plain, ours = built("dlrm", data), built("dlrm", data)
    moment = {name: torch.zeros_like(table) for name, table in tables(plain).items()}
    with fused_tables(ours, fused(optimizer)) as taken:
        assert len(taken) == 1
        for batch in batches:
            plain.zero_grad()
            one_step(plain, batch)
            one_step(ours, batch)
            with torch.no_grad():
                for name, parameter in plain.named_parameters():
                    if name not in moment:
                        continue
                    gradient = parameter.grad
                    if optimizer == "sgd":
                        parameter -= 0.1 * gradient
                        continue
                    square = gradient**2
                    moment[name] += square.mean(dim=1, keepdim=True) if optimizer == "rowwise_adagrad" else square
                    parameter -= 0.1 * gradient / (moment[name].sqrt() + 1e-8)
    for name, table in tables(ours).items():
        torch.testing.assert_close(table, tables(plain)[name], rtol=1e-5, atol=2e-5, msg=name)  # steps are 0.1 wide
        assert (table != tables(built("dlrm", data))[name]).any()


def test_look_ups_are_the_collections_own(data):
    model, batch = built("dlrm", data).eval(), data.test.batch()
    golden = model(batch.dense_features, batch.sparse_features)
    with fused_tables(model, fused("sgd")):
        torch.testing.assert_close(model(batch.dense_features, batch.sparse_features), golden)
    assert torch.equal(model(batch.dense_features, batch.sparse_features), golden)
    memories = {table.untyped_storage().data_ptr() for _, table in model.named_parameters()}
    assert len(memories) == len(list(model.parameters()))  # each its own again


def test_afterwards_the_collection_is_as_it_was(data):
    model = built("dlrm", data)
    before, parameters = state_digest(model), list(model.parameters())
    with pytest.raises(ZeroDivisionError), fused_tables(model, fused("adagrad")):
        raise ZeroDivisionError
    assert state_digest(model) == before and all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert "forward" not in vars(model.sparse_arch.embedding_bag_collection)


def test_what_fbgemm_cannot_take_stays_with_adam(data):
    """First-order weights are tables of width 1."""
    model = built("wide_deep", data)
    with fused_tables(model, fused("sgd")) as taken:
        assert [one.collection for one in taken] == [model.embeddings]
    with fused_tables(model, Settings()) as taken:
        assert taken == []
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fit(model, data, fused("rowwise_adagrad"), progress=False)
    assert all((parameter != before[name]).any() for name, parameter in model.named_parameters())


def test_training_is_repeatable(data):
    digests = set()
    for _ in range(2):
        model = built("dlrm", data)
        curve = fit(model, data, fused("rowwise_adagrad"), progress=False)
        digests.add(state_digest(model))
    assert len(digests) == 1 and curve[-1].train_loss < curve[0].train_loss


def test_ids_that_no_table_has_are_refused(data):
    model, batch = built("dlrm", data), data.train.batch(slice(0, 8))
    jagged = batch.sparse_features
    wrong = torchrec().KeyedJaggedTensor(keys=jagged.keys(), values=jagged.values() + 10**6, lengths=jagged.lengths())
    with fused_tables(model, fused("sgd")), pytest.raises(RuntimeError):
        model(batch.dense_features, wrong)
