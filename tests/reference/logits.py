"""Writes `<model>/teacher_forced.json` for each model, and `<model>/greedy.json` for SmolLM2.

Usage: python logits.py SOURCES [MODEL ...], where SOURCES holds the unpacked tokenizer packages (see README.md).
"""

import argparse
import json
from pathlib import Path

import jinja2
import numpy as np

import reference_tokenizers
from common import HERE, MODELS
from forward import Forward

FED = 640
COLUMNS = 8
CHAT_MODEL = "smollm2-135m-instruct-q4_1"
CHAT_MESSAGE = "What is the capital of France?"
CHAT_STEPS = 24


def f32(values):
    """float32 values as the shortest decimals that read back to the same float32."""
    return [float(np.format_float_scientific(value, unique=True)) for value in np.asarray(values, dtype=np.float32).ravel()]


def row_statistics(logits, next_ids):
    """Argmax, distance of best and second best, log-probability of the next id, all per row."""
    argmax, gap, log_prob = [], [], []
    for row, next_id in zip(logits, next_ids):
        second, first = np.partition(row, -2)[-2:]
        argmax.append(int(row.argmax()))
        gap.append(first - second)
        wide = row.astype(np.float64)
        log_prob.append(wide[next_id] - first - np.log(np.exp(wide - first).sum()))
    return argmax, gap, log_prob


def teacher_forced(model, file, tokenizer):
    ids = tokenizer.encode((HERE / "texts" / model.text).read_text(encoding="utf-8"), add_special_tokens=False).ids
    if file.get("tokenizer.ggml.add_bos_token", False):
        ids.insert(0, file.get("tokenizer.ggml.bos_token_id"))
    if len(ids) <= FED:
        raise SystemExit(f"{model.text} has {len(ids)} tokens, {FED + 1} are needed")
    ids = ids[: FED + 1]

    logits = Forward(file, np.float32).logits(ids[:FED])
    exact = Forward(file, np.float64).logits(ids[:FED])
    vocabulary = logits.shape[1]
    columns = [vocabulary * (2 * i + 1) // (2 * COLUMNS) for i in range(COLUMNS)]
    argmax, gap, log_prob = row_statistics(logits, ids[1:])
    exact_argmax, _, exact_log_prob = row_statistics(exact, ids[1:])
    noise = max(float(np.abs(a - b).max()) for a, b in zip(logits, exact))
    std = float(np.sqrt(np.mean([row.var(dtype=np.float64) for row in logits])))
    data = {
        "model": model.name,
        "sha256": model.sha256,
        "text": model.text,
        "vocabulary": vocabulary,
        "logits_std": std,
        "noise_floor_max_abs": noise,
        "float32_max_abs": max(2e-4 * std, 30 * noise),
        "log_prob_noise_max_abs": float(np.abs(np.subtract(log_prob, exact_log_prob)).max()),
        "rows_where_float64_argmax_differs": [i for i in range(FED) if argmax[i] != exact_argmax[i]],
        "mean_log_prob": float(np.mean(log_prob)),
        "ids": ids,
        "argmax": argmax,
        "top2_gap": f32(gap),
        "next_log_prob": f32(log_prob),
        "sample_columns": columns,
        "samples": [f32(row[columns]) for row in logits],
    }
    write(model.folder() / "teacher_forced.json", data)
    summary = {key: value for key, value in data.items() if not isinstance(value, list) or len(value) < COLUMNS}
    accuracy = np.mean(np.asarray(argmax) == ids[1:])
    print(json.dumps(summary, indent=1), f"top-1 accuracy on the text: {accuracy:.3f}, smallest gap: {min(gap):.2e}")


def greedy(model, file, tokenizer):
    """Greedy ids after one chat message, going on beyond the end of the answer; each step is computed anew from all ids."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(file.get("tokenizer.chat_template"))
    prompt = template.render(messages=[{"role": "user", "content": CHAT_MESSAGE}], add_generation_prompt=True)
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    forward = Forward(file, np.float32, keep=True)
    ids, gaps = list(prompt_ids), []
    for _ in range(CHAT_STEPS):
        row = forward.logits(ids, last_only=True)[0]
        second, first = np.partition(row, -2)[-2:]
        gaps.append(first - second)
        ids.append(int(row.argmax()))
    generated, eos_id = ids[len(prompt_ids) :], file.get("tokenizer.ggml.eos_token_id")
    data = {
        "model": model.name,
        "sha256": model.sha256,
        "message": CHAT_MESSAGE,
        "prompt": prompt,
        "prompt_ids": prompt_ids,
        "greedy_ids": generated,
        "top2_gap": f32(gaps),
        "eos_id": eos_id,
        "answer": tokenizer.decode(generated[: generated.index(eos_id)]),
    }
    write(model.folder() / "greedy.json", data)
    print(json.dumps(data, indent=1))


def write(path, data):
    """One key a line, lists unbroken."""
    lines = [f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in data.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", type=Path)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    arguments = parser.parse_args()
    for name in arguments.models:
        model = MODELS[name]
        file = model.open()
        tokenizer = reference_tokenizers.load(model, file, arguments.sources)
        teacher_forced(model, file, tokenizer)
        if name == CHAT_MODEL:
            greedy(model, file, tokenizer)


if __name__ == "__main__":
    main()
