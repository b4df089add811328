"""Judges `forward.py` by the golden fixtures: the logits that transformers computed for tiny models.

Exit code 1 if a case misses its own tolerance.
"""

import json
import sys

import numpy as np
from safetensors.numpy import load_file

from common import REPOSITORY, Gguf
from forward import Forward

CASES = ("llama2", "llama3", "llama_bias_linear", "mistral_nemo", "qwen2", "gemma3")


def worst_difference(name):
    """Largest absolute difference to the reference logits, and the case's bound."""
    folder = REPOSITORY / "tests" / "goldens" / name
    case = json.loads((folder / "case.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    file = Gguf(REPOSITORY / "tests" / "goldens-gguf" / f"{name}.gguf")
    forward = Forward(file, np.float32, query_pre_attn_scalar=config.get("query_pre_attn_scalar"))
    expected = load_file(folder / "reference.safetensors")["logits"]
    difference = np.abs(forward.logits(case["prompt_ids"]) - expected).max()
    return float(difference), case["tolerance"]["float32_max_abs"]


def main():
    failed = False
    for name in CASES:
        difference, bound = worst_difference(name)
        failed |= difference > bound
        print(f"{name:20} max difference {difference:.2e}  bound {bound:.2e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
