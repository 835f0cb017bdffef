"""What hardware bit errors do to deep recommenders, and what protection is worth.

    import drsrobust as dr

    data = dr.load_dataset("synthetic-movielens")
    model = dr.load_model("dlrm", data)
    evaluator = dr.Evaluator(model, data.test)
    with dr.inject(model, dr.BitFlip(ber=1e-4), target="embedding", seed=7) as error_map:
        print(len(error_map), evaluator.rerun(error_map).auc)

Names are imported at first use, so that `import drsrobust` loads neither PyTorch nor pandas. `drsrobust._names` lists them.
"""

from drsrobust._names import face

__version__ = "0.13.0"

__getattr__, __dir__, __all__ = face(__name__)
