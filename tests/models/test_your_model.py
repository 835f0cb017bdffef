"""The Python of docs/your_model.md runs as written, one block after the other."""


def test_python_runs(capsys, run_page):
    names = run_page("your_model.md", blocks=3)
    printed = capsys.readouterr().out
    assert "user_mlp" in printed
    assert "['user.weight', 'user_mlp.0.bias', 'user_mlp.0.weight', 'user_mlp.2.bias', 'user_mlp.2.weight']" in printed
    assert "<ErrorMap BitFlip, seed 7" in printed and len(names["table"]) == 3 * 2 * 5
    assert {t.name for t in names["space"].tensors} == {"user_mlp.2.weight", "user_mlp.2.bias"}
    assert hasattr(names["dr"].training, "fit") and hasattr(names["dr"].training, "Settings")
