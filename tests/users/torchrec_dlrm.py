"""TorchRec's own DLRM with the targets of the README; it needs the extra `torchrec`."""

from shop import ITEMS, READERS, frame
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.models.dlrm import DLRM

import drsrobust as dr

tables = [
    EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=8, feature_names=[name])
    for name, rows in (("reader", READERS), ("item", ITEMS))
]
model = DLRM(EmbeddingBagCollection(tables=tables), 1, dense_arch_layer_sizes=[16, 8], over_arch_layer_sizes=[16, 1])
data = dr.data.from_frame(frame, label="clicked", dense=["price"], sparse=["reader", "item"])
table = dr.Campaign(
    dr.Evaluator(model, data), errors=[dr.BitFlip(1e-3)], targets=["all", "embedding", "mlp"], trials=10
).run()
print(dr.summarise(table)[["target", "auc_drop"]])
