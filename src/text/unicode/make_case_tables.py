"""Writes case_tables.cc from the tables of the Python that runs it (3.11: Unicode 14); the output is committed."""

import sys

ALL = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(test):
    out = []
    for char in ALL:
        if not test(char):
            continue
        if out and out[-1][1] == ord(char) - 1:
            out[-1][1] = ord(char)
        else:
            out.append([ord(char), ord(char)])
    return [f"{{0x{a:X}, 0x{b:X}}}" for a, b in out]


def runs(change):
    """Single code points whose mapping is one code point: first, last, step, distance."""
    out = []
    for char in ALL:
        to = change(char)
        if to == char or len(to) != 1:
            continue
        code, by = ord(char), ord(to) - ord(char)
        if out and out[-1][3] == by:
            first, last, step, _ = out[-1]
            if first == last and code - last <= 2:
                out[-1] = [first, code, code - last, by]
                continue
            if first != last and code - last == step:
                out[-1][1] = code
                continue
        out.append([code, code, 1, by])
    return [f"{{0x{a:X}, 0x{b:X}, {c}, {d}}}" for a, b, c, d in out]


def words(change):
    out = []
    for char in ALL:
        to = change(char)
        if len(to) > 1:
            codes = [ord(c) for c in to] + [0] * (3 - len(to))
            out.append("{0x%X, {0x%X, 0x%X, 0x%X}}" % (ord(char), *codes))
    return out


def is_cased(char):
    return char.isupper() or char.islower() or char.istitle()


def is_ignorable(char):
    """As the rule of the final sigma reads it: looked through on the way to the letter before."""
    if is_cased(char):
        return (" " + char + "\u03a3").lower()[-1] == "\u03c3"
    return ("A" + char + "\u03a3").lower()[-1] == "\u03c2"


def rows(values, per_line):
    lines = (", ".join(values[i : i + per_line]) for i in range(0, len(values), per_line))
    return "\n".join("    " + line + "," for line in lines)


def table(kind, name, values, per_line):
    return f"constexpr {kind} {name}[] = {{\n{rows(values, per_line)}\n}};\n"


def main():
    parts = []
    for name, change in [("Upper", str.upper), ("Lower", str.lower), ("Title", str.title)]:
        parts.append(table("CaseRun", f"k{name}Runs", runs(change), 5))
        parts.append(table("CaseWord", f"k{name}Words", words(change), 4))
    properties = [
        ("UpperCase", str.isupper),
        ("LowerCase", str.islower),
        ("TitleCase", lambda c: c.istitle() and not c.isupper()),
        ("Ignorable", is_ignorable),
        ("Digit", str.isdigit),
        ("Numeric", str.isnumeric),
    ]
    for name, test in properties:
        parts.append(table("CodeRange", f"k{name}", ranges(test), 6))
    body = "\n".join(parts)
    out = f"""// Written by make_case_tables.py. Do not edit.
#include "unicode/case_tables.h"

// clang-format off
namespace octet::text {{
namespace {{

{body}
}}  // namespace

const CaseTables& case_tables() {{
  static constexpr CaseTables tables{{
      {{kUpperRuns, kUpperWords}}, {{kLowerRuns, kLowerWords}}, {{kTitleRuns, kTitleWords}},
      kUpperCase, kLowerCase, kTitleCase, kIgnorable, kDigit, kNumeric}};
  return tables;
}}

}}  // namespace octet::text
"""
    with open(sys.argv[1] if len(sys.argv) > 1 else "case_tables.cc", "w") as file:
        file.write(out)


main()
