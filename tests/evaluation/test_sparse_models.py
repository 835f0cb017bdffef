"""Graph recommenders: models with a sparse adjacency as a buffer."""

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.injection import restore
from drsrobust.models import state_checksum, state_digest

USERS, ITEMS, N = 40, 30, 512
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC) tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore::drsrobust.evaluation.ReachWarning"),
]
LAYOUTS = {
    "coo": lambda dense: dense.to_sparse_coo(),
    "csr": lambda dense: dense.to_sparse_csr(),
    "csc": lambda dense: dense.to_sparse_csc(),
}


class LightGCN(nn.Module):
    """Two layers of propagation over the normalised adjacency (He et al., SIGIR 2020)."""

    def __init__(self, adjacency):
        super().__init__()
        torch.manual_seed(3)
        self.user, self.item = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8)
        self.register_buffer("adjacency", adjacency)

    def forward(self, user, item):
        layers = [torch.cat((self.user.weight, self.item.weight))]
        for _ in range(2):
            layers.append(self.adjacency @ layers[-1])
        mean = torch.stack(layers).mean(dim=0)
        return 3 * (mean[user] * mean[USERS + item]).sum(dim=1)


def forward(model, batch):
    ids = batch.sparse_features
    return model(ids["user"].values().long(), ids["item"].values().long())


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    ids = {"user": random.integers(USERS, size=N), "item": random.integers(ITEMS, size=N)}
    return dr.data.from_tensors(label=random.integers(2, size=N), sparse=ids)


@pytest.fixture(scope="module")
def dense(rows):
    """The normalised adjacency [users + items, users + items]."""
    adjacency = torch.zeros(USERS + ITEMS, USERS + ITEMS)
    user, item = (torch.as_tensor(rows.test.sparse[name].values).long() for name in ("user", "item"))
    adjacency[user, USERS + item] = adjacency[USERS + item, user] = 1
    scale = adjacency.sum(dim=1).clamp(min=1).rsqrt()
    return scale[:, None] * adjacency * scale


def of_one_and_two_workers(evaluator, folder, **options):
    """The table of a campaign, which workers must not change."""
    one, two = (
        dr.Campaign(evaluator, trials=4, store=folder / str(n), **options).run(workers=n, progress=False)
        for n in (1, 2)
    )
    assert one["auc"].equals(two["auc"]) and one["auc"].nunique() > 2


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_adjacency_gives_what_the_dense_one_gives(rows, dense, layout, tmp_path):
    plain = dr.Evaluator(LightGCN(dense), rows, forward=forward)
    model = LightGCN(LAYOUTS[layout](dense))
    evaluator = dr.Evaluator(model, rows, forward=forward)
    np.testing.assert_allclose(evaluator.golden.scores, plain.golden.scores, rtol=1e-5, atol=1e-6)
    with pytest.warns(UserWarning, match="errors cannot hit adjacency: sparse tensors"):
        dr.resolve(model)
    with dr.inject(model, dr.FixedCount(3, bits=(30,)), seed=1) as error_map:
        again, full = evaluator.rerun(error_map), evaluator.run()
    with dr.inject(plain.model, dr.FixedCount(3, bits=(30,)), seed=1) as same, np.errstate(over="ignore"):
        expected = plain.run()
    assert np.array_equal(error_map.word, same.word)
    assert np.array_equal(again.scores, full.scores, equal_nan=True) and again.auc == pytest.approx(expected.auc)
    assert full.auc != evaluator.golden.auc and evaluator.unchanged()
    of_one_and_two_workers(evaluator, tmp_path, errors=[dr.BitFlip(1e-3)], targets=["all", "embedding"])
    evaluator.verify()


@pytest.mark.filterwarnings("ignore:errors cannot hit adjacency")
def test_workers_get_the_adjacency_of_a_model_that_a_factory_makes(rows, dense, tmp_path):
    """The factory makes another adjacency, with fewer entries; the campaign's is used."""
    evaluator = dr.Evaluator(LightGCN(dense.to_sparse_coo()), rows, forward=forward, factory=_other)
    of_one_and_two_workers(evaluator, tmp_path, errors=[dr.FixedCount(2)])


def _other():
    return LightGCN(torch.eye(USERS + ITEMS).to_sparse_coo())


class Propagation(nn.Module):
    """The adjacency comes with the batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.nodes = nn.Embedding(USERS + ITEMS, 8)

    def forward(self, adjacency, user, item):
        nodes = self.nodes.weight + adjacency @ self.nodes.weight
        return 3 * (nodes[user] * nodes[USERS + item]).sum(dim=1)


def by_batch(model, batch):
    return model(batch["adjacency"], batch["user"], batch["item"])


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_batches_hold_a_sparse_adjacency(rows, dense, layout, tmp_path):
    ids = {name: torch.as_tensor(rows.test.sparse[name].values).long() for name in ("user", "item")}
    labels, evaluators = torch.as_tensor(rows.test.labels), []
    for adjacency in (dense, LAYOUTS[layout](dense)):
        parts = [slice(start, start + 128) for start in range(0, N, 128)]
        batches = [
            {"adjacency": adjacency, "label": labels[part], **{name: ids[name][part] for name in ids}} for part in parts
        ]
        evaluators.append(dr.Evaluator(Propagation(), dr.data.from_batches(iter(batches)), forward=by_batch))
    plain, evaluator = evaluators
    np.testing.assert_allclose(evaluator.golden.scores, plain.golden.scores, rtol=1e-5, atol=1e-6)
    of_one_and_two_workers(evaluator, tmp_path, errors=[dr.BitFlip(1e-3)])
    assert plain.rows.fingerprint != evaluator.rows.fingerprint
    evaluator.verify()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_state_holds_indices_and_values(dense, layout):
    make = LAYOUTS[layout]
    digest, checksum = (of(LightGCN(make(dense))) for of in (state_digest, state_checksum))
    assert (digest, checksum) == tuple(of(LightGCN(make(dense.clone()))) for of in (state_digest, state_checksum))
    other_value, other_place = dense.clone(), dense.clone()
    row, column = dense.nonzero()[5].tolist()
    other_value[row, column] *= 2
    free = (dense[row] == 0).nonzero()[0].item()
    other_place[row, free], other_place[row, column] = dense[row, column], 0
    for changed in (other_value, other_place):
        model = LightGCN(make(changed))
        assert state_digest(model) != digest and state_checksum(model) != checksum
    assert state_digest(LightGCN(dense)) != digest


def test_entries_of_one_place_count_as_their_sum():
    place = torch.tensor([[0, 0, 2], [1, 1, 0]])
    twice = torch.sparse_coo_tensor(place, torch.tensor([1.0, 2.0, 5.0]), (USERS + ITEMS, USERS + ITEMS))
    once = torch.sparse_coo_tensor(place[:, 1:], torch.tensor([3.0, 5.0]), (USERS + ITEMS, USERS + ITEMS))
    assert not twice.is_coalesced() and state_digest(LightGCN(twice)) == state_digest(LightGCN(once))


@pytest.mark.filterwarnings("ignore:errors cannot hit adjacency")
def test_targets_leave_a_sparse_tensor_out_and_refuse_its_name(dense):
    model = LightGCN(dense.to_sparse_csr())
    for target in ("all", "everything", "*", ["all", "everything"]):
        assert [tensor.name for tensor in dr.resolve(model, target).tensors] == ["item.weight", "user.weight"]
    for target in ("adjacency", "adj*", ["user", "adjacency"]):
        with pytest.raises(ValueError, match="adjacency is torch.sparse_csr; only plain dense tensors can be hit"):
            dr.resolve(model, target)
    sizes = dr.components(model).set_index("component")
    assert sizes.loc["adjacency", "buffers"] == (dense != 0).sum().item() and sizes.loc["adjacency", "share"] == 0
    assert restore(model) == 0
