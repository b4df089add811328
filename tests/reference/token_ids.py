"""Writes `strings.json` and, for each model, `<model>/token_ids.json`.

Usage: python token_ids.py SOURCES, where SOURCES holds the unpacked tokenizer packages (see README.md).
"""

import argparse
import json
import struct
from importlib.metadata import version
from pathlib import Path

import reference_tokenizers
import strings
from common import HERE, MODELS
from logits import write

WHOLE = 300


def fnv1a(data):
    """32-bit FNV-1a."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def hashes(blocks):
    """One hash of eight hexadecimal digits per block of bytes, joined."""
    return "".join(f"{fnv1a(block):08x}" for block in blocks)


def encode(tokenizer, texts):
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def id_hashes(all_ids):
    return hashes(struct.pack(f"<{len(ids)}I", *ids) for ids in all_ids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", type=Path)
    sources = parser.parse_args().sources
    texts = [strings.string(index) for index in range(strings.COUNT)]
    data = {"count": len(texts), "hashes": hashes(text.encode() for text in texts), "strings": texts[:WHOLE]}
    write(HERE / "strings.json", data)
    for model in MODELS.values():
        file = model.open()
        tokenizer = reference_tokenizers.load(model, file, sources)
        recognised = encode(tokenizer, texts)
        tokenizer.encode_special_tokens = True
        plain = encode(tokenizer, texts)
        data = {
            "model": model.name,
            "sha256": model.sha256,
            "tokenizers": version("tokenizers"),
            "count": len(texts),
            "hashes": id_hashes(recognised),
            "plain_hashes": id_hashes(plain),
            "ids": recognised[:WHOLE],
            "plain_ids": plain[:WHOLE],
        }
        write(model.folder() / "token_ids.json", data)
        differ = sum(a != b for a, b in zip(recognised, plain))
        print(f"{model.name}: {sum(map(len, recognised))} ids, {differ} strings differ when control text is plain text")


if __name__ == "__main__":
    main()
