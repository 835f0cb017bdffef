"""x"""
from drsrobust.training import Settings

def settings(seed: int, epochs: int) -> Settings:
    """Settings of SASRec's paper and of HSTU's public configurations: Adam at 0.001 without weight decay, 128 histories of about
    8 items in a step."""
    return Settings(learning_rate=1e-3, weight_decay=0.0, batch_size=1024, epochs=epochs, seed=seed)
