"""The Python of pages of docs/ runs as written, one block after the other; what it adds behaves as what is there."""

import numpy as np
import pytest
import torch

import drsrobust as dr
from drsrobust_extras.pages.plots.save import read_words


def test_extending(run_page, monkeypatch):
    monkeypatch.setitem(dr.models.MODELS, "tables_and_top", None)  # so that what the page adds is gone afterwards
    monkeypatch.setitem(dr.data.SOURCES, "myshop", None)
    page = run_page("extending.md", blocks=7)

    model, evaluator = page["model"], page["evaluator"]
    assert dr.models.model_name(model) == "tables_and_top" and model.manifest["sizes"]["width"] == 4
    assert dr.components(model)["component"].tolist() == ["embedding", "top_mlp"]

    few, many = (page["ByteInverted"](rate).sample(dr.resolve(model), seed=3) for rate in (1e-3, 1e-2))
    assert set(many.mask.astype("<u8").view(np.uint8)) == {0x00, 0xFF}
    of_few, of_many = (dict(zip(zip(m.tensor, m.word, strict=True), m.mask, strict=True)) for m in (few, many))
    assert of_few and all(of_many[word] & mask == mask for word, mask in of_few.items())
    with dr.inject(model, page["both"], seed=1) as error_map:
        assert np.array_equal(evaluator.rerun(error_map).scores, evaluator.run().scores, equal_nan=True)

    served = page["served"]
    assert served.full_run == "a server scores all rows at each call" and served.golden.auc == evaluator.golden.auc
    served.verify()
    trials = [dr.Campaign(each, errors=[dr.BitFlip(1e-4)], trials=3).run(workers=1) for each in (served, evaluator)]
    assert trials[0]["auc"].tolist() == trials[1]["auc"].tolist()

    table = page["table"].set_index(["mitigation", "trial"])
    plain, sound = table.loc["none"], table.loc["sound scores"]
    assert (plain["bits_flipped"] == sound["bits_flipped"]).all()
    assert sound["bits_left"].sum() < 0.8 * plain["bits_left"].sum() and set(sound["repaired"].dropna()) <= {False}
    batch = next(page["data"].test.batches(64))
    with torch.no_grad(), page["sound"].attach(model) as watch:
        model(batch.dense_features, batch.sparse_features)
        assert watch.detected is False
        model.top[-1].bias.data += 1e9
        assert model(batch.dense_features, batch.sparse_features).max() <= page["sound"].high + 1e-6
        assert watch.detected and watch.repaired is False

    kept = page["drawn"]["same_hundred"].tolist()
    assert 0 <= kept[1] < kept[0] <= 1 and (page["drawn"]["same_hundred_high"] <= 1).all()
    written = page["root"] / "figures"
    assert (written / "19_lists.svg").is_file() and (written / "data" / "19_lists.csv").read_text().count("\n") == 3
    assert read_words(written, "19_lists")["caption"] == page["words"]

    shop, root = page["shop"], page["root"]
    assert shop.name == "myshop/all" and len(shop.train) == 1600 and shop.schema.features[0].cardinality == 3
    assert dr.load_dataset("myshop/all", path=root / "myshop").fingerprint == shop.fingerprint
    assert dr.load_dataset("myshop", root, seed=1).train.fingerprint != shop.train.fingerprint
    with pytest.raises(FileNotFoundError, match="there is no .*clicks.csv .*Get the shop's export"):
        dr.load_dataset("myshop", root / "elsewhere")
    with pytest.raises(ValueError, match="hash_size=8 is for sets of categories"):
        dr.load_dataset("myshop", root, hash_size=8)


def test_a_data_set_must_say_how_it_is_read(monkeypatch):
    with pytest.raises(ValueError, match="unknown read .*'raitings'; did you mean 'ratings'"):
        dr.data.RawSource("", ("all",), "folder", ("file",), read="raitings")
    with pytest.raises(ValueError, match="unknown read .* None"):
        dr.data.RawSource("", ("all",), "folder", ("file",))
    monkeypatch.setitem(dr.data.SOURCES, "nothing", dr.data.RawSource("", ("all",)))
    with pytest.raises(ValueError, match="unknown generated data set .*'nothing'"):
        dr.load_dataset("nothing")
    nothing = dr.data.RawSource("", ("all",), read=lambda name, files, seed: [name, files, seed])
    monkeypatch.setitem(dr.data.SOURCES, "nothing", nothing)
    with pytest.raises(TypeError, match=r"read of nothing must return a Dataset.*'nothing/all', \[\], 3"):
        dr.load_dataset("nothing", seed=3)


@pytest.mark.long
def test_campaigns(capsys, run_page):
    names = run_page("campaigns.md", blocks=7)
    printed = capsys.readouterr().out
    assert 0 < names["result"].rows_reached < len(names["data"].test) / 2
    assert "incorrect" in printed and "train_seeds" in printed
    table = names["table"]
    assert {"ndcg", "decision_changed"} < set(table.columns) and set(table["stratum"]) > {"0, others 0"}
    assert table.groupby(["target", "rate"])["weight"].sum().tolist() == pytest.approx([1] * 4)
    assert (names["summary"]["n"] >= 60).all() and names["summary"]["auc_drop_high"].notna().all()


@pytest.mark.long
def test_from_other_tools(run_page, capsys):
    names = run_page("from_other_tools.md", blocks=7)
    summary = names["summary"].set_index(["ber", "mitigation"])["hit_rate@1"]
    assert names["evaluator"].golden.metric("hit_rate@1") > 0.95
    assert summary[1e-3, "none"] < 0.9 < summary[1e-3, "range per tensor"]
    assert "1073741824" in capsys.readouterr().out  # the mask of bit 30


@pytest.mark.long
def test_scale(capsys, run_page):
    names = run_page("scale.md", blocks=5)
    printed = capsys.readouterr().out
    assert "4 trials of the last shard, 12 in all" in printed and "\nTrue\n" in printed and "in 4 blocks>" in printed
    assert names["table"]["nan_rows"].eq(0).all()
