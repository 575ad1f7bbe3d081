"""Reading and writing the references in tests/golden, and comparing two of them."""
import json
import pathlib
import unicodedata

import numpy

GOLDEN = pathlib.Path(__file__).resolve().parents[1]


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path):
    # Only \n ends a line: texts hold other line ends as they are.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def line_of(value):
    """JSON in which marks, controls, blanks other than U+0020 and what has no glyph are escaped, so that editors keep them."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def shown(c):
        if c == " " or unicodedata.category(c)[0] not in "MZC":
            return c
        return "".join(f"\\u{unit:04x}" for unit in
                       ([ord(c)] if ord(c) < 0x10000 else [0xD800 + (ord(c) - 0x10000 >> 10), 0xDC00 + (ord(c) & 0x3FF)]))

    # What json.dumps has escaped itself (\n, \t, …) is written as \u too.
    short = {"\\n": "\\u000a", "\\r": "\\u000d", "\\t": "\\u0009", "\\b": "\\u0008", "\\f": "\\u000c"}
    out, i = [], 0
    while i < len(text):
        if text[i] == "\\":
            out.append(short.get(text[i:i + 2], text[i:i + 2]))
            i += 2
        else:
            out.append(shown(text[i]))
            i += 1
    return "".join(out)


def narrowed(array):
    """Whole numbers in the smallest of the formats that the tests read, since they are small."""
    if array.dtype.kind not in "iu":
        return array
    for dtype in (numpy.uint8, numpy.int16, numpy.int32):
        limits = numpy.iinfo(dtype)
        if limits.min <= array.min() and array.max() <= limits.max:
            return array.astype(dtype)
    return array


def sampled(array, rows):
    """Row 0 and every s-th one after it of a matrix (of its last dimension), `rows` of them (tests/support/samples.h)."""
    flat = array.reshape(-1, array.shape[-1])
    if flat.shape[0] % rows:
        raise ValueError(f"{flat.shape[0]} rows cannot be sampled down to {rows}")
    return flat[::flat.shape[0] // rows]


def kept_shape(name, shape):
    """Shape of what is kept of a new tensor: a matrix of 64 rows or more keeps every 16th, logits every fourth."""
    if len(shape) == 3:
        return [shape[0], shape[1] // 4, shape[2]] if shape[1] % 4 == 0 else list(shape)
    if len(shape) == 2 and shape[0] >= 64 and shape[0] % 16 == 0:
        return [shape[0] // 16, shape[1]]
    return list(shape)


class Comparison:
    """What is found to differ between remade references and those that are there. Numbers within their bounds count as equal;
    `exact` tells those of equal bits."""

    def __init__(self):
        self.values = self.exact = 0
        self.worst = {}
        self.wrong = []

    def array(self, name, made, there, bound):
        self.values += 1
        if made.shape != there.shape:
            self.wrong.append(f"{name}: shape {made.shape}, there is {there.shape}")
            return
        if numpy.array_equal(made, there):
            self.exact += 1
            return
        made, there = made.astype(numpy.float64), there.astype(numpy.float64)
        distance = float(numpy.linalg.norm(made - there) / max(float(numpy.linalg.norm(there)), 1e-300))
        kind = name.split(" ")[-1].split(".model.")[0].split(".lm_head")[0]
        self.worst[kind] = max(self.worst.get(kind, 0.0), distance)
        if not distance <= bound:
            self.wrong.append(f"{name}: distance {distance:.3g}, bound {bound:g}")

    def equal(self, name, made, there):
        self.values += 1
        if made == there:
            self.exact += 1
        else:
            made, there = (text if len(text := repr(v)) < 200 else text[:200] + " …" for v in (made, there))
            self.wrong.append(f"{name}: made {made}, there is {there}")

    def json(self, name, made, there, bound):
        """Numbers with a point within `bound`, all else equal."""
        if isinstance(there, dict) and isinstance(made, dict):
            self.equal(name + " keys", sorted(made), sorted(there))
            for key in made.keys() & there.keys():
                self.json(f"{name}.{key}", made[key], there[key], bound)
        elif isinstance(there, list) and isinstance(made, list) and len(made) == len(there) and any(isinstance(x, float) for x in there):
            self.array(name, numpy.array(made), numpy.array(there), bound)
        elif isinstance(there, float) and isinstance(made, float):
            self.array(name, numpy.array([made]), numpy.array([there]), bound)
        else:
            self.equal(name, made, there)

    def report(self, what):
        """Prints a line and what is wrong; True when nothing is."""
        worst = ", ".join(f"{kind} {value:.1e}" for kind, value in sorted(self.worst.items()))
        print(f"{what}: {self.exact} of {self.values} equal" + (f"; the others' distances: {worst}" if worst else ""))
        for line in self.wrong[:20]:
            print("  WRONG", line)
        if len(self.wrong) > 20:
            print(f"  WRONG and {len(self.wrong) - 20} more")
        return not self.wrong
