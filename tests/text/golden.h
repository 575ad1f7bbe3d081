// Readers of the golden files of tokenizers and templates.
#pragma once

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/text/tokenizer.h"

namespace octet::text {

inline std::string golden_path(const std::string& name) {
  return std::string(OCTET_SOURCE_DIR) + "/tests/golden/" + name;
}

/// Calls `use(case, where)` for each line. Returns the number of lines.
inline int each_case(const std::string& path,
                     const std::function<void(const Json&, const std::string&)>& use) {
  std::ifstream file(path);
  std::string line;
  int n = 0;
  while (std::getline(file, line)) {
    ++n;
    const std::string where = path + ":" + std::to_string(n);
    use(parse_json(line, where), where);
  }
  return n;
}

inline std::vector<TokenId> ids_of(const Json& list) {
  std::vector<TokenId> out;
  for (const auto& id : list) out.push_back(id.get<TokenId>());
  return out;
}

}  // namespace octet::text
