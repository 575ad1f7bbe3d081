#include "jinja/python_text.h"

#include <algorithm>
#include <array>

#include "unicode/case_tables.h"
#include "unicode/unicode.h"
#include "unicode/utf8.h"

namespace octet::text::python {
namespace {

constexpr std::uint32_t kSigma = 0x3A3;
/// Offset of the code for a byte that is not UTF-8.
constexpr std::uint32_t kByte = 0x40000000;

using Codes = std::vector<std::uint32_t>;

/// Returns the first character of the non-empty `text`, and its length in bytes.
std::uint32_t first_code(std::string_view text, std::size_t& length) {
  const Utf8Step step = utf8_step(text.substr(0, 4));
  length = step.valid ? step.size : 1;
  return step.valid ? utf8_at(text.data()) : kByte + static_cast<unsigned char>(text[0]);
}

Codes decode(std::string_view text) {
  Codes out;
  out.reserve(text.size());
  for (std::size_t at = 0, length = 0; at < text.size(); at += length)
    out.push_back(first_code(text.substr(at), length));
  return out;
}

void append(std::string& out, std::uint32_t code) {
  if (code >= kByte) {
    out += static_cast<char>(code - kByte);
  } else {
    utf8_append(out, code);
  }
}

std::string encode(const Codes& codes) {
  std::string out;
  for (const std::uint32_t code : codes) append(out, code);
  return out;
}

/// Returns the length in bytes of the last character of the non-empty `text`.
std::size_t last_length(std::string_view text) {
  for (std::size_t size = std::min<std::size_t>(4, text.size()); size > 1; --size) {
    const Utf8Step step = utf8_step(text.substr(text.size() - size));
    if (step.valid && step.size == size) return size;
  }
  return 1;
}

template <class Drops>
std::string_view strip_while(std::string_view text, bool left, bool right, const Drops& drops) {
  std::size_t length = 0;
  while (left && !text.empty() && drops(first_code(text, length))) text.remove_prefix(length);
  while (right && !text.empty()) {
    const std::string_view last = text.substr(text.size() - last_length(text));
    if (!drops(first_code(last, length))) break;
    text.remove_suffix(last.size());
  }
  return text;
}

bool within(std::span<const CodeRange> ranges, std::uint32_t code) {
  const auto behind = std::ranges::upper_bound(ranges, code, {}, &CodeRange::first);
  return behind != ranges.begin() && code <= std::prev(behind)->last;
}

bool is_cased(std::uint32_t code) {
  const CaseTables& t = case_tables();
  return within(t.is_upper, code) || within(t.is_lower, code) || within(t.is_title, code);
}

void map_to(const CaseMap& map, std::uint32_t code, Codes& out) {
  const auto word = std::ranges::lower_bound(map.words, code, {}, &CaseWord::code);
  if (word != map.words.end() && word->code == code) {
    for (const std::uint32_t to : word->to) {
      if (to != 0) out.push_back(to);
    }
    return;
  }
  const auto behind = std::ranges::upper_bound(map.runs, code, {}, &CaseRun::first);
  if (behind != map.runs.begin()) {
    const CaseRun& run = *std::prev(behind);
    if (code <= run.last && (code - run.first) % run.step == 0)
      code = static_cast<std::uint32_t>(static_cast<std::int64_t>(code) + run.distance);
  }
  out.push_back(code);
}

/// A sigma at the end of a word has another lower-case form.
bool is_final_sigma(const Codes& text, std::size_t at) {
  const auto ignorable = [&](std::size_t i) { return within(case_tables().is_ignorable, text[i]); };
  std::size_t before = at;
  while (before > 0 && ignorable(before - 1)) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  std::size_t behind = at + 1;
  while (behind < text.size() && ignorable(behind)) ++behind;
  return behind == text.size() || !is_cased(text[behind]);
}

void to_lower(const Codes& text, std::size_t at, Codes& out) {
  if (text[at] != kSigma) return map_to(case_tables().lower, text[at], out);
  out.push_back(is_final_sigma(text, at) ? 0x3C2 : 0x3C3);
}

std::string mapped(const CaseMap& map, std::string_view text) {
  Codes out;
  for (const std::uint32_t code : decode(text)) map_to(map, code, out);
  return encode(out);
}

const CharSet& letters() {
  static const CharSet set(category_ranges(category_mask("L")));
  return set;
}
const CharSet& decimals() {
  static const CharSet set(category_ranges(category_mask("Nd")));
  return set;
}
const CharSet& unprintable() {
  static const CharSet set(category_ranges(category_mask("C") | category_mask("Z")));
  return set;
}
bool printable(std::uint32_t code) {
  return code == ' ' || (code < kByte && !unprintable().contains(code));
}
bool is_letter(std::uint32_t code) {
  return code < kByte && letters().contains(code);
}
bool is_decimal(std::uint32_t code) {
  return code < kByte && decimals().contains(code);
}
bool is_alphanumeric(std::uint32_t code) {
  return is_letter(code) || is_decimal(code) || within(case_tables().is_digit, code) ||
         within(case_tables().is_numeric, code);
}

/// str.isupper (`wanted`: upper) and str.islower: at least one wanted code point, and no other cased one.
bool all_cased(const Codes& text, std::span<const CodeRange> wanted, std::span<const CodeRange> other) {
  bool any = false;
  for (const std::uint32_t code : text) {
    if (within(other, code) || within(case_tables().is_title, code)) return false;
    any |= within(wanted, code);
  }
  return any;
}

bool is_titled(const Codes& text) {
  const CaseTables& t = case_tables();
  bool any = false, inside = false;
  for (const std::uint32_t code : text) {
    const bool begins = within(t.is_upper, code) || within(t.is_title, code);
    const bool goes_on = !begins && within(t.is_lower, code);
    if ((begins && inside) || (goes_on && !inside)) return false;
    any |= begins || goes_on;
    inside = begins || goes_on;
  }
  return any;
}

bool ends_line(std::uint32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

std::vector<std::string> split_at_blanks(std::string_view text, std::int64_t most) {
  std::vector<std::string> out;
  for (;;) {
    text = strip(text, true, false);
    if (text.empty()) return out;
    if (most >= 0 && static_cast<std::int64_t>(out.size()) >= most) break;
    std::size_t end = 0;
    for (std::size_t length = 0; end < text.size(); end += length) {
      if (is_space(first_code(text.substr(end), length))) break;
    }
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  out.emplace_back(text);
  return out;
}

std::vector<std::string> split_at_blanks_from_right(std::string_view text, std::int64_t most) {
  std::vector<std::string> out;
  for (;;) {
    text = strip(text, false, true);
    if (text.empty()) break;
    if (most >= 0 && static_cast<std::int64_t>(out.size()) >= most) {
      out.emplace_back(text);
      break;
    }
    std::size_t begin = text.size(), length = 0;
    while (begin > 0) {
      const std::size_t size = last_length(text.substr(0, begin));
      if (is_space(first_code(text.substr(begin - size), length))) break;
      begin -= size;
    }
    out.emplace_back(text.substr(begin));
    text = text.substr(0, begin);
  }
  std::ranges::reverse(out);
  return out;
}

}  // namespace

bool is_space(std::uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

std::string_view strip(std::string_view text, bool left, bool right) {
  return strip_while(text, left, right, is_space);
}

std::string_view strip(std::string_view text, std::string_view chars, bool left, bool right) {
  const Codes dropped = decode(chars);
  return strip_while(text, left, right,
                     [&](std::uint32_t code) { return std::ranges::find(dropped, code) != dropped.end(); });
}

std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator,
                               std::int64_t most, bool from_right) {
  if (!separator) return from_right ? split_at_blanks_from_right(text, most) : split_at_blanks(text, most);
  std::vector<std::string> out;
  const auto may = [&] { return most < 0 || static_cast<std::int64_t>(out.size()) < most; };
  while (may()) {
    const std::size_t at = from_right ? text.rfind(*separator) : text.find(*separator);
    if (at == std::string_view::npos) break;
    const std::string_view behind = text.substr(at + separator->size()), before = text.substr(0, at);
    out.emplace_back(from_right ? behind : before);
    text = from_right ? before : behind;
  }
  out.emplace_back(text);
  if (from_right) std::ranges::reverse(out);
  return out;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> out;
  std::size_t begin = 0, length = 0;
  for (std::size_t at = 0; at < text.size(); at += length) {
    if (!ends_line(first_code(text.substr(at), length))) continue;
    if (text.substr(at).starts_with("\r\n")) length = 2;
    out.emplace_back(text.substr(begin, at - begin + (keep_ends ? length : 0)));
    begin = at + length;
  }
  if (begin < text.size()) out.emplace_back(text.substr(begin));
  return out;
}

std::string upper(std::string_view text) {
  return mapped(case_tables().upper, text);
}

std::string lower(std::string_view text) {
  const Codes in = decode(text);
  Codes out;
  for (std::size_t i = 0; i < in.size(); ++i) to_lower(in, i, out);
  return encode(out);
}

std::string title(std::string_view text) {
  const Codes in = decode(text);
  Codes out;
  bool inside = false;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (inside) {
      to_lower(in, i, out);
    } else {
      map_to(case_tables().title, in[i], out);
    }
    inside = is_cased(in[i]);
  }
  return encode(out);
}

std::string capitalize(std::string_view text) {
  const Codes in = decode(text);
  Codes out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (i > 0) {
      to_lower(in, i, out);
    } else {
      map_to(case_tables().title, in[i], out);
    }
  }
  return encode(out);
}

std::string swap_case(std::string_view text) {
  const Codes in = decode(text);
  Codes out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (within(case_tables().is_upper, in[i])) {
      to_lower(in, i, out);
    } else if (within(case_tables().is_lower, in[i])) {
      map_to(case_tables().upper, in[i], out);
    } else {
      out.push_back(in[i]);
    }
  }
  return encode(out);
}

std::optional<bool> is(std::string_view predicate, std::string_view text) {
  const CaseTables& t = case_tables();
  const Codes codes = decode(text);
  const auto all = [&](const auto& test) { return !codes.empty() && std::ranges::all_of(codes, test); };
  if (predicate == "isspace") return all(is_space);
  if (predicate == "isalpha") return all(is_letter);
  if (predicate == "isdecimal") return all(is_decimal);
  if (predicate == "isdigit") return all([&](std::uint32_t code) { return within(t.is_digit, code); });
  if (predicate == "isnumeric") return all([&](std::uint32_t code) { return within(t.is_numeric, code); });
  if (predicate == "isalnum") return all(is_alphanumeric);
  if (predicate == "isascii") return codes.empty() || all([](std::uint32_t code) { return code < 128; });
  if (predicate == "isprintable") return codes.empty() || all(printable);
  if (predicate == "isupper") return all_cased(codes, t.is_upper, t.is_lower);
  if (predicate == "islower") return all_cased(codes, t.is_lower, t.is_upper);
  if (predicate == "istitle") return is_titled(codes);
  return std::nullopt;
}

std::int64_t length(std::string_view text) {
  std::int64_t count = 0;
  for (std::size_t at = 0, size = 0; at < text.size(); at += size, ++count) first_code(text.substr(at), size);
  return count;
}

std::string_view slice(std::string_view text, std::int64_t begin, std::int64_t end) {
  if (begin < 0 || end < 0) {
    const std::int64_t count = length(text);
    if (begin < 0) begin = std::max<std::int64_t>(0, begin + count);
    if (end < 0) end = std::max<std::int64_t>(0, end + count);
  }
  std::size_t at = 0, size = 0, from = text.size(), to = text.size();
  for (std::int64_t i = 0; at < text.size() || i == begin || i == end; ++i, at += size) {
    if (i == begin) from = at;
    if (i == end) to = at;
    if (at >= text.size() || i >= end) break;
    first_code(text.substr(at), size);
  }
  return from < to ? text.substr(from, to - from) : std::string_view();
}

std::string pad(std::string_view text, std::int64_t width, std::string_view fill, Side side) {
  const std::int64_t missing = width - length(text);
  std::string out(text);
  if (missing <= 0) return out;
  const std::int64_t front = side == Side::left    ? missing
                             : side == Side::right ? 0
                                                   : missing / 2 + (missing & width & 1);
  std::string before;
  for (std::int64_t i = 0; i < front; ++i) before += fill;
  for (std::int64_t i = front; i < missing; ++i) out += fill;
  return before + out;
}

std::string zero_fill(std::string_view text, std::int64_t width) {
  const bool sign = text.starts_with('+') || text.starts_with('-');
  const std::string_view digits = text.substr(sign ? 1 : 0);
  return std::string(text.substr(0, sign ? 1 : 0)) + pad(digits, width - (sign ? 1 : 0), "0", Side::left);
}

std::string expand_tabs(std::string_view text, std::int64_t size) {
  std::string out;
  std::int64_t column = 0;
  for (const std::uint32_t code : decode(text)) {
    if (code == '\t') {
      const std::int64_t blanks = size > 0 ? size - column % size : 0;
      out.append(static_cast<std::size_t>(blanks), ' ');
      column += blanks;
    } else {
      append(out, code);
      column = code == '\n' || code == '\r' ? 0 : column + 1;
    }
  }
  return out;
}

std::string ascii_digits(std::string_view text) {
  std::string out;
  for (const std::uint32_t code : decode(text)) {
    const Ranges& ranges = decimals().ranges();
    const auto behind = std::ranges::upper_bound(ranges, code, {}, &Ranges::value_type::first);
    if (is_decimal(code)) {
      // The digits of a script are ten consecutive code points that begin with zero.
      out += static_cast<char>('0' + (code - std::prev(behind)->first) % 10);
    } else {
      append(out, code);
    }
  }
  return out;
}

std::string repr(std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = single ? '"' : '\'';
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out(1, quote);
  const auto escape = [&](char kind, std::uint32_t code, int digits) {
    out += '\\';
    out += kind;
    for (int i = digits - 1; i >= 0; --i) out += kDigits[code >> (4 * i) & 15];
  };
  for (const std::uint32_t code : decode(text)) {
    if (code == static_cast<unsigned char>(quote) || code == '\\') {
      out += '\\';
      append(out, code);
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else if (code >= kByte || printable(code)) {
      append(out, code);
    } else if (code < 0x100) {
      escape('x', code, 2);
    } else if (code < 0x10000) {
      escape('u', code, 4);
    } else {
      escape('U', code, 8);
    }
  }
  return out + quote;
}

}  // namespace octet::text::python
