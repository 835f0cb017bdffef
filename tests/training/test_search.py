from drsrobust.training import Settings, load_model, search


def test_search_is_judged_on_validation_rows(data, empty_cache):
    settings = [Settings(epochs=2, batch_size=512, learning_rate=rate) for rate in (1e-5, 1e-2)]
    sizes = [{"embedding_dim": 4, "dense_mlp": [4]}, None]
    table = search("dlrm", data, settings, sizes, show=False)
    assert len(table) == 4 and table["valid_auc"].is_monotonic_decreasing
    assert table["learning_rate"].iloc[0] == 1e-2 and table["learning_rate"].iloc[-1] == 1e-5
    assert not [column for column in table if "test" in column]
    stored = len(list((empty_cache / "checkpoints").glob("*/")))
    best = load_model("dlrm", data, settings=settings[1], sizes=table["sizes"].iloc[0], show=False)
    assert len(list((empty_cache / "checkpoints").glob("*/"))) == stored == 4  # it was trained already
    assert max(epoch["valid_auc"] for epoch in best.manifest["curve"]) == table["valid_auc"].iloc[0]
