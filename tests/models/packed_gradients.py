#!/usr/bin/env python3
"""Gradients of packed documents as Hugging Face has them: of each document alone, added up.

  packed_gradients.py FOLDER OUT

For every model folder in FOLDER with a golden.safetensors beside the weights: each document of `packed.input_ids` is put
through transformers' model by itself, its positions from 0 on, in float32 on the CPU. OUT/NAME.safetensors holds
`grad.<name>` of the sum of all losses over the number of all label tokens, and `loss`. Needs Python with torch,
transformers and safetensors; programs that only read the results (tests/gpu/probe_models.py) need no transformers.
"""
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file


def documents_of(golden):
    """(ids, labels) of each document of the packed row."""
    # Files keep small numbers in narrow types, which embeddings do not take.
    ids, labels = golden["packed.input_ids"].flatten().long(), golden["packed.labels"].flatten().long()
    document = golden["packed.document"].flatten()
    for number in torch.unique_consecutive(document):
        mine = document == number
        yield ids[mine], labels[mine]


def packed_gradients(folder, golden):
    """`grad.<name>` of the mean loss over all label tokens, and `loss`."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.train()
    total, tokens = 0.0, 0
    for ids, labels in documents_of(golden):
        wanted = labels[1:]  # a model predicts the next token
        count = int((wanted >= 0).sum())
        if count == 0:
            continue
        logits = model(input_ids=ids[None]).logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits, wanted, ignore_index=-100, reduction="sum")
        loss.backward()
        total, tokens = total + loss.item(), tokens + count
    found = {"loss": torch.tensor([total / tokens], dtype=torch.float64)}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found["grad." + name] = (parameter.grad / tokens).contiguous()
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.glob("*/golden.safetensors")):
        golden = load_file(str(file))
        if "packed.document" not in golden:
            continue
        found = packed_gradients(file.parent, golden)
        save_file(found, str(out / (file.parent.name + ".safetensors")))
        print(f"{file.parent.name}: loss {found['loss'].item():.6f}, {len(found) - 1} gradients", flush=True)


if __name__ == "__main__":
    main()
