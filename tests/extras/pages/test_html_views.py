"""How objects look in a notebook."""

import drsrobust as dr


def test_views(evaluator, trained, tmp_path):
    shown = evaluator._repr_html_()
    assert "AUC without errors</th><td>0." in shown and "affected rows and modules" in shown and "probability" in shown
    with dr.inject(trained, dr.BitFlip(1e-4), seed=1) as error_map:
        view = error_map._repr_html_()
    assert f"{error_map.bits:,} of {error_map.eligible_bits:,}" in view and "bits in embedding" in view
    with dr.inject(trained, dr.BitFlip(1e-3), target=dr.Inputs("dense"), seed=1) as error_map:
        evaluator.run()
    assert "while the model runs" in error_map._repr_html_()
    campaign = dr.Campaign(evaluator, errors=[dr.BitFlip(1e-4)], trials=3, sampling="stratified", store=tmp_path / "s")
    assert "0 of " in campaign._repr_html_() and "stratified by CriticalBits" in campaign._repr_html_()
    campaign.run(progress=False, workers=1)
    assert "finished" in campaign._repr_html_() and str(tmp_path) in campaign._repr_html_()
