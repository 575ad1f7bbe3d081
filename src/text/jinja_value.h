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
/// Arguments of a call that are evaluated.
struct Call {
  List places;
  Dict names;
};
using Function = std::function<Value(const Call&)>;

struct Undefined {};
struct None {};

/// Items in an order that are no list: Python prints and compares them in another way.
struct Sequence {
  enum class Kind {
    tuple,
    view,  ///< of a dict: dict_items, dict_keys, dict_values
    range
  };
  Kind kind = Kind::tuple;
  std::string name;  ///< of a view; a range as Python prints it
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
  /// Items of a list or of a Sequence.
  const List* as_list() const;
  bool is_tuple() const;
  Dict* as_dict() const;
  bool undefined() const { return std::holds_alternative<Undefined>(data); }
  bool is_none() const { return std::holds_alternative<None>(data); }
  bool number() const;
  double as_double() const;

  /// Both are lists, or both are tuples.
  bool same_sequence(const Value& other) const;
  /// Python's truth.
  bool truth() const;
  /// Member of a dict; undefined when there is none.
  Value member(const std::string& name) const;
  bool operator==(const Value& other) const;
  /// As Python prints it.
  std::string print() const;
  /// As json.dumps writes it, with transformers' settings; indent below 0: on one line.
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

/// A copy that shares nothing: what is put into lists and dicts, so that none ever holds itself. Throws Error
/// for values nested too deeply.
Value snapshot(const Value& value, Budget& budget, int depth = 0);

/// Filters, tests, methods of values and global functions. Throw Error for names that are not known.
Value apply_filter(const std::string& name, const Value& value, const Call& call, Budget& budget);
bool apply_test(const std::string& name, const Value& value, const Call& call);
/// A method of a value as a function, or undefined.
Value method_of(const Value& value, const std::string& name, Budget& budget);
/// range, namespace, dict, raise_exception, strftime_now; undefined for other names.
Value global(const std::string& name, Budget& budget);
/// a word b for the arithmetic operators, comparisons, in and ~.
Value operate(const std::string& word, const Value& a, const Value& b, Budget& budget);
/// Items that a loop goes through: of lists and sequences, keys of dicts, characters of texts.
List items_of(const Value& value);

}  // namespace octet::text::jinja
