"""Safetensors files as dictionaries of numpy arrays; bf16 comes back as float32."""
import json
import struct

import numpy

TYPES = {"F64": numpy.float64, "F32": numpy.float32, "F16": numpy.float16, "I64": numpy.int64, "I16": numpy.int16,
         "I32": numpy.int32, "U8": numpy.uint8}


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":
            bits = numpy.frombuffer(data[begin:end], numpy.uint16).astype(numpy.uint32) << 16
            values = bits.view(numpy.float32)
        else:
            values = numpy.frombuffer(data[begin:end], TYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def to_bf16(values):
    """Bits, rounded to nearest even; the values are finite."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def write_safetensors(path, tensors, bf16=False):
    names = {numpy.dtype(kind): name for name, kind in TYPES.items()}
    header, offset = {}, 0
    if bf16:
        names[numpy.dtype(numpy.uint16)] = "BF16"
        tensors = {name: to_bf16(values) for name, values in tensors.items()}
    for name, values in tensors.items():
        header[name] = {"dtype": names[values.dtype], "shape": list(values.shape),
                        "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(numpy.ascontiguousarray(values).tobytes())
