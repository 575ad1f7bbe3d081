// Builder of the table of keys. Each fields_*.cc adds one or more groups.
#pragma once

#include <optional>
#include <type_traits>

#include "octet/config/key_table.h"

namespace octet::config {

template <class T>
struct KindOf;
template <>
struct KindOf<bool> {
  static constexpr Kind kind = Kind::boolean;
};
template <>
struct KindOf<std::int64_t> {
  static constexpr Kind kind = Kind::integer;
};
template <>
struct KindOf<double> {
  static constexpr Kind kind = Kind::number;
};
template <>
struct KindOf<std::string> {
  static constexpr Kind kind = Kind::text;
};
template <>
struct KindOf<Strings> {
  static constexpr Kind kind = Kind::list;
};
template <>
struct KindOf<Arguments> {
  static constexpr Kind kind = Kind::arguments;
};

class Table {
 public:
  void group(std::string name) { group_ = std::move(name); }

  /// Adds a key that the program reads.
  template <class T, class Keys>
  Field& used(const char* name, T Keys::*member, const char* doc) {
    Field& field = add(name, KindOf<T>::kind, doc);
    field.member = member;
    return field;
  }
  template <class T, class Keys>
  Field& used(const char* name, std::optional<T> Keys::*member, const char* doc) {
    Field& field = add(name, KindOf<T>::kind, doc);
    field.member = member;
    field.optional = true;
    return field;
  }
  /// Adds a key that is accepted and checked, without effect. The log has `note`.
  Field& noted(const char* name, Kind kind, const char* fallback, const char* note) {
    Field& field = add(name, kind, "");
    field.status = Status::noted;
    field.optional = true;
    field.fallback = fallback;
    field.reason = note;
    return field;
  }
  /// Adds a key with only harmless accepted values (and null).
  Field& refused(const char* name, Kind kind, Strings harmless, const char* reason) {
    Field& field = add(name, kind, "");
    field.status = Status::refused;
    field.optional = true;
    field.fallback = harmless.empty() ? "null" : harmless.front();
    field.harmless = std::move(harmless);
    field.reason = reason;
    return field;
  }
  std::vector<Field> take() { return std::move(fields_); }

 private:
  Field& add(const char* name, Kind kind, const char* doc) {
    Field field;
    field.name = name;
    field.group = group_;
    field.kind = kind;
    field.doc = doc;
    fields_.push_back(std::move(field));
    return fields_.back();
  }
  std::string group_;
  std::vector<Field> fields_;
};

void add_model_and_data_fields(Table& table);
void add_training_fields(Table& table);
void add_loss_fields(Table& table);
void add_machine_fields(Table& table);
void add_check_fields(Table& table);
void add_foreign_fields(Table& table);

}  // namespace octet::config
