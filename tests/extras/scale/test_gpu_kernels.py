"""Flips that Triton's kernels draw and make are those of the error clock: in Triton's interpreter, and on a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import drsrobust as dr
from drsrobust.injection import ErrorClock, error_models
from drsrobust_extras.scale import gpu

triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch's CUDA wheels")

PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
# Words -> rates: a word; no round number, in a block; exactly a block; several blocks and a part.
CASES = {
    1: (1e-3, 0.1, 0.5, 0.99),
    999: (1e-6, 1e-3, 0.02, 0.2),
    32_768: (1e-6, 1e-5, 1e-4, 1e-3),
    100_003: (1e-12, 1e-6, 1e-4, 5e-4),
}
LARGE = {100_003: (0.01, 0.3), 5_000_000: (1e-6, 1e-3, 0.01)}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def compare(words, rate, device, seed=2**63 + 5, summand=2**32 - 1):
    """The facts of one injection and its undo."""
    from drsrobust_extras.scale.gpu_kernels import DeviceFlips

    generator = torch.Generator().manual_seed(words)
    before = torch.randint(-(2**31), 2**31, (words,), dtype=torch.int32, generator=generator)
    memory = before.clone().to(device).view(torch.float32)
    flips = DeviceFlips(memory, rate, seed=seed, summand=summand)
    flips.inject()
    expected = ErrorClock(32 * words, seed=seed, summand=summand).until(rate)
    flipped = np.zeros(words, np.uint32)
    np.bitwise_or.at(flipped, expected >> 5, np.uint32(1) << (expected & 31).astype(np.uint32))
    found, drawn = flips.places().cpu().numpy(), int((flips.draw() >= 0).sum())
    facts = {"places": len(expected), "repeats": drawn - len(found), "equal": np.array_equal(found, expected)}
    facts["words"] = np.array_equal((memory.cpu().view(torch.int32) ^ before).numpy().view(np.uint32), flipped)
    flips.undo()
    return facts | {"undone": torch.equal(memory.cpu().view(torch.int32), before)}


def order():
    """What calls in a wrong order say, and whether another seed gives its places."""
    from drsrobust_extras.scale.gpu_kernels import DeviceFlips

    flips = DeviceFlips(torch.zeros(10, 10, requires_grad=True), 0.01, seed=1)
    said = []
    for call in (flips.undo, flips.inject, flips.inject, lambda: flips.reseed(2), flips.undo, lambda: flips.reseed(2)):
        try:
            call()
        except RuntimeError as error:
            said.append(str(error))
    return {"said": said, "places": flips.places().tolist()}


def injected():
    """Whether `inject` draws by the kernels what it draws by NumPy."""
    model = torch.nn.Sequential(torch.nn.Linear(300, 70), torch.nn.PReLU())
    with dr.inject(model, dr.BitFlip(1e-3), seed=3) as here:
        wrong = [tensor.detach().clone() for tensor in model.parameters()]
    error_models.accelerator_of = lambda device: gpu.GPU()
    gpu.drawing_gpu = lambda space, rate: torch.device("cpu")
    with dr.inject(model, dr.BitFlip(1e-3), seed=3) as there:
        words = [torch.equal(*map(_words, pair)) for pair in zip(model.parameters(), wrong, strict=True)]
    drawn = there.on_device is not None and here.on_device is None
    return {"words": all(words) and drawn, "map": here.frame().equals(there.frame()), "flips": here.bits}


def _words(tensor):
    return tensor.detach().view(torch.int32)  # NaN is not equal to NaN


@pytest.fixture(scope="module")
def interpreted():
    """Facts from a process in which Triton interprets: it decides when kernels are imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("words", CASES)
def test_places_words_and_undo_equal_the_clocks(interpreted, words):
    for rate in CASES[words]:
        facts = interpreted[f"{words} {rate}"]
        assert facts["equal"] and facts["words"] and facts["undone"], (rate, facts)
    assert facts["places"] > 10 and (words != 999 or facts["repeats"] > 500)


def test_inject_draws_the_same_by_the_kernels(interpreted):
    facts = interpreted["injected"]
    assert facts["words"] and facts["map"] and facts["flips"] > 500


def test_a_wrong_order_of_calls_and_another_seed(interpreted):
    once, twice = "nothing was injected", "the words have flips; call undo() first"
    assert interpreted["order"]["said"] == [once, twice, twice]
    assert interpreted["order"]["places"] == ErrorClock(3200, seed=2).until(0.01).tolist()


WORDS = torch.zeros(4, 4)


@pytest.mark.parametrize(
    ("words", "rate", "seed", "name"),
    [
        *((words, 0.1, 1, "words") for words in (WORDS.half(), WORDS.T[1:], WORDS[:0])),
        (WORDS, 0.1, 1, "device is cpu"),
        *((WORDS, rate, 1, f"rate is {rate!r}") for rate in (0, 1, -0.1, float("nan"))),
        (WORDS, 0.1, -1, "seed must be .*, got -1"),
    ],
)
def test_bad_arguments(words, rate, seed, name):
    from drsrobust_extras.scale.gpu_kernels import DeviceFlips

    with pytest.raises(ValueError, match=name):
        DeviceFlips(words, rate, seed=seed)


@pytest.mark.skipif(not PTXAS.exists(), reason="this Triton has no assembler for NVIDIA's GPUs")
def test_the_kernels_compile_for_hopper(tmp_path, monkeypatch):
    """Without a GPU; types are those of a model of over 2**26 words."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from drsrobust_extras.scale import gpu_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def compiled(kernel, types, constants):
        names = [name for name in kernel.arg_names if name not in constants]
        signature = dict(zip(names, types.split(), strict=True)) | dict.fromkeys(constants, "constexpr")
        return triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32)).asm

    lanes = {"LANES": gpu_kernels._LANES}
    assert compiled(gpu_kernels._count, "*i32 *i64 *i64 i32 i32 i32", lanes | {"ROUNDS": 6})["cubin"]
    for action in (gpu_kernels._SAVE, gpu_kernels._FLIP, gpu_kernels._UNDO, gpu_kernels._NAME):
        slots = "*i64" if action is gpu_kernels._NAME else "*i32"
        constants = lanes | {"BITS": 20, "ACTION": action.value}
        asm = compiled(gpu_kernels._arrivals, f"*i32 {slots} *i32 *i32 *i64 i64 i32 i32", constants)
        assert asm["cubin"] and ("relaxed.or.b32" in asm["ptx"]) is (action is gpu_kernels._FLIP)


@needs_gpu
@pytest.mark.parametrize("words, rate", [(words, rate) for words, rates in (CASES | LARGE).items() for rate in rates])
def test_on_a_gpu(words, rate):
    facts = compare(words, rate, "cuda")
    assert facts["equal"] and facts["words"] and facts["undone"], facts


@needs_gpu
def test_a_captured_graph_follows_the_seed():
    from drsrobust_extras.scale.gpu_kernels import DeviceFlips

    before = torch.randn(100_003, device="cuda")
    memory = before.clone()
    flips = DeviceFlips(memory, 1e-3, seed=1)
    flips.inject()  # compiles
    flips.undo()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flips.inject()
        seen = memory.clone()
        flips.undo()
    for seed in (2, 3):
        flips.reseed(seed)
        graph.replay()
        wrong = (seen.view(torch.int32) != before.view(torch.int32)).nonzero().ravel().cpu().numpy()
        expected = ErrorClock(32 * len(before), seed=seed).until(1e-3)
        assert np.array_equal(wrong, np.unique(expected >> 5))
        assert torch.equal(memory.view(torch.int32), before.view(torch.int32))


if __name__ == "__main__":
    found = {f"{words} {rate}": compare(words, rate, "cpu") for words, rates in CASES.items() for rate in rates}
    print(json.dumps(found | {"order": order(), "injected": injected()}))
