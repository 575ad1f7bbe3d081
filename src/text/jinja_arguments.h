// Arguments of filters and methods, checked against the parameters that Python gives them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "jinja_value.h"

namespace octet::text::jinja {

/// Parameters of a filter or method, separated by commas. "..." at the end: any more.
struct Signature {
  std::string_view name, parameters;
};

/// Null for a name that `signatures` lack.
template <class Signatures>
const Signature* find_signature(const Signatures& signatures, std::string_view name) {
  for (const Signature& one : signatures) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

/// Throws Error for more values than there are parameters, and for a name that is none of them.
void require_parameters(const Signature& signature, const Call& call);

/// The argument at this place or of this name, else `fallback`.
Value argument(const Call& call, std::size_t place, const std::string& name, Value fallback = {});
/// The same for a str; nothing if it is absent or None. Throws Error for another type.
std::optional<std::string> text_argument(const Call& call, std::size_t place, const std::string& name);
/// The same for an int; `fallback` if it is absent or None.
std::int64_t int_argument(const Call& call, std::size_t place, const std::string& name,
                          std::int64_t fallback);

/// The str of a value. Throws Error for another type.
const std::string& text_of(const Value& value);

/// A method of a str as a function, or undefined for a name that is none. Throws Error for a method of Python
/// that is not built.
Value text_method(const std::string& text, const std::string& name, Budget& budget);
/// A filter that writes text; nothing for a name that is none.
std::optional<Value> text_filter(const std::string& name, const Value& value, const Call& call,
                                 Budget& budget);
/// str.replace with at most `most` replacements; all if `most` is below 0.
std::string replaced(const std::string& text, const std::string& from, const std::string& to,
                     std::int64_t most, Budget& budget);

}  // namespace octet::text::jinja
