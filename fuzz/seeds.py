"""Writes the seed inputs into `corpus/TARGET/seed-*`. Everything else in `corpus` was found by the fuzzers."""

import json
import random
import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
# Type id, elements and bytes of a block.
GGML = [
    (0, 1, 4), (1, 1, 2), (2, 32, 18), (3, 32, 20), (6, 32, 22), (7, 32, 24), (8, 32, 34), (10, 256, 84),
    (11, 256, 110), (12, 256, 144), (13, 256, 176), (14, 256, 210), (15, 256, 292), (16, 256, 66), (17, 256, 74),
    (18, 256, 98), (19, 256, 50), (20, 32, 18), (21, 256, 110), (22, 256, 82), (23, 256, 136), (24, 1, 1),
    (28, 1, 8), (29, 256, 56), (30, 1, 2), (34, 256, 54), (35, 256, 66), (39, 32, 17), (40, 64, 36),
]
# The order of `DType::ALL`: bytes of a block.
BLOCK_BYTES = [
    8, 4, 2, 2, 1, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 18, 20, 22, 24, 34, 84, 110, 144, 176, 210, 292, 50, 56, 66, 74, 82,
    98, 110, 18, 136, 54, 66, 17, 36,
]
random.seed(1)


def save(target, name, data):
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    (CORPUS / target / f"seed-{name}").write_bytes(data)


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def array(type_id, count, data):
    return struct.pack("<IQ", type_id, count) + data


def gguf(keys, rows=(), version=3):
    """Rows are name, dimensions (innermost first), type id, data."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(rows), len(keys))
    for key, type_id, value in keys:
        out += string(key) + struct.pack("<I", type_id) + value
    data = b""
    for name, dims, type_id, stored in rows:
        data += bytes(-len(data) % 32)
        out += string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        out += struct.pack("<IQ", type_id, len(data))
        data += stored
    return out + bytes(-len(out) % 32) + data if rows else out


def gguf_seeds():
    values = [
        (0, b"\1"), (1, b"\xff"), (2, b"\1\0"), (3, b"\1\0"), (4, b"\1\0\0\0"), (5, b"\1\0\0\0"), (6, b"\0\0\x80?"),
        (7, b"\1"), (8, string("text")), (10, bytes(8)), (11, bytes(8)), (12, bytes(8)),
    ]
    save("gguf", "empty", gguf([]))
    save("gguf", "v2", gguf([("general.alignment", 4, struct.pack("<I", 64))], version=2))
    save("gguf", "scalars", gguf([(f"k{type_id}", type_id, value) for type_id, value in values]))
    save("gguf", "arrays", gguf([(f"k{type_id}", 9, array(type_id, 2, value * 2)) for type_id, value in values]))
    save("gguf", "nested", gguf([("k", 9, array(9, 2, array(9, 1, array(0, 1, b"\1")) + array(8, 1, string("ü"))))]))
    save("gguf", "tensors", gguf([], [("a", [2, 3], 0, bytes(24)), ("b", [], 0, bytes(4)), ("c", [1, 2, 1, 2], 1, bytes(8))]))
    for type_id, elements, size in GGML:
        save("gguf", f"type{type_id}", gguf([("k", 7, b"\0")], [("t", [elements], type_id, random.randbytes(size))]))


def safetensors_seeds():
    def file(header, data):
        return string(json.dumps(header, separators=(",", ":"))) + data

    def tensor(dtype, shape, start, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}

    save("safetensors", "empty", file({}, b""))
    save("safetensors", "two", file({"a": tensor("F32", [2], 0, 8), "b": tensor("BF16", [1, 2], 8, 12)}, bytes(12)))
    save("safetensors", "metadata", file({"__metadata__": {"format": "pt"}, "a": tensor("F8_E4M3", [], 0, 1)}, b"\0"))
    for dtype in ["F64", "F16", "F8_E5M2", "F8_E8M0", "I64", "U8", "BOOL", "F4", "C64"]:
        save("safetensors", dtype, file({"t": tensor(dtype, [2], 0, 16 if dtype in ("F64", "I64", "C64") else 2)}, bytes(16)))
    index = {"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "../b.safetensors"}}
    save("safetensors", "index", json.dumps(index).encode())


def hf_seeds():
    config = {"model_type": "llama", "hidden_size": 64, "rope_scaling": {"factor": 8.0}, "eos_token_id": [1, 2], "bias": False}
    save("hf_config", "config", json.dumps(config).encode())
    save("hf_config", "escapes", rb'{"a":"\u00fc\ud83d\ude00\n","b":-1.5e-10,"c":null}')
    save("hf_config", "floats", json.dumps({"time_step_limit": [0.0, float("inf")], "a": float("nan")}).encode())
    templates = [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": "{% if tools %}"}]
    save("hf_config", "template", json.dumps({"chat_template": "{{ bos_token }}"}).encode())
    save("hf_config", "templates", json.dumps({"chat_template": templates}).encode())


def block_seeds():
    for selector, size in enumerate(BLOCK_BYTES):
        save("blocks", f"type{selector}", bytes([selector]) + random.randbytes(2 * size))


gguf_seeds()
safetensors_seeds()
hf_seeds()
block_seeds()
