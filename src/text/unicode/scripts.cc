#include "unicode/scripts.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace octet::text {
namespace {

/// Long names of general categories, in lower case without underscores.
struct CategoryName {
  std::string_view name, category;
};

constexpr CategoryName kCategories[] = {{"letter", "L"},
                                        {"uppercaseletter", "Lu"},
                                        {"lowercaseletter", "Ll"},
                                        {"titlecaseletter", "Lt"},
                                        {"modifierletter", "Lm"},
                                        {"otherletter", "Lo"},
                                        {"mark", "M"},
                                        {"nonspacingmark", "Mn"},
                                        {"spacingmark", "Mc"},
                                        {"enclosingmark", "Me"},
                                        {"number", "N"},
                                        {"decimalnumber", "Nd"},
                                        {"letternumber", "Nl"},
                                        {"othernumber", "No"},
                                        {"punctuation", "P"},
                                        {"connectorpunctuation", "Pc"},
                                        {"dashpunctuation", "Pd"},
                                        {"openpunctuation", "Ps"},
                                        {"closepunctuation", "Pe"},
                                        {"initialpunctuation", "Pi"},
                                        {"finalpunctuation", "Pf"},
                                        {"otherpunctuation", "Po"},
                                        {"symbol", "S"},
                                        {"mathsymbol", "Sm"},
                                        {"currencysymbol", "Sc"},
                                        {"modifiersymbol", "Sk"},
                                        {"othersymbol", "So"},
                                        {"separator", "Z"},
                                        {"spaceseparator", "Zs"},
                                        {"lineseparator", "Zl"},
                                        {"paragraphseparator", "Zp"},
                                        {"other", "C"},
                                        {"control", "Cc"},
                                        {"format", "Cf"},
                                        {"surrogate", "Cs"},
                                        {"privateuse", "Co"},
                                        {"unassigned", "Cn"}};

/// Returns the name in lower case without blanks, hyphens and underscores.
std::string plain_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') continue;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

/// Returns the mask of a general category by its short or long name; 0 if unknown.
std::uint32_t named_category(std::string name) {
  for (const CategoryName& one : kCategories) {
    if (one.name == name) return category_mask(one.category);
  }
  if (name.empty() || name.size() > 2) return 0;
  if (name[0] >= 'a' && name[0] <= 'z') name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return category_mask(name);
}

/// Returns the number of a script by name; 0 if unknown.
std::uint8_t named_script(std::string_view name) {
  const auto names = script_names();
  const auto found =
      std::ranges::find_if(names, [&](const ScriptName& s) { return s.name == name || s.code == name; });
  return found == names.end() ? 0 : static_cast<std::uint8_t>(found - names.begin() + 1);
}

std::uint8_t script_of(std::uint32_t code) {
  const auto runs = script_runs();
  const auto behind = std::ranges::upper_bound(runs, code << 8 | 0xFF);
  return static_cast<std::uint8_t>(*std::prev(behind) & 0xFF);
}

}  // namespace

std::optional<Ranges> property_ranges(std::string_view name) {
  const std::string plain = plain_name(name);
  if (const std::uint32_t mask = named_category(plain)) return category_ranges(mask);
  const std::uint8_t script = named_script(plain);
  if (script == 0) return std::nullopt;
  Ranges out;
  const auto runs = script_runs();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if ((runs[i] & 0xFF) != script) continue;
    out.emplace_back(runs[i] >> 8, i + 1 < runs.size() ? (runs[i + 1] >> 8) - 1 : kMaxCodePoint);
  }
  return out;
}

std::uint8_t split_script(std::uint32_t code) {
  static const std::uint8_t han = named_script("han"), hiragana = named_script("hiragana"),
                            katakana = named_script("katakana");
  if (code == ' ') return 0;
  if (code == 0x30FC) return han;  // the sign for long vowels of Hiragana and Katakana
  const std::uint8_t script = script_of(code);
  if (script == 0) return 0;
  const auto later = later_scripts();
  const auto behind = std::ranges::upper_bound(later, code, {}, &ScriptRange::first);
  if (behind != later.begin() && code <= std::prev(behind)->last) return 0;
  return script == hiragana || script == katakana ? han : script;
}

}  // namespace octet::text
