"""Chosen flips: the first is the worst of all single flips, each is allowed, and the list gives the AUC again."""

from itertools import product

import numpy as np
import pytest
import torch

import drsrobust as dr
from drsrobust.data.dataset import Feature, Ids, Schema, Split
from drsrobust.injection.number_formats import plain
from drsrobust.metrics.auc import auc
from drsrobust.mitigation.base import Mitigation, Screened
from drsrobust.models import build_model, state_digest
from drsrobust.models.scoring import BATCH
from drsrobust_extras.data.stored_as import stored_as
from drsrobust_extras.experiments.chosen_flips import _auc, _Flips, _none, _pairs, _Search


@pytest.fixture(scope="module")
def small():
    """A DLRM of some 2,000 parameters that has learned to tell its rows apart, and these rows."""
    random = np.random.default_rng(3)
    n, sizes = 600, {"user": 120, "item": 60}
    sparse = {name: Ids(random.integers(0, size, n).astype(np.int32), None) for name, size in sizes.items()}
    dense = random.normal(size=(n, 3)).astype(np.float32)
    truth = dense @ [1.0, -1.0, 0.5] + random.normal(size=120)[sparse["user"].values]
    labels = (truth + 0.5 * random.normal(size=n) > 0).astype(np.float32)
    rows = Split(dense, sparse, labels, None, np.arange(n), "made/rows", "test", float(labels.mean()), "rows", n)
    schema = Schema(("a", "b", "c"), tuple(Feature(name, size, False) for name, size in sizes.items()))
    torch.manual_seed(0)
    model = build_model("dlrm", schema, dense_mlp=[16, 8], over_mlp=[24, 1], embedding_dim=8, std=0.3)
    optimizer, batch = torch.optim.Adam(model.parameters(), 0.02), rows.batch()
    for _ in range(60):
        optimizer.zero_grad()
        scores = model(batch.dense_features, batch.sparse_features)
        torch.nn.functional.binary_cross_entropy_with_logits(scores, batch.labels.float()).backward()
        optimizer.step()
    return model.eval(), rows


def all_flips(model, rows, bits):
    """AUC of every single flip, and the value that the word then has, by brute force."""
    flips, batch = {}, rows.batch()
    for name, parameter in model.named_parameters():
        words = parameter.data.view(torch.int32).view(-1)
        for word, bit in product(range(len(words)), bits):
            mask = np.uint32(1 << bit).view(np.int32).item()
            words[word] ^= mask
            scores = model(batch.dense_features, batch.sparse_features).sigmoid().numpy()
            flips[name, word, bit] = auc(rows.labels, scores), words.view(torch.float32)[word].item()
            words[word] ^= mask
    return flips


@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_tables_with_sparse_gradients_have_the_same_flips(kind):
    ids, found = torch.arange(256) % 40, []
    rows = dr.data.from_batches([(ids if kind is torch.nn.Embedding else ids[:, None], (ids > 20).float())])
    for sparse in (False, True):
        torch.manual_seed(2)
        model = torch.nn.Sequential(kind(40, 4, sparse=sparse), torch.nn.Linear(4, 1))
        model[0].weight.data[:, 0], model[1].weight.data[0, 0] = torch.linspace(-1, 1, 40), 1.0
        evaluator = dr.Evaluator(model, rows, forward=lambda model, batch: model(batch[0])[:, 0], output="logit")
        found.append(dr.worst_case(evaluator, budget=2, candidates=8).flips)
    assert len(found[0]) and found[0].equals(found[1])


@pytest.mark.long
def test_the_first_flip_against_all_single_flips(small):
    model, rows = small
    assert 1_800 < sum(parameter.numel() for parameter in model.parameters()) < 2_200
    evaluator, bits, in_range = dr.Evaluator(model, rows), (24, 26, 30, 31), dr.WeightRange.fit(model)
    with torch.inference_mode():
        flips = all_flips(model, rows, bits)
    ranges = in_range.ranges
    passing = {p: area for p, (area, value) in flips.items() if ranges[p[0]].low <= value <= ranges[p[0]].high}
    assert 0 < len(passing) < len(flips)
    for passes, aucs in ((in_range, passing), (None, {place: flip[0] for place, flip in flips.items()})):
        chosen = dr.worst_case(evaluator, budget=1, allowed=dr.Allowed(bits=bits, passes=passes)).flips.iloc[0]
        assert aucs[chosen["tensor"], chosen["word"], chosen["bit"]] == chosen["auc"]
        if passes:
            assert chosen["auc"] == min(aucs.values()) < evaluator.golden.auc
        else:  # of huge numbers the gradient says little; scores are lost either way
            assert min(aucs.values()) <= chosen["auc"] <= 0.5


CASES = {
    "any": lambda model: dr.Allowed(),
    "in range": lambda model: dr.Allowed(passes=dr.WeightRange.fit(model)),
    "tables": lambda model: dr.Allowed("embedding", bits=("sign", 24, 25)),
    "one per row": lambda model: dr.Allowed("mlp", passes=dr.WeightRange.fit(model), one_per=256),
    "pairs": lambda model: dr.Allowed(bits=range(20, 29), passes=dr.ECC(), pairs_in=8),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", CASES)
def test_each_flip_is_allowed_and_the_list_replays(small, kind, tmp_path):
    model, rows = small
    evaluator, allowed, before = dr.Evaluator(model, rows), CASES[kind](model), state_digest(model)
    found = dr.worst_case(evaluator, budget=6, allowed=allowed)
    flips = found.flips
    assert 0 < len(flips) <= 6 and list(flips["flip"]) == list(range(1, len(flips) + 1))
    assert flips["auc"].iloc[-1] < found.golden_auc and (flips["auc"].diff().dropna() <= 0).all()
    assert state_digest(model) == before == found.checkpoint and all(p.requires_grad for p in model.parameters())
    space = dr.resolve(model, allowed.target)
    assert set(flips["tensor"]) <= set(space.by_name)
    if allowed.bits is not None:
        masks = plain(torch.float32).eligible(allowed.bits)
        assert all(masks[0] >> np.uint64(bit) & np.uint64(1) for bit in flips["bit"])
    if kind in ("in range", "one per row"):
        ranges = allowed.passes.ranges
        assert all(ranges[row.tensor].low <= row.after <= ranges[row.tensor].high for row in flips.itertuples())
    number = 4 * flips["word"] // (allowed.one_per or allowed.pairs_in or 4)
    blocks = list(zip(flips["tensor"], number, strict=True))
    if kind == "one per row":
        assert len(set(blocks)) == len(blocks)
    if kind == "pairs":
        assert blocks[::2] == blocks[1::2] and len(set(blocks)) == len(blocks) // 2
        assert len(dr.ECC().screen(found.error_map(), space, seed=0).remaining) == len(found.error_map())
    found.error_map().save(tmp_path / "flips.npz")
    with dr.ErrorMap.load(tmp_path / "flips.npz").applied(model):
        assert evaluator.run().auc == flips["auc"].iloc[-1]
    measured = found.measure(evaluator)
    step = 1 + (allowed.pairs_in is not None)
    assert list(measured["flips"]) == list(range(0, len(flips) + 1, step))
    assert measured["auc"].tolist() == [found.golden_auc, *flips["auc"][step - 1 :: step]]


def test_a_narrow_format(small):
    """Flips are of the stored words; tables of integer rows have no gradient and are left out."""
    model, rows = small
    narrow = stored_as(model, dense="bf16", tables="int8")
    found = dr.worst_case(dr.Evaluator(narrow, rows), budget=3)
    assert len(found.flips) and found.flips["bit"].max() < 16
    assert not found.flips["tensor"].str.contains("embedding").any()


def test_frozen_weights_stay_frozen(small):
    model, rows = small
    expected = dr.worst_case(dr.Evaluator(model, rows), budget=2).flips
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    try:
        found = dr.worst_case(dr.Evaluator(model, rows), budget=2).flips
        assert not any(parameter.requires_grad for parameter in model.parameters())
    finally:
        for parameter in model.parameters():
            parameter.requires_grad_(True)
    assert found.equals(expected)


def in_batches(model, rows, *sizes):
    parts = [rows.batch(np.arange(end - size, end)) for size, end in zip(sizes, np.cumsum(sizes), strict=True)]
    return dr.Evaluator(model, dr.data.from_batches(parts))


@pytest.mark.parametrize("sizes", [(300, 300), (450, 150), (100, 200, 300)])
def test_the_gradient_is_of_all_batches(small, sizes):
    """With few candidates the gradient decides: flips are those of all rows in one batch, each row with its own label."""
    model, rows = small
    rows = rows.take(np.argsort(rows.labels, kind="stable"))  # two halves of them are unlike in all
    parts, allowed = in_batches(model, rows, *sizes), dr.Allowed(bits=range(18, 27))
    expected = dr.worst_case(in_batches(model, rows, 600), budget=4, allowed=allowed, candidates=4).flips
    found = dr.worst_case(parts, budget=4, allowed=allowed, candidates=4).flips
    assert len(expected) == 4 and found.equals(expected)
    first, batch = _Search(parts, allowed, 4), rows.batch()
    scores = model(batch.dense_features, batch.sparse_features)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, batch.labels.float())
    tensors = [tensor.memory for tensor in first._space.tensors]
    for got, by_hand in zip(first._golden.values(), torch.autograd.grad(loss, tensors), strict=True):
        assert got == pytest.approx(by_hand.numpy().ravel(), abs=1e-6)


def test_padding_of_the_last_batch_does_not_count(small):
    """Rows of a split that make two batches, the last of them padded, against the same rows in batches of one's own."""
    model, rows = small
    many, allowed = rows.take(np.append(np.arange(BATCH) % 600, np.arange(300, 337))), dr.Allowed(bits=range(18, 27))
    expected = dr.worst_case(in_batches(model, many, BATCH, 37), budget=2, allowed=allowed, candidates=5).flips
    found = dr.worst_case(dr.Evaluator(model, many), budget=2, allowed=allowed, candidates=5).flips
    assert len(expected) == 2 and found.equals(expected)


@pytest.fixture(scope="module")
def dense_evaluator():
    random = np.random.default_rng(1)
    dense = random.normal(size=(200, 6)).astype(np.float32)
    labels = (dense @ [1.0, -1.0, 0.5, 0.2, 0.0, 0.8] + random.normal(size=200) > 0).astype(np.float32)
    order = np.argsort(labels, kind="stable")
    dense, labels = torch.from_numpy(dense[order]), torch.from_numpy(labels[order])
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(dense)[:, 0], labels).backward()
        optimizer.step()
    model[0].weight.data[3, 4] = 0  # whose sign changes nothing
    batches = list(zip(dense.split(100), labels.split(100), strict=True))
    rows = dr.data.from_batches(batches, label=lambda batch: batch[1])
    return dr.Evaluator(model.eval(), rows, forward=lambda model, batch: model(batch[0]))


class Screen(Mitigation):
    """A protection of memory, by the masks that it leaves of errors."""

    name = "screen"

    def __init__(self, kept):
        self.kept = kept

    def settings(self):
        return None

    def screen(self, error_map, space, *, seed):
        mask = self.kept(error_map)
        left = mask != 0
        return error_map.with_words(error_map.tensor[left], error_map.word[left], mask[left])


LOW_BITS = Screen(lambda errors: errors.mask & np.uint64((1 << 25) - 1))
ONE_PER_WORD = Screen(lambda errors: errors.mask * (np.bitwise_count(errors.mask) == 1))
CHECKERED = Screen(lambda errors: errors.mask * ((errors.tensor + errors.word) % 2 == 0))


def words_of(flips):
    return list(zip(flips["tensor"], flips["word"], strict=True))


def test_a_protection_that_passes_one_flip_of_a_pair_and_not_the_other(dense_evaluator):
    """A pair counts only if both flips stay as they are, not removed and not in another word's value."""
    evaluator, options = dense_evaluator, {"bits": range(20, 26), "pairs_in": 32}
    space = dr.resolve(evaluator.model)
    free = dr.worst_case(evaluator, budget=8, allowed=dr.Allowed(**options)).flips
    five = dr.worst_case(evaluator, budget=5, allowed=dr.Allowed(**options))
    assert five.measure(evaluator)["flips"].tolist() == [0, 2, 4]
    high = free["bit"].to_numpy().reshape(-1, 2) >= 25
    assert (high.sum(1) == 1).any()  # a pair of which one flip would pass
    for protection in (LOW_BITS, dr.WeightRange.fit(evaluator.model), dr.ParityZero()):
        found = dr.worst_case(evaluator, budget=8, allowed=dr.Allowed(passes=protection, **options))
        drawn = found.error_map()
        left = Screened.by(protection, drawn, space, seed=0).remaining
        assert len(found.flips) >= 2 and len(left) == len(drawn)
        assert (left.mask == drawn.mask).all() and (left.word == drawn.word).all()
        if protection is LOW_BITS:
            assert found.flips["bit"].max() < 25
        if isinstance(protection, dr.ParityZero):  # two words of one wrong bit each stay wrong, at 0
            words = words_of(found.flips)
            assert words[::2] == words[1::2] and words_of(free)[::2] != words_of(free)[1::2]


def test_a_flip_must_pass_together_with_those_before(dense_evaluator):
    """Each flip passes alone; a second one in the same word would remove both."""
    evaluator, options = dense_evaluator, {"target": "2.weight", "bits": range(20, 24)}
    free = dr.worst_case(evaluator, budget=8, allowed=dr.Allowed(**options)).flips
    assert free["word"].duplicated().any()
    found = dr.worst_case(evaluator, budget=8, allowed=dr.Allowed(passes=ONE_PER_WORD, **options)).flips
    assert len(found) > 1 and not found["word"].duplicated().any()


@pytest.mark.parametrize("candidates", [1, 40, 100])
@pytest.mark.parametrize("options", [{}, {"one_per": 8}, {"bits": range(20, 26)}, {"passes": CHECKERED}])
def test_candidates_and_the_choice_against_all_single_flips(dense_evaluator, candidates, options, monkeypatch):
    """The best 2 (or a 20th) of each tensor and bit, at most 4 (or a 10th) of a tensor; of these the lowest AUC stays."""
    evaluator, model = dense_evaluator, dense_evaluator.model
    assert dr.worst_case.__kwdefaults__ == {"budget": 20, "allowed": None, "candidates": 40}
    found = dr.worst_case(evaluator, budget=3, allowed=dr.Allowed(**options), candidates=candidates)
    search, chosen, size = _Search(evaluator, dr.Allowed(**options), candidates), [], options.get("one_per", 0)
    tensors = search._space.tensors
    golden = [tensor.memory.detach().numpy().ravel().copy() for tensor in tensors]

    def flipped(values, word, bit):
        with np.errstate(invalid="ignore"):  # of signalling NaN
            return (values[word : word + 1].view(np.uint32) ^ np.uint32(1 << bit)).view(np.float32).astype(float)

    for row in found.flips.itertuples():
        scores, taken = {}, {(number, word * 4 // size) for number, word, _ in chosen} if size else set()
        with search._with(_none()).applied(model):
            gradients = search._gradients()
            for number, tensor in enumerate(tensors):
                words = tensor.memory.detach().numpy().ravel()
                for word, bit in product(range(tensor.size), options.get("bits", range(32))):
                    allowed = (number, word, bit) not in chosen and not (size and (number, word * 4 // size) in taken)
                    huge = {"nan": 3e38, "posinf": 3e38, "neginf": -3e38}
                    score = gradients[number][word] * (np.nan_to_num(flipped(words, word, bit), **huge) - words[word])
                    if allowed and score > 0 and not ("passes" in options and (number + word) % 2):
                        scores[number, word, bit] = float(score[0])
        best = []
        for number in range(len(tensors)):
            by_bit = [[s for (n, _, b), s in scores.items() if (n, b) == (number, bit)] for bit in range(32)]
            of_tensor = sum((sorted(of_bit)[-max(2, candidates // 20) :] for of_bit in by_bit), [])
            best += sorted(of_tensor)[-max(4, candidates // 10) :]
        moves = list(search._moves())
        places = [(int(move.tensor[0]), int(move.word[0]), int(move.bit[0])) for move in moves]
        assert [scores[place] for place in places] == pytest.approx(sorted(best, reverse=True)[:candidates])
        assert len(set(places)) == len(places)
        aucs = [_auc(evaluator, search._with(move)) for move in moves]
        number, word, bit = places[int(np.argmin(aucs))]
        assert (row.tensor, row.word, row.bit, row.auc) == (tensors[number].name, word, bit, min(aucs))
        assert row.row == np.unravel_index(word, tensors[number].shape)[0]
        values = golden[number][word], flipped(golden[number], word, bit)[0]
        assert np.array_equal((row.before, row.after), values, equal_nan=True)
        chosen.append((number, word, bit))
        search._chosen = _Flips.joined([search._chosen, moves[int(np.argmin(aucs))]])
    assert found.measure(evaluator)["flips"].tolist() == list(range(len(chosen) + 1))
    ranked, before = search._ranked(), [move.score[0] for move in search._moves()]
    assert (ranked.score > 0).all()
    few = candidates < 100 and not size and "passes" not in options  # which are left out after the cut
    for pool in range(2, 9):  # more of a bit than are asked for change nothing
        monkeypatch.setattr("drsrobust_extras.experiments.chosen_flips._POOL", pool)
        assert not few or [move.score[0] for move in search._moves()] == before
        fewer = search._ranked()
        assert max(np.bincount(fewer.tensor * 64 + fewer.bit)) <= pool
    monkeypatch.undo()
    # Where gradients vanish, those of the model without errors rank.
    for nothing in (np.zeros_like, lambda gradient: None):
        monkeypatch.setattr(search, "_gradients", lambda n=nothing: {k: n(g) for k, g in search._golden.items()})
        assert len(search._ranked().word) > len(ranked.word) / 2


def test_a_tie_is_no_gain(dense_evaluator, monkeypatch):
    first = dr.worst_case(dense_evaluator, budget=1)
    for more, flips in ((0, 0), (1e-12, 1)):
        tied = first.flips["auc"][0] - first.golden_auc + more
        monkeypatch.setattr("drsrobust_extras.experiments.chosen_flips._TIED", tied)
        assert len(dr.worst_case(dense_evaluator, budget=1).flips) == flips


def test_pairs_are_the_two_best_of_their_blocks():
    random = np.random.default_rng(5)
    for n in (1, 2, 100):
        tensor, word, bit = np.repeat([0, 1, 2], 12), random.integers(0, 9, 36), random.permutation(36)
        flips = _Flips(tensor, word, bit, random.random(36))
        block = tensor * 100 + word
        expected = []
        for number in range(3):
            blocks = [np.flatnonzero(block == one) for one in np.unique(block[tensor == number])]
            best = [mine[np.argsort(-flips.score[mine])][:2] for mine in blocks if len(mine) > 1]
            expected += sorted(best, key=lambda pair: -flips.score[pair].sum())[:n]
        expected.sort(key=lambda pair: -flips.score[pair].sum())
        assert [pair.bit.tolist() for pair in _pairs(flips, block, n)] == [bit[pair].tolist() for pair in expected]
