"""Writes script_tables.cc. Needs `pip install tokenizers==0.23.3`; the output is committed.

The scripts come from \\p{Han} and the like in the reference implementation of tokenizer files (Oniguruma). Its component
UnicodeScripts has an older table. Code points that this component does not know are listed separately.
"""

import pathlib
import re
import sys

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split, UnicodeScripts

NAMES = """Common Zyyy, Inherited Zinh, Adlam Adlm, Caucasian_Albanian Aghb, Ahom Ahom, Arabic Arab, Imperial_Aramaic Armi,
Armenian Armn, Avestan Avst, Balinese Bali, Bamum Bamu, Bassa_Vah Bass, Batak Batk, Bengali Beng, Bhaiksuki Bhks,
Bopomofo Bopo, Brahmi Brah, Braille Brai, Buginese Bugi, Buhid Buhd, Chakma Cakm, Canadian_Aboriginal Cans,
Carian Cari, Cham Cham, Cherokee Cher, Chorasmian Chrs, Coptic Copt, Cypro_Minoan Cpmn, Cypriot Cprt, Cyrillic Cyrl,
Devanagari Deva, Dives_Akuru Diak, Dogra Dogr, Deseret Dsrt, Duployan Dupl, Egyptian_Hieroglyphs Egyp, Elbasan Elba,
Elymaic Elym, Ethiopic Ethi, Garay Gara, Georgian Geor, Glagolitic Glag, Gunjala_Gondi Gong, Masaram_Gondi Gonm,
Gothic Goth, Grantha Gran, Greek Grek, Gujarati Gujr, Gurung_Khema Gukh, Gurmukhi Guru, Hangul Hang, Han Hani,
Hanunoo Hano, Hatran Hatr, Hebrew Hebr, Hiragana Hira, Anatolian_Hieroglyphs Hluw, Pahawh_Hmong Hmng,
Nyiakeng_Puachue_Hmong Hmnp, Old_Hungarian Hung, Old_Italic Ital, Javanese Java, Kayah_Li Kali, Katakana Kana,
Kawi Kawi, Kharoshthi Khar, Khmer Khmr, Khojki Khoj, Kirat_Rai Krai, Khitan_Small_Script Kits, Kannada Knda,
Kaithi Kthi, Tai_Tham Lana, Lao Laoo, Latin Latn, Lepcha Lepc, Limbu Limb, Linear_A Lina, Linear_B Linb, Lisu Lisu,
Lycian Lyci, Lydian Lydi, Mahajani Mahj, Makasar Maka, Mandaic Mand, Manichaean Mani, Marchen Marc, Medefaidrin Medf,
Mende_Kikakui Mend, Meroitic_Cursive Merc, Meroitic_Hieroglyphs Mero, Malayalam Mlym, Modi Modi, Mongolian Mong,
Mro Mroo, Meetei_Mayek Mtei, Multani Mult, Myanmar Mymr, Nag_Mundari Nagm, Nandinagari Nand, Old_North_Arabian Narb,
Nabataean Nbat, Newa Newa, Nko Nkoo, Nushu Nshu, Ogham Ogam, Ol_Chiki Olck, Ol_Onal Onao, Old_Turkic Orkh, Oriya Orya,
Osage Osge, Osmanya Osma, Old_Uyghur Ougr, Palmyrene Palm, Pau_Cin_Hau Pauc, Old_Permic Perm, Phags_Pa Phag,
Inscriptional_Pahlavi Phli, Psalter_Pahlavi Phlp, Phoenician Phnx, Miao Plrd, Inscriptional_Parthian Prti,
Rejang Rjng, Hanifi_Rohingya Rohg, Runic Runr, Samaritan Samr, Old_South_Arabian Sarb, Saurashtra Saur,
SignWriting Sgnw, Shavian Shaw, Sharada Shrd, Siddham Sidd, Khudawadi Sind, Sinhala Sinh, Sogdian Sogd,
Old_Sogdian Sogo, Sora_Sompeng Sora, Soyombo Soyo, Sundanese Sund, Sunuwar Sunu, Syloti_Nagri Sylo, Syriac Syrc,
Tagbanwa Tagb, Takri Takr, Tai_Le Tale, New_Tai_Lue Talu, Tamil Taml, Tangut Tang, Tai_Viet Tavt, Telugu Telu,
Tifinagh Tfng, Tagalog Tglg, Thaana Thaa, Thai Thai, Tibetan Tibt, Tirhuta Tirh, Tangsa Tnsa, Todhri Todr, Toto Toto,
Tulu_Tigalari Tutg, Ugaritic Ugar, Vai Vaii, Vithkuqi Vith, Warang_Citi Wara, Wancho Wcho, Old_Persian Xpeo,
Cuneiform Xsux, Yezidi Yezi, Yi Yiii, Zanabazar_Square Zanb"""
HERE = pathlib.Path(__file__).resolve().parent


def assigned():
    """The code points with a category other than Cs, Co and Cn in unicode_tables.cc."""
    source = (HERE / "unicode_tables.cc").read_text()
    runs = [int(run, 16) for run in re.findall(r"0x[0-9A-F]+", source.split("kCategoryRuns[] = {")[1].split("}")[0])]
    ends = [run >> 8 for run in runs[1:]] + [0x110000]
    return [code for run, end in zip(runs, ends) if run & 0xFF < 27 for code in range(run >> 8, end)]


CODES = assigned()
TEXT = "".join(map(chr, CODES))


def codes_of(name, text=TEXT):
    """The code points of a property in a text."""
    parts = Split(Regex("\\p{" + name + "}+"), "removed", invert=True).pre_tokenize_str(text)
    return [c for part, _ in parts for c in map(ord, part)]


def tables():
    names = [tuple(pair.split()) for pair in NAMES.replace("\n", " ").split(", ")]
    scripts = [0] * 0x110000
    for number, (long_name, code_name) in enumerate(names, 1):
        codes = codes_of(long_name)
        assert codes and codes == codes_of(code_name, "".join(map(chr, codes))), long_name
        for code in codes:
            assert scripts[code] == 0, (long_name, hex(code))
            scripts[code] = number
    return names, scripts


def unknown_to_component(scripts, names):
    """Code points with a script here and none in UnicodeScripts: after a letter of another script they split nothing."""
    numbers = {name: number for number, (name, _) in enumerate(names, 1)}
    out = []
    for code in CODES:
        if scripts[code] == 0 or code == 0x20:
            continue
        before = "а" if scripts[code] == numbers["Latin"] else "a"
        if len(UnicodeScripts().pre_tokenize_str(before + chr(code))) == 1:
            if out and out[-1][1] == code - 1:
                out[-1][1] = code
            else:
                out.append([code, code])
    return out


def rows(values, per_line):
    return "\n".join("    " + ", ".join(values[i:i + per_line]) + "," for i in range(0, len(values), per_line))


def main():
    names, scripts = tables()
    runs, previous = [], None
    for code, script in enumerate(scripts):
        if script != previous:
            runs.append(f"0x{code << 8 | script:X}")
            previous = script
    plain = [f'{{"{long_name.lower().replace("_", "")}", "{code_name.lower()}"}}' for long_name, code_name in names]
    later = [f"{{0x{a:X}, 0x{b:X}}}" for a, b in unknown_to_component(scripts, names)]
    out = f"""// Written by make_script_tables.py. Do not edit.
#include "unicode/scripts.h"

// clang-format off
namespace octet::text {{
namespace {{

constexpr ScriptName kScripts[] = {{
{rows(plain, 5)}
}};

// Runs of one script: first code point << 8 | place in kScripts + 1, or 0.
constexpr std::uint32_t kScriptRuns[] = {{
{rows(runs, 10)}
}};

constexpr ScriptRange kLaterScripts[] = {{
{rows(later, 6)}
}};

}}  // namespace

std::span<const ScriptName> script_names() {{ return kScripts; }}
std::span<const std::uint32_t> script_runs() {{ return kScriptRuns; }}
std::span<const ScriptRange> later_scripts() {{ return kLaterScripts; }}

}}  // namespace octet::text
"""
    with open(sys.argv[1] if len(sys.argv) > 1 else "script_tables.cc", "w") as file:
        file.write(out)


main()
