"""Writes unicode_tables.cc. Needs `pip install unicodedata2==16.*`; the output is committed.

The regexes of tokenizer files are read with Unicode 16. NFC is that of Unicode 9, the version which the
reference implementation of tokenizer files normalises with: characters with a combining class or a
canonical decomposition that came after 9.0 count as starters without decomposition.
"""

import sys

import unicodedata2 as ucd

# Characters of Unicode 16 with a combining class or a canonical decomposition that 9.0 lacks.
AFTER_9 = [
    (0x7FD, 0x7FD), (0x897, 0x89F), (0x8CA, 0x8D3), (0x9FE, 0x9FE), (0xC3C, 0xC3C), (0xD3B, 0xD3C),
    (0xEBA, 0xEBA), (0x1715, 0x1715), (0x1ABF, 0x1ACE), (0x1DF6, 0x1DFA), (0xA82C, 0xA82C),
    (0x105C9, 0x105C9), (0x105E4, 0x105E4), (0x10D24, 0x10D27), (0x10D69, 0x10D6D), (0x10EAB, 0x10EAC),
    (0x10EFD, 0x10EFF), (0x10F46, 0x10F50), (0x10F82, 0x10F85), (0x11070, 0x11070), (0x1133B, 0x1133B),
    (0x11383, 0x11383), (0x11385, 0x11385), (0x1138E, 0x1138E), (0x11391, 0x11391), (0x113C5, 0x113C5),
    (0x113C7, 0x113C8), (0x113CE, 0x113D0), (0x1145E, 0x1145E), (0x11839, 0x1183A), (0x11938, 0x11938),
    (0x1193D, 0x1193E), (0x11943, 0x11943), (0x119E0, 0x119E0), (0x11A34, 0x11A34), (0x11A47, 0x11A47),
    (0x11A99, 0x11A99), (0x11D42, 0x11D42), (0x11D44, 0x11D45), (0x11D97, 0x11D97), (0x11F41, 0x11F42),
    (0x16121, 0x16128), (0x1612F, 0x1612F), (0x16D68, 0x16D6A), (0x16FF0, 0x16FF1), (0x1E08F, 0x1E08F),
    (0x1E130, 0x1E136), (0x1E2AE, 0x1E2AE), (0x1E2EC, 0x1E2EF), (0x1E4EC, 0x1E4EF), (0x1E5EE, 0x1E5EF),
]

# The order of enum Category in unicode.h.
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()


def in_9(code):
    return not any(low <= code <= high for low, high in AFTER_9)


def rows(values, per_line):
    out = []
    for i in range(0, len(values), per_line):
        out.append("    " + ", ".join(values[i : i + per_line]) + ",")
    return "\n".join(out)


def main():
    assert ucd.unidata_version == "16.0.0", ucd.unidata_version
    runs, previous = [], None
    for code in range(0x110000):
        category = CATEGORIES.index(ucd.category(chr(code)))
        if category != previous:
            runs.append(f"0x{code << 8 | category:X}")
            previous = category
    classes = []
    for code in range(0x110000):
        value = ucd.combining(chr(code)) if in_9(code) else 0
        if value and classes and classes[-1][1] == code - 1 and classes[-1][2] == value:
            classes[-1][1] = code
        elif value:
            classes.append([code, code, value])
    decompositions = []
    for code in range(0x110000):
        text = ucd.decomposition(chr(code))
        if not text or text.startswith("<") or not in_9(code):
            continue
        parts = [int(p, 16) for p in text.split()]
        composes = len(parts) == 2 and ucd.normalize("NFC", "".join(map(chr, parts))) == chr(code)
        parts += [0] * (2 - len(parts))
        decompositions.append(f"{{0x{code:X}, 0x{parts[0]:X}, 0x{parts[1]:X}, {int(composes)}}}")
    out = f"""// Written by make_unicode_tables.py. Do not edit.
#include "unicode/unicode.h"

// clang-format off
namespace octet::text {{
namespace {{

// Runs of one general category of Unicode 16: first code point << 8 | category.
constexpr std::uint32_t kCategoryRuns[] = {{
{rows(runs, 10)}
}};

constexpr CombiningRun kCombiningRuns[] = {{
{rows([f"{{0x{a:X}, 0x{b:X}, {c}}}" for a, b, c in classes], 5)}
}};

constexpr Decomposition kDecompositions[] = {{
{rows(decompositions, 4)}
}};

}}  // namespace

std::span<const std::uint32_t> category_runs() {{ return kCategoryRuns; }}
std::span<const CombiningRun> combining_runs() {{ return kCombiningRuns; }}
std::span<const Decomposition> decompositions() {{ return kDecompositions; }}

}}  // namespace octet::text
"""
    with open(sys.argv[1] if len(sys.argv) > 1 else "unicode_tables.cc", "w") as file:
        file.write(out)


main()
