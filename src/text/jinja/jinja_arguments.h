// Arguments of filters and methods, checked against the parameters of the Python function.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "jinja/jinja_value.h"

namespace octet::text::jinja {

/// Parameters of a filter or method, separated by commas. "..." at the end allows any further arguments.
struct Signature {
  std::string_view name, parameters;
};

/// Returns null if `signatures` lack the name.
template <class Signatures>
const Signature* find_signature(const Signatures& signatures, std::string_view name) {
  for (const Signature& one : signatures) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

/// Throws Error for too many positional arguments, and for an unknown argument name.
void require_parameters(const Signature& signature, const Call& call);

/// Returns the argument at this position or with this name, otherwise `fallback`.
Value argument(const Call& call, std::size_t place, const std::string& name, Value fallback = {});
/// Like argument(), for a str; nothing if it is absent or None. Throws Error for another type.
std::optional<std::string> text_argument(const Call& call, std::size_t place, const std::string& name);
/// Like argument(), for an int; `fallback` if it is absent or None.
std::int64_t int_argument(const Call& call, std::size_t place, const std::string& name,
                          std::int64_t fallback);

/// Returns the str of a value. Throws Error for another type.
const std::string& text_of(const Value& value);

/// Returns a method of a str as a function, or undefined for an unknown name. Throws Error for a method of
/// Python that is not supported.
Value text_method(const std::string& text, const std::string& name, Budget& budget);
/// Applies a filter that returns text; nothing for an unknown name.
std::optional<Value> text_filter(const std::string& name, const Value& value, const Call& call,
                                 Budget& budget);
/// Returns the result of str.replace with at most `most` replacements. No limit if `most` is negative.
std::string replaced(const std::string& text, const std::string& from, const std::string& to,
                     std::int64_t most, Budget& budget);

}  // namespace octet::text::jinja
