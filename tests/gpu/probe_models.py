#!/usr/bin/env python3
"""Holds `trainer probe` on the GPU to the CPU side and to Hugging Face, model by model.

  probe_models.py TRAINER FOLDER [--device cuda] [--models llama,llama3] [key=value ...]

FOLDER holds model folders with a golden.safetensors beside the weights (input_ids, labels, logits, grad.<name>, packed.*,
adamw.*). For each model and precision: the largest difference of logits and of each gradient, relative to the tensor's
largest magnitude, against Hugging Face's fp32 values and against the CPU side's of the same precision. Exits 1 when a
bound is passed. Needs Python with torch and safetensors.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

# Bounds of logits and of the worst gradient. fp32 on the GPU sums in another order. bf16 rounds every activation to 2^-9:
# against fp32 the errors of all layers add up; between two bf16 sides only roundings that fall differently remain. In FP8 a
# change of 1e-3 of a value (Hopper sums FP8 products with 14 bits) moves a part of the values to the next of FP8's coarse
# steps: what remains must stay below the distance of two independent roundings, sqrt(2) of what FP8 itself changes,
# tensor by tensor.
BOUNDS = {"fp32": (1e-4, 1e-3), "bf16": (3e-2, 8e-2)}
AGAINST_CPU = {"fp32": (1e-4, 1e-3), "bf16": (2e-2, 6e-2)}
KEYS = {"fp32": ["bf16=false"], "bf16": ["bf16=true"], "fp8": ["bf16=false", "fp8=true", "fp8_recipe=current"],
        "fp8-bf16": ["bf16=true", "fp8=true", "fp8_recipe=current"]}


def relative(a, b):
    """||a - b|| / ||b||; a NaN never passes."""
    a, b = a.double(), b.double()
    scale = b.norm().item()
    difference = (a - b).norm().item()
    if math.isnan(difference):
        return math.inf
    return difference / scale if scale > 0 else difference


def probe(trainer, model, batch, out, device, keys, steps=None):
    command = [*trainer, "probe", str(model), "--batch", str(batch), "--out", str(out), f"device={device}", *keys]
    if steps:
        command += ["--steps", str(steps)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(" ".join(command) + "\n" + run.stderr[-2000:])
    return load_file(str(out))


def compare(found, wanted):
    """Logits' error, and the worst gradient's with its name."""
    worst, name = 0.0, ""
    for key in wanted:
        if key.startswith("grad."):
            error = relative(found[key], wanted[key]) if key in found else math.inf
            if error > worst:
                worst, name = error, key[5:]
    return relative(found["logits"], wanted["logits"]), worst, name


def below_noise(found, wanted, exact):
    """The worst ratio of |found - wanted| to |wanted - exact| among logits and gradients, with its name."""
    worst, name = 0.0, ""
    for key in wanted:
        if key != "logits" and not key.startswith("grad."):
            continue
        noise = relative(wanted[key], exact[key])
        ratio = relative(found[key], wanted[key]) / noise if noise > 0 else 0.0
        if not ratio <= worst:
            worst, name = ratio, key
    return worst, name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", default="")
    parser.add_argument("--precisions", default="fp32,bf16,fp8,fp8-bf16")
    args, keys = parser.parse_known_args()
    trainer = args.trainer.split()
    failed = 0
    names = [n for n in args.models.split(",") if n] or sorted(
        p.parent.name for p in args.folder.glob("*/golden.safetensors"))
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for name in names:
            model = args.folder / name
            golden = load_file(str(model / "golden.safetensors"))
            whole, packed = scratch / "whole.safetensors", scratch / "packed.safetensors"
            save_file({k: golden[k].contiguous() for k in ("input_ids", "labels")}, str(whole))
            save_file({k: golden["packed." + k].contiguous() for k in ("input_ids", "labels", "document")}, str(packed))
            for precision in args.precisions.split(","):
                try:
                    device = probe(trainer, model, whole, scratch / "d", args.device, KEYS[precision] + keys)
                    host = probe(trainer, model, whole, scratch / "h", "cpu", KEYS[precision] + keys)
                    device_packed = probe(trainer, model, packed, scratch / "dp", args.device, KEYS[precision] + keys)
                    host_packed = probe(trainer, model, packed, scratch / "hp", "cpu", KEYS[precision] + keys)
                except RuntimeError as error:
                    failed += 1
                    print(f"{name:18} {precision:8} FAILED {error}", flush=True)
                    continue
                line = []
                if precision.startswith("fp8"):
                    for against, found, wanted, exact in (("cpu", device, host, exact_whole),
                                                          ("cpu packed", device_packed, host_packed, exact_packed)):
                        ratio, where = below_noise(found, wanted, exact)
                        bad = not ratio <= 2 ** 0.5
                        failed += bad
                        line.append(f"{against}: {ratio:.2f} of FP8's noise" + (f" BAD ({where})" if bad else ""))
                    print(f"{name:18} {precision:8} " + "; ".join(line), flush=True)
                    continue
                if precision == "fp32":
                    exact_whole, exact_packed = host, host_packed
                reference = {k: v for k, v in golden.items() if k == "logits" or k.startswith("grad.")}
                checks = [("cpu", compare(device, host), AGAINST_CPU[precision]),
                          ("cpu packed", compare(device_packed, host_packed), AGAINST_CPU[precision]),
                          ("hf", compare(device, reference), BOUNDS[precision]),
                          ("hf packed", (relative(device_packed["logits"], golden["packed.logits"]), 0.0, ""),
                           BOUNDS[precision])]
                for against, (logits, gradient, where), (most, most_gradient) in checks:
                    bad = not (logits <= most and gradient <= most_gradient)
                    failed += bad
                    line.append(f"{against}: {logits:.1e}/{gradient:.1e}" + (f" BAD ({where})" if bad else ""))
                if precision == "fp32" and "adamw.input_ids" in golden:
                    steps = scratch / "steps.safetensors"
                    save_file({k: golden["adamw." + k].contiguous() for k in ("input_ids", "labels")}, str(steps))
                    told = json.loads((model / "golden.json").read_text())
                    line.append(check_steps(trainer, model, steps, scratch / "s", args.device, keys, told))
                print(f"{name:18} {precision:8} " + "; ".join(line), flush=True)
    print("failed:", failed)
    return 1 if failed else 0


def check_steps(trainer, model, batch, out, device, keys, told):
    """Ten steps of AdamW: the losses' largest difference."""
    a = told["adamw"]
    options = [f"learning_rate={a['lr']}", f"weight_decay={a['weight_decay']}", f"max_grad_norm={a['max_grad_norm']}",
               "lr_scheduler_type=constant", f"adam_beta1={a['betas'][0]}", f"adam_beta2={a['betas'][1]}",
               f"adam_epsilon={a['eps']}", "bf16=false"]
    found = probe(trainer, model, batch, out, device, options + keys, steps=len(a["loss"]))
    wanted = torch.tensor(a["loss"], dtype=torch.float64)
    error = ((found["step_loss"].double() - wanted).abs() / wanted).max().item()
    return f"steps: {error:.1e}" + ("" if error <= 1e-4 else " BAD")


sys.exit(main())
