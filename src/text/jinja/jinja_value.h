// Values of Jinja expressions, with Python's rules.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "octet/base/json_fwd.h"

namespace octet::text::jinja {

struct Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;
/// Evaluated arguments of a call.
struct Call {
  List places;
  Dict names;
};
using Function = std::function<Value(const Call&)>;

struct Undefined {};
struct None {};

/// An ordered collection other than a list. Python prints and compares it differently.
struct Sequence {
  enum class Kind {
    tuple,
    view,  ///< of a dict: dict_items, dict_keys, dict_values
    range
  };
  Kind kind = Kind::tuple;
  std::string name;  ///< name of a view; printed form of a range
  std::shared_ptr<const List> items;
};

struct Value {
  std::variant<Undefined, None, bool, std::int64_t, double, std::string, std::shared_ptr<List>,
               std::shared_ptr<Dict>, std::shared_ptr<Function>, Sequence>
      data;

  Value() = default;
  template <class T>
  explicit Value(T value) : data(std::move(value)) {}
  static Value list(List items) { return Value(std::make_shared<List>(std::move(items))); }
  static Value tuple(List items) { return sequence(Sequence::Kind::tuple, "", std::move(items)); }
  static Value sequence(Sequence::Kind kind, std::string name, List items) {
    return Value(Sequence{kind, std::move(name), std::make_shared<const List>(std::move(items))});
  }
  static Value dict(Dict items) { return Value(std::make_shared<Dict>(std::move(items))); }
  static Value text(std::string_view text) { return Value(std::string(text)); }
  static Value none() { return Value(None{}); }
  static Value from_json(const Json& json);

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data);
  }
  const std::string* as_text() const { return get<std::string>(); }
  /// Returns the items of a list or of a Sequence.
  const List* as_list() const;
  bool is_tuple() const;
  Dict* as_dict() const;
  bool undefined() const { return std::holds_alternative<Undefined>(data); }
  bool is_none() const { return std::holds_alternative<None>(data); }
  bool number() const;
  double as_double() const;

  /// Whether both are lists, or both are tuples.
  bool same_sequence(const Value& other) const;
  /// Returns the truth value in Python.
  bool truth() const;
  /// Returns a member of a dict; undefined if there is none.
  Value member(const std::string& name) const;
  bool operator==(const Value& other) const;
  /// Returns the text that Python's str() gives.
  std::string print() const;
  /// Returns the text of json.dumps with transformers' settings. A negative indent means one line.
  std::string to_json(int indent) const;
  const char* type() const;
};

/// Bounds the work of a rendering. Throws Error beyond the limits.
class Budget {
 public:
  void step();
  void bytes(std::size_t count);

 private:
  std::int64_t steps_ = 0, bytes_ = 0;
};

/// Returns a deep copy. Items of lists and dicts are copies, so no value can contain itself. Throws Error for
/// values nested too deeply.
Value snapshot(const Value& value, Budget& budget, int depth = 0);

/// Filters, tests, methods of values and global functions. Throw Error for names that are not known.
Value apply_filter(const std::string& name, const Value& value, const Call& call, Budget& budget);
bool apply_test(const std::string& name, const Value& value, const Call& call);
/// Returns a method of a value as a function, or undefined.
Value method_of(const Value& value, const std::string& name, Budget& budget);
/// Returns the global function of this name: range, namespace, dict, raise_exception or strftime_now.
/// Undefined for other names.
Value global(const std::string& name, Budget& budget);
/// Evaluates "a word b" for the arithmetic operators, comparisons, `in` and ~.
Value operate(const std::string& word, const Value& a, const Value& b, Budget& budget);
/// Returns the items that a loop visits: items of lists and sequences, keys of dicts, characters of texts.
List items_of(const Value& value);

}  // namespace octet::text::jinja
