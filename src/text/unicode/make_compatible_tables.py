"""Writes compatible_tables.cc. Needs `pip install tokenizers==0.23.3`; the output is committed.

The decompositions come from NFKD of the reference implementation of tokenizer files (Unicode 9). Characters with an equal NFD
are left out.
"""

import sys

from tokenizers.normalizers import NFD, NFKD


def rows(values, per_line):
    return "\n".join("    " + ", ".join(values[i:i + per_line]) + "," for i in range(0, len(values), per_line))


def main():
    nfd, nfkd = NFD(), NFKD()
    runs, texts = [], []
    for code in range(0x80, 0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        to = nfkd.normalize_str(chr(code))
        if to == nfd.normalize_str(chr(code)):
            continue
        if len(to) > 1:
            escapes = "".join(f"\\x{ord(c):X}" for c in to)
            texts.append(f'{{0x{code:X}, U"{escapes}"}}')
        elif runs and runs[-1][1] == code - 1 and runs[-1][2] + code - runs[-1][0] == ord(to):
            runs[-1][1] = code
        else:
            runs.append([code, code, ord(to)])
    out = f"""// Written by make_compatible_tables.py. Do not edit.
#include "unicode/normal_forms.h"

// clang-format off
namespace octet::text {{
namespace {{

struct CompatibleRun {{
  std::uint32_t first, last, to;
}};

// The n-th code point of [first, last] becomes the code point `to` + n.
constexpr CompatibleRun kCompatibleRuns[] = {{
{rows([f"{{0x{a:X}, 0x{b:X}, 0x{c:X}}}" for a, b, c in runs], 5)}
}};

struct CompatibleText {{
  std::uint32_t code;
  std::u32string_view to;
}};

constexpr CompatibleText kCompatibleTexts[] = {{
{rows(texts, 5)}
}};

}}  // namespace

void each_compatible(const std::function<void(std::uint32_t, std::u32string_view)>& use) {{
  for (const CompatibleRun& run : kCompatibleRuns) {{
    for (std::uint32_t code = run.first; code <= run.last; ++code) {{
      const char32_t to = run.to + (code - run.first);
      use(code, {{&to, 1}});
    }}
  }}
  for (const CompatibleText& one : kCompatibleTexts) use(one.code, one.to);
}}

}}  // namespace octet::text
"""
    with open(sys.argv[1] if len(sys.argv) > 1 else "compatible_tables.cc", "w") as file:
        file.write(out)


main()
