// Shared code for dialect keys that depend on each other, whichever source each key is from.
#include "dialects/dialect_facts.h"

#include <algorithm>

namespace octet::config {

const Fact* FactsOf::find(const std::string& path) const {
  const auto found = sources_.facts.find(path);
  return found == sources_.facts.end() || found->second.node.is_null() ? nullptr : &found->second;
}

bool FactsOf::before(const Fact& a, const Fact& b) {
  if (a.override != b.override) return a.override;
  return !a.at.included && b.at.included;
}

const Fact* FactsOf::strongest(std::initializer_list<const char*> paths) {
  const Fact* best = nullptr;
  for (const char* path : paths) {
    const Fact* fact = find(path);
    if (fact != nullptr && (best == nullptr || before(*fact, *best))) best = fact;
  }
  for (const char* path : paths) {
    const Fact* fact = find(path);
    if (fact != nullptr && fact != best) give_way(*fact, *best);
  }
  return best;
}

std::string FactsOf::word(const Fact* fact) {
  return fact != nullptr && fact->node.kind == Node::Kind::scalar ? fact->node.text : "";
}

bool FactsOf::given(std::initializer_list<const char*> keys) const {
  return std::ranges::any_of(keys, [this](const char* key) {
    const Setting* found = setting(key);
    return found != nullptr && found->value.given;
  });
}

std::string FactsOf::value_of(const char* key) const {
  const Setting* found = setting(key);
  return found != nullptr && found->value.given ? canonical(*found->field, found->value) : "";
}

const Setting* FactsOf::setting(const char* key) const {
  for (const Settings* settings :
       {&sources_.overrides, &sources_.yaml, &sources_.deepspeed, &sources_.environment}) {
    if (const Setting* found = settings->find(key)) return found;
  }
  return nullptr;
}

bool FactsOf::overridden(const char* key, const Fact& fact) const {
  return !fact.override && sources_.overrides.has(key);
}

bool FactsOf::set(const char* key, const Node& node, const Location& at, bool override) {
  Settings& settings = override ? sources_.overrides : sources_.yaml;
  const Setting* own = settings.find(key);
  if (own != nullptr && !(own->at.included && !at.included)) {
    if (own->at.key != at.key) sources_.note("'" + at.key + "' is overridden by '" + own->at.key + "'");
    return false;
  }
  settings.add(key, node, at);
  return true;
}

bool FactsOf::set(const char* key, const Node& node, const Fact& fact) {
  return set(key, node, fact.at, fact.override);
}

bool FactsOf::set(const char* key, const std::string& text, const Fact& fact) {
  return set(key, scalar_node(text), fact);
}

void FactsOf::give_way(const Fact& fact, const Fact& to) {
  sources_.note("'" + fact.at.key + "' is overridden by '" + to.at.key + "'");
}

void FactsOf::wrong(const Fact& fact, const std::string& expected, const std::string& fix) {
  complain({.what = "value of '" + fact.at.key + "' cannot be used",
            .expected = expected,
            .found = shown(fact.node),
            .where = fact.at.where,
            .fix = fix});
}

void settle_facts(Sources& sources) {
  if (sources.dialect != nullptr && sources.dialect->settle != nullptr) sources.dialect->settle(sources);
}

}  // namespace octet::config
